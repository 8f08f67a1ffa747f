"""The residual sum as engines compute it: `(delta.float() + residual.float()).to(dtype)` on raw bits, by numpy alone.

SGLang, vLLM and slime's Megatron all add in float32 and round once, to nearest with ties to even.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError

BLOCK: Final = 1 << 17
"""Elements added at a time, so that what lies between stays in the caches of a core."""

_NAN: Final = {"BF16": 0x7FC0, "F16": 0x7E00, "F32": 0x7FC00000}
_BITS, _HIGH, _SCALE = np.array(16, np.uint32), np.array(0xFFFF0000, np.uint32), np.array(65536, np.float32)
"""Operands in the form that costs numpy least to take."""

Pair: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""Delta and residual."""


def add_rounded(delta: NDArray[Any], residual: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The float32 sum of two tensors, rounded to their element type.

    Same bits as torch for every finite and infinite result, subnormals and ties included. A sum that is NaN becomes the positive
    quiet NaN without payload (`0x7FC0`, `0x7E00`, `0x7FC00000`): torch's own NaN bits differ between its scalar and
    vector code, x86, ARM and GPU, so there is nothing to match.

    Args:
        delta, residual: raw bits (`DType.raw`) of one shape.
        dtype: "BF16", "F16" or "F32", of both and of the result.

    Raises:
        DumpError: another element type, or two shapes.
    """
    return add_all_rounded([(delta, residual)], dtype)[0]


def add_all_rounded(pairs: Sequence[Pair], dtype: str) -> list[NDArray[Any]]:
    """`add_rounded` of each of several pairs; small ones are added together, and their results share memory's one stretch."""
    if dtype not in _NAN:
        raise DumpError(f"the sum of two {dtype} tensors is not defined: engines add {', '.join(_NAN)}")
    for delta, residual in pairs:
        if delta.shape != residual.shape:
            raise DumpError(f"delta has shape {delta.shape} and residual {residual.shape}: they are no pair of one layer")
    sizes = [delta.size for delta, _ in pairs]
    flat = [(_flat(delta), _flat(residual)) for delta, residual in pairs]
    result = np.empty(sum(sizes), DTYPES[dtype].raw)
    edges = [0, *itertools.accumulate(sizes)]
    places = [slice(begin, end) for begin, end in itertools.pairwise(edges)]
    # Overflow to infinity and inf - inf are results here, not mistakes.
    with np.errstate(all="ignore"):
        if dtype == "BF16" and not any(size % 2 for size in sizes):
            _add_words([(left.view("<u4"), right.view("<u4")) for left, right in flat], result.view("<u4"))
        else:
            for (left, right), here in zip(flat, places, strict=True):
                _add(left, right, dtype, result[here])
    return [result[here].reshape(delta.shape) for (delta, _), here in zip(pairs, places, strict=True)]


def _flat(data: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(data).reshape(-1)


class _Scratch(threading.local):
    """Two blocks of float32 that a thread keeps: memory that is fresh from the system costs as much as the sums."""

    def __init__(self) -> None:
        self.blocks = np.empty((2, 0), np.float32)

    def get(self, size: int) -> NDArray[np.float32]:
        """Float32 `[2, size]`, of any values."""
        if self.blocks.shape[1] < size:
            self.blocks = np.empty((2, size), np.float32)
        return self.blocks[:, :size]


_scratch: Final = _Scratch()


def _add_words(pairs: Sequence[Pair], out: NDArray[np.uint32]) -> None:
    """BF16, two elements a 32-bit word: its upper half is one of them widened, but for the lower half, which is the other.

    A float32 `s` is rounded to 8 significant bits, to nearest with ties to even, by three operations that the processor itself
    rounds so: with y = 2^16 s, which is exact, y - s has its last bit where that of the rounded `s` is, and y - (y - s) is the
    rounded `s`. That holds for each sum of two BF16 that is less than 2^112 (checked for all of them), and any other, infinite
    and NaN too, gives NaN, after which the block is added in the plain way.
    """
    for pieces, at, size in _blocks(pairs, max(1, BLOCK // 2)):
        sums, other = _scratch.get(2 * size)
        columns = sums.view("<u4"), other.view("<u4")
        for left, right, begin in pieces:
            low, high = slice(begin, begin + len(left)), slice(size + begin, size + begin + len(left))
            for words, bits in zip((left, right), columns, strict=True):
                np.left_shift(words, _BITS, bits[low])
                np.bitwise_and(words, _HIGH, bits[high])
        np.add(sums, other, sums)
        np.multiply(sums, _SCALE, other)
        np.subtract(other, sums, sums)
        np.subtract(other, sums, sums)
        if np.isnan(np.maximum.reduce(sums)):
            for left, right, begin in pieces:
                _add(left.view("<u2"), right.view("<u2"), "BF16", out[at + begin : at + begin + len(left)].view("<u2"))
            continue
        words = out[at : at + size]
        np.right_shift(columns[0][:size], _BITS, words)
        np.bitwise_or(words, columns[0][size:], words)


def _blocks(pairs: Sequence[Pair], most: int) -> Iterator[tuple[list[tuple[NDArray[Any], NDArray[Any], int]], int, int]]:
    """Pieces of pairs (and where each begins in the block) of `most` elements together, where the block begins, its size."""
    pieces: list[tuple[NDArray[Any], NDArray[Any], int]] = []
    at = size = 0
    for left, right in pairs:
        begin = 0
        while begin < len(left):
            end = min(len(left), begin + most - size)
            pieces.append((left[begin:end], right[begin:end], size))
            size, begin = size + end - begin, end
            if size == most:
                yield pieces, at, size
                pieces, at, size = [], at + size, 0
    if pieces:
        yield pieces, at, size


def _add(left: NDArray[Any], right: NDArray[Any], dtype: str, out: NDArray[Any]) -> None:
    """The plain way, for every element type and value."""
    sums, other = _scratch.get(min(BLOCK, out.size))
    for at in range(0, out.size, BLOCK):
        here = slice(at, at + BLOCK)
        size = len(out[here])
        _widen(left[here], dtype, sums[:size])
        _widen(right[here], dtype, other[:size])
        np.add(sums[:size], other[:size], out=sums[:size])
        _narrow(sums[:size], dtype, other[:size], out[here])


def _widen(raw: NDArray[Any], dtype: str, out: NDArray[np.float32]) -> None:
    if dtype == "BF16":
        np.left_shift(raw, 16, out=out.view("<u4"), dtype="<u4")
    else:
        out[:] = raw.view("<f2" if dtype == "F16" else "<f4")


def _narrow(value: NDArray[np.float32], dtype: str, scratch: NDArray[np.float32], out: NDArray[Any]) -> None:
    """Rounds `value` into `out`; changes `value` and `scratch`."""
    nan = np.isnan(value)
    if dtype == "BF16":
        bits, odd = value.view("<u4"), scratch.view("<u4")
        # Adding just under half of the last kept bit, and one more if that bit is odd, carries exactly where RNE rounds up.
        np.right_shift(bits, 16, out=odd)
        np.bitwise_and(odd, 1, out=odd)
        np.add(bits, 0x7FFF, out=bits)
        np.add(bits, odd, out=bits)
        out[:] = value.view("<u2")[1::2]
    elif dtype == "F16":
        out.view("<f2")[:] = value
    else:
        out[:] = value.view("<u4")
    if nan.any():
        out[nan] = _NAN[dtype]

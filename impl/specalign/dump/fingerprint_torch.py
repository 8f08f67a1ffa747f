"""Fingerprint v1 of tensors, on the device where they lie. Class *exact*: the same bits as `fingerprint.py` on every device.

Every leading axis counts rows and the last axis is the row: `[*, width] -> [product of *, 2]`. (`fingerprint_rows` of numpy takes
everything behind the first axis as the row; of two axes both say the same.) A tensor of one axis is refused, because it could be
one row or one element a row.

With `count=True` a third column counts the non-finite elements of each row, packed as in `nonfinite_torch.py`.

uint64 has hardly any operators in torch, so words, multipliers and sums are int64 here: products and sums mod 2^64 are the same
bits, and only the right shift of splitmix64 must be made a logical one.
"""

from __future__ import annotations

import functools
from typing import Final, Protocol

import torch
from torch import Tensor

from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import INCREMENT, LAST_SHIFT, SEEDS, SHIFTS_AND_FACTORS, WORD, check_first_byte
from specalign.dump.nonfinite_torch import packed_counts

_BLOCK_WORDS: Final = 1 << 20  # 8 MiB as int64, of which about four are alive at once
_CHUNK_WORDS: Final = 1 << 16


class Kernel(Protocol):
    """What `fingerprint_reference` and `fingerprint_kernels.fingerprint_triton` have in common."""

    def __call__(self, tensor: Tensor, *, first_byte: int = 0, count: bool = False) -> Tensor: ...


def fingerprint_tensor(tensor: Tensor, *, first_byte: int = 0, count: bool = False) -> Tensor:
    """The fingerprint of each row: int64 `[rows, 2]` on the tensor's device, the bits of `fingerprint_rows`' uint64.

    On CUDA the Triton kernel computes it where triton can be imported, without waiting for the device; elsewhere
    `fingerprint_reference` does.

    Args:
        tensor: `[*, width]` of any dtype with whole bytes (FP8 and bool too), in any layout of strides; nothing is written to it.
            No rows give `[0, 2]`; rows of no elements give zeros.
        first_byte: where these bytes begin within the full row, for a shard of it; a multiple of 4. Of the shards of a row only
            the last may have a number of bytes that is no multiple of 4.
        count: give `[rows, 3]`, whose last column `nonfinite.unpack_counts` makes the two counts of non-finite elements of each
            row. They are counted while the row is read.

    Raises:
        DumpError: the tensor has fewer than two axes, is not strided, or `first_byte` lies within a word. With `count`: a type
            that no dump holds, or rows of 2^32 elements or more.
    """
    kernel = _triton_kernel() if tensor.is_cuda else None
    return (kernel or fingerprint_reference)(tensor, first_byte=first_byte, count=count)


def fingerprint_reference(tensor: Tensor, *, first_byte: int = 0, count: bool = False) -> Tensor:
    """`fingerprint_tensor` in plain torch, on any device. Temporary memory is bounded by about 50 MiB."""
    check_first_byte(first_byte)
    rows = flat_rows(tensor)
    result = torch.zeros(len(rows), len(SEEDS), dtype=torch.int64, device=rows.device)
    elements = _CHUNK_WORDS * WORD // rows.element_size()
    for left in range(0, rows.shape[1], elements):
        chunk = rows[:, left : left + elements]
        words = -(-chunk.shape[1] * chunk.element_size() // WORD)
        both = torch_multipliers((first_byte + left * rows.element_size()) // WORD, words, rows.device)
        step = max(1, _BLOCK_WORDS // words)
        for top in range(0, len(chunk), step):
            plus_one = row_words(chunk[top : top + step]) + 1
            for lane in range(len(SEEDS)):
                result[top : top + step, lane] += (plus_one * both[lane]).sum(dim=1)
    return torch.cat([result, packed_counts(rows)[:, None]], dim=1) if count else result


def flat_rows(tensor: Tensor) -> Tensor:
    """`[*, width]` as `[rows, width]`, detached: a view where the strides allow, else a copy.

    Raises:
        DumpError: fewer than two axes, or not strided.
    """
    if tensor.ndim < 2:
        raise DumpError(
            f"a tensor of shape {list(tensor.shape)} does not say what its rows are: [*, width] has a fingerprint for each row of"
            " the last axis. Pass x[None] for one row, or x[:, None] for one element a row"
        )
    if tensor.layout != torch.strided:
        raise DumpError(
            f"a tensor of layout {tensor.layout} has no rows of bits. Pass tensor.to_dense(), if its zeros are part of the row"
        )
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():  # lazy views: the bits in memory are not the values
        plain = plain.resolve_conj().resolve_neg()
    rows = 1
    for length in plain.shape[:-1]:
        rows *= length
    return plain.reshape(rows, plain.shape[-1])


def row_words(rows: Tensor) -> Tensor:
    """The little-endian uint32 words of each row of `[rows, width]`, the last one padded with zero bytes.

    Returns:
        int64 `[rows, ceil(bytes of a row / 4)]`, each 0 <= word < 2^32.
    """
    size = rows.shape[1] * rows.element_size()
    padded = torch.zeros(len(rows), -(-size // WORD) * WORD, dtype=torch.uint8, device=rows.device)
    # A clone and not .contiguous(): that leaves an axis of length 1 its stride, which a view of another size may refuse.
    padded[:, :size] = rows.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return padded.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def torch_multipliers(first_word: int, count: int, device: torch.device) -> Tensor:
    """The multipliers of the words first_word .. first_word + count - 1 of a row, in both lanes: int64 `[2, count]`, all odd."""
    places = torch.arange(count, dtype=torch.int64, device=device)
    return torch.stack([_splitmix64(places + _signed(seed + first_word)) | 1 for seed in SEEDS])


def _splitmix64(states: Tensor) -> Tensor:
    z = states + _signed(INCREMENT)
    for shift, factor in SHIFTS_AND_FACTORS:
        z = (z ^ _logical_shift(z, shift)) * _signed(factor)
    return z ^ _logical_shift(z, LAST_SHIFT)


def _logical_shift(z: Tensor, places: int) -> Tensor:
    """z >> places with zeros from the left: the shift of int64 brings the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    """The int64 with the bits of `value` mod 2^64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@functools.cache
def _triton_kernel() -> Kernel | None:
    try:
        from specalign.dump.fingerprint_kernels import fingerprint_triton
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "triton":
            raise
        return None
    return fingerprint_triton

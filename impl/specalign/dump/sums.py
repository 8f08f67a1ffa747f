"""The residual sum as engines compute it: `(delta.float() + residual.float()).to(dtype)` on raw bits, by numpy alone.

SGLang, vLLM and slime's Megatron all add in float32 and round once, to nearest with ties to even.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError

BLOCK: Final = 1 << 15
"""Elements added at a time, so that what lies between stays in the caches of a core."""

_NAN: Final = {"BF16": 0x7FC0, "F16": 0x7E00, "F32": 0x7FC00000}


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
    if dtype not in _NAN:
        raise DumpError(f"the sum of two {dtype} tensors is not defined: engines add {', '.join(_NAN)}")
    if delta.shape != residual.shape:
        raise DumpError(f"delta has shape {delta.shape} and residual {residual.shape}: they are no pair of one layer")
    raw = np.dtype(DTYPES[dtype].raw)
    result = np.empty(delta.shape, raw)
    flat, left, right = result.reshape(-1), np.ascontiguousarray(delta).reshape(-1), np.ascontiguousarray(residual).reshape(-1)
    sums, other = np.empty((2, min(BLOCK, flat.size)), np.float32)
    # Overflow to infinity and inf - inf are results here, not mistakes.
    with np.errstate(all="ignore"):
        for at in range(0, flat.size, BLOCK):
            here = slice(at, at + BLOCK)
            size = len(flat[here])
            _widen(left[here], dtype, sums[:size])
            _widen(right[here], dtype, other[:size])
            np.add(sums[:size], other[:size], out=sums[:size])
            _narrow(sums[:size], dtype, other[:size], flat[here])
    return result


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

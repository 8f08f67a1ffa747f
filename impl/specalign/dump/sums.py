"""The residual sum as engines compute it: `(delta.float() + residual.float()).to(dtype)` on raw bits, by numpy alone.

SGLang, vLLM and slime's Megatron all add in float32 and round once, to nearest with ties to even.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError

BLOCK: Final = 1 << 20
"""Elements added at a time: what lies beside the result takes at most about 24 MiB."""

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
    for at in range(0, flat.size, BLOCK):
        here = slice(at, at + BLOCK)
        # Overflow to infinity and inf - inf are results here, not mistakes.
        with np.errstate(all="ignore"):
            flat[here] = _narrow(_widen(left[here], dtype) + _widen(right[here], dtype), dtype)
    return result


def _widen(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (raw.astype("<u4") << np.uint32(16)).view("<f4")
    return raw.view("<f2").astype("<f4") if dtype == "F16" else raw.view("<f4")


def _narrow(value: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        bits = value.view("<u4")
        # Adding just under half of the last kept bit, and one more if that bit is odd, carries exactly where RNE rounds up.
        raw = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    elif dtype == "F16":
        raw = value.astype("<f2").view("<u2")
    else:
        raw = value.view("<u4").copy()
    raw[np.isnan(value)] = _NAN[dtype]
    return raw

"""What raw bits mean: values and distances, for every element type of a dump.

Arrays are unsigned integers that hold the bits (`DType.raw`), of any shape and strides; numpy alone, which has neither
bfloat16 nor FP8. An array of another numpy dtype raises ValueError.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specalign.compare.modes import Mode
from specalign.dump.dtypes import DType
from specalign.dump.nonfinite import Raw, check_raw, nonfinite, signed_type

NAN_DISTANCE: Final = 2**64 - 1
"""`ulp_distance` of a NaN from any other bits."""

_IEEE_VIEW: Final = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def decode(raw: Raw, dtype: DType) -> npt.NDArray[np.float64]:
    """The values as a new float64 array of the same shape.

    Exact for every float type, −0 and infinities included; a NaN stays NaN, its payload is lost. Exact for integers up to 2^53
    in magnitude; I64 and U64 beyond that are rounded to the nearest float64, so use those values for display only.
    """
    check_raw(raw, dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN raises the flag as it widens
        values: npt.NDArray[np.float64] = _typed(raw, dtype).astype(np.float64)
    return values


def _typed(raw: Raw, dtype: DType) -> npt.NDArray[Any]:
    """The elements in a type of numpy's that holds each of their values."""
    if dtype.name in _IEEE_VIEW:
        return raw.view(_IEEE_VIEW[dtype.name])
    if dtype.name == "BF16":
        return np.left_shift(raw, 16, dtype=np.uint32).view(np.float32)
    if dtype.is_float:
        return np.take(_fp8_values(dtype), raw)
    return raw.view(signed_type(dtype)) if dtype.kind == "int" else raw


@functools.cache
def _fp8_values(dtype: DType) -> npt.NDArray[np.float64]:
    """The 256 values of an FP8 type, by code: (−1)^s · 2^(e − bias) · 1.m, or 2^(1 − bias) · 0.m where e = 0."""
    codes = np.arange(256, dtype=np.uint8)
    exponent = (codes.astype(np.int64) & 0x7F) >> dtype.mantissa
    fraction = codes.astype(np.int64) & ((1 << dtype.mantissa) - 1)
    # FNUZ types spend no exponent on infinities and NaN and move the bias up by one instead.
    bias = (1 << (dtype.exponent - 1)) - (0 if dtype.specials == "negative_zero" else 1)
    significand = fraction + np.where(exponent > 0, 1 << dtype.mantissa, 0)
    values: npt.NDArray[np.float64] = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - dtype.mantissa)
    np.negative(values, out=values, where=codes >= 0x80)
    infinite = nonfinite(codes, dtype)
    values[infinite] = np.where(is_nan(codes, dtype), np.nan, np.copysign(np.inf, values))[infinite]
    values.flags.writeable = False
    return values


def is_nan(raw: Raw, dtype: DType) -> npt.NDArray[np.bool_]:
    """Where an element is NaN."""
    special = nonfinite(raw, dtype)
    if dtype.specials != "ieee":
        return special
    return np.logical_and(special, np.bitwise_and(raw, raw.dtype.type((1 << dtype.mantissa) - 1)))


def opposite_zeros(a: Raw, b: Raw, dtype: DType) -> npt.NDArray[np.bool_]:
    """Where one of a, b is −0 and the other +0; nowhere if the type has no −0."""
    if dtype.specials in ("", "negative_zero"):
        return np.zeros(a.shape, dtype=np.bool_)
    sign = a.dtype.type(dtype.sign)
    return np.logical_and(np.equal(np.bitwise_xor(a, b), sign), np.equal(np.bitwise_and(a, ~sign), 0))


def ulp_distance(a: Raw, b: Raw, dtype: DType, *, fold_zeros: bool = False) -> npt.NDArray[np.uint64]:
    """How many steps from a to b in the ordered list of the type's codes, uint64 of the same shape; symmetric.

    −0 has its own place right below +0, so that other bits always mean a distance of at least 1 (and the smallest negative and
    the smallest positive number are 3 apart). An infinity comes one step after the largest finite number. A NaN is
    `NAN_DISTANCE` from any other bits, also from another NaN, and 0 from itself. Integers: abs(a − b), exact.

    Args:
        a, b: of one shape.
        fold_zeros: give −0 the place of +0, which makes the distance one of values; the tolerances use it.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    check_raw(a, dtype)
    check_raw(b, dtype)
    if a.shape != b.shape:
        raise ValueError(f"ulp_distance of shapes {a.shape} and {b.shape}")
    x, y = _places(a, dtype, fold_zeros), _places(b, dtype, fold_zeros)
    # The difference of two places has as many bits as the type: what overflows as signed is right as unsigned.
    distance: npt.NDArray[np.uint64] = np.subtract(np.maximum(x, y), np.minimum(x, y)).view(a.dtype).astype(np.uint64)
    if dtype.is_float:
        distance[(is_nan(a, dtype) | is_nan(b, dtype)) & (a != b)] = NAN_DISTANCE
    return distance


def _places(raw: Raw, dtype: DType, fold_zeros: bool) -> npt.NDArray[Any]:
    """The place of each code in the order of values, an integer of the type's own size; +0 is at 0."""
    if dtype.kind not in ("float", "int"):
        return raw
    signed = raw.view(signed_type(dtype))
    if dtype.kind == "int":
        return signed
    # Without the sign the codes of a sign ascend with the magnitude m: m stands at m, and -m at -1 - m, or at -m where -0 has
    # no place of its own. FNUZ has no -0.
    negative = np.right_shift(signed, 8 * dtype.size - 1)  # -1 where the sign is set, else 0
    place: npt.NDArray[Any] = np.bitwise_xor(signed, np.bitwise_and(negative, dtype.sign - 1))
    if fold_zeros or dtype.specials == "negative_zero":
        place -= negative
    return place


def abs_difference(a: Raw, b: Raw, dtype: DType) -> npt.NDArray[np.float64]:
    """abs(a − b) in float64, rounded once: NaN if a side is NaN; 0 for the same bits; inf if one is infinite or F64 overflows."""
    if not dtype.is_float:
        return ulp_distance(a, b, dtype).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(decode(a, dtype) - decode(b, dtype))
    gap[a == b] = 0.0
    return gap


def within(a: Raw, b: Raw, dtype: DType, mode: Mode) -> npt.NDArray[np.bool_]:
    """Where a and b are equal under `mode`; see `Mode`.

    abs and rel are decided on float64 values, each operation rounded to nearest; abs and ulp of integers are exact.
    """
    same = np.equal(a, b)
    if mode.is_bits:
        return same
    if mode.kind == "rel":
        return same | _within_relative(decode(a, dtype), decode(b, dtype), mode.bound)
    if mode.kind == "abs" and dtype.is_float:
        return same | (abs_difference(a, b, dtype) <= mode.bound)  # no infinity or NaN is within a finite bound
    finite = ~(nonfinite(a, dtype) | nonfinite(b, dtype))
    limit = np.uint64(min(int(mode.bound), NAN_DISTANCE))  # of integers, abs(a − b) ≤ X where it is ≤ floor(X)
    return same | (finite & (ulp_distance(a, b, dtype, fold_zeros=True) <= limit))


def _within_relative(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], bound: float) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore", over="ignore"):
        gap, scale = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
        # Halves, where the difference of two F64 overflows; and inf ≤ bound · inf must not pass.
        halves = np.abs(x / 2 - y / 2) <= bound * (scale / 2)
        fits = np.where(np.isinf(gap), halves, gap <= bound * scale)
    return np.isfinite(scale) & fits

"""What raw bits mean agrees with torch's casts for every code, with nextafter, and with exact fractions."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specalign.compare.bits import NAN_DISTANCE, decode, nonfinite, ulp_distance
from specalign.compare.modes import Mode
from specalign.compare.values import abs_difference, is_nan, opposite_zeros, within
from specalign.dump.dtypes import DTYPES, DType
from specalign.dump.nonfinite import any_illegal, illegal

FLOATS = [dtype for dtype in DTYPES.values() if dtype.is_float]
SMALL = [dtype for dtype in FLOATS if dtype.size <= 2]
FP8 = [dtype for dtype in FLOATS if dtype.size == 1]
WHOLE = [dtype for dtype in DTYPES.values() if dtype.kind in ("int", "uint")]
HAS_INFINITY = {"BF16", "F16", "F32", "F64", "F8_E5M2"}


def named(dtype: DType) -> str:
    return dtype.name


def codes(dtype: DType) -> npt.NDArray[Any]:
    """Every code of a type of one or two bytes."""
    return np.arange(256**dtype.size, dtype=np.dtype(dtype.raw))


def torch_values(raw: npt.NDArray[Any], dtype: DType) -> npt.NDArray[np.float64]:
    """torch's own reading of the bits."""
    signed = torch.from_numpy(raw.view(f"<i{dtype.size}").copy())
    return signed.view(getattr(torch, dtype.torch)).to(torch.float64).numpy()


def bits_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)  # one NaN for all


def words(dtype: DType) -> st.SearchStrategy[int]:
    """Codes of a type: any, and those around zero, infinity and NaN."""
    sign = 1 << (8 * dtype.size - 1)
    top = ((1 << dtype.exponent) - 1) << dtype.mantissa
    edges = [0, 1, 2, sign - 1, sign, sign + 1, top - 1, top, top + 1, sign | top, sign | (top - 1), 2 * sign - 1]
    return st.one_of(st.integers(0, 2 * sign - 1), st.sampled_from([code for code in edges if 0 <= code < 2 * sign]))


def array(dtype: DType, *values: int) -> npt.NDArray[Any]:
    return np.array(values, dtype=np.dtype(dtype.raw))


# decode


@pytest.mark.parametrize("dtype", SMALL, ids=named)
def test_every_code_decodes_as_torch_casts_it(dtype: DType) -> None:
    raw = codes(dtype)
    np.testing.assert_array_equal(bits_of(decode(raw, dtype)), bits_of(torch_values(raw, dtype)))


@given(pattern=st.integers(0, 2**32 - 1))
def test_a_float32_decodes_as_struct_reads_it(pattern: int) -> None:
    expected = struct.unpack("<f", struct.pack("<I", pattern))[0]
    np.testing.assert_array_equal(bits_of(decode(array(DTYPES["F32"], pattern), DTYPES["F32"])), bits_of(np.array([expected])))


@given(pattern=st.integers(0, 2**64 - 1))
def test_a_float64_decodes_as_struct_reads_it(pattern: int) -> None:
    expected = struct.unpack("<d", struct.pack("<Q", pattern))[0]
    np.testing.assert_array_equal(bits_of(decode(array(DTYPES["F64"], pattern), DTYPES["F64"])), bits_of(np.array([expected])))


@pytest.mark.parametrize("dtype", WHOLE, ids=named)
def test_whole_numbers_decode_to_the_nearest_float64(dtype: DType) -> None:
    low, high = (-(2 ** (8 * dtype.size - 1)), 2 ** (8 * dtype.size - 1) - 1) if dtype.kind == "int" else (0, 256**dtype.size - 1)
    numbers = [low, low + 1, 0, 1, high - 1, high]
    raw = array(dtype, *(number % 256**dtype.size for number in numbers))
    assert decode(raw, dtype).tolist() == [float(number) for number in numbers]


def test_bool_decodes_to_its_byte() -> None:
    assert decode(array(DTYPES["BOOL"], 0, 1), DTYPES["BOOL"]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=named)
def test_the_decoded_array_is_new_and_has_the_shape(dtype: DType) -> None:
    raw = np.zeros((4, 6), dtype=np.dtype(dtype.raw))[::2, ::3]
    values = decode(raw, dtype)
    values += 1
    assert values.shape == raw.shape
    assert not raw.any()
    assert not decode(raw, dtype).any()


# nonfinite


@pytest.mark.parametrize("dtype", SMALL, ids=named)
def test_every_code_is_finite_or_nan_where_torch_says_so(dtype: DType) -> None:
    raw, values = codes(dtype), torch_values(codes(dtype), dtype)
    np.testing.assert_array_equal(nonfinite(raw, dtype), ~np.isfinite(values))
    np.testing.assert_array_equal(is_nan(raw, dtype), np.isnan(values))
    assert np.isinf(values).any() == (dtype.name in HAS_INFINITY)


@pytest.mark.parametrize("name", ["F32", "F64"])
@given(data=st.data())
def test_wide_floats_are_finite_or_nan_where_numpy_says_so(name: str, data: st.DataObject) -> None:
    dtype = DTYPES[name]
    raw = array(dtype, data.draw(words(dtype)))
    value = raw.view(f"<f{dtype.size}")
    assert nonfinite(raw, dtype).tolist() == (~np.isfinite(value)).tolist()
    assert is_nan(raw, dtype).tolist() == np.isnan(value).tolist()


@pytest.mark.parametrize("dtype", [*WHOLE, DTYPES["BOOL"]], ids=named)
def test_whole_numbers_are_always_finite(dtype: DType) -> None:
    raw = array(dtype, 0, 1, 256**dtype.size // 2, 256**dtype.size - 1)
    assert not nonfinite(raw, dtype).any()
    assert not any_illegal(raw, dtype, "no")
    assert not opposite_zeros(raw, raw[::-1], dtype).any()


@pytest.mark.parametrize("allow", ["no", "inf"])
@pytest.mark.parametrize("dtype", FLOATS, ids=named)
@given(data=st.data())
def test_the_quick_look_finds_what_the_full_one_finds(allow: Any, dtype: DType, data: st.DataObject) -> None:
    raw = array(dtype, *data.draw(st.lists(words(dtype), max_size=6)))
    values = decode(raw, dtype)
    legal = np.isfinite(values) | ((values == -np.inf) & (allow == "inf"))
    assert illegal(raw, dtype, allow).tolist() == (~legal).tolist()
    assert any_illegal(raw, dtype, allow) == (not legal.all())


@pytest.mark.parametrize("allow", ["no", "inf"])
@pytest.mark.parametrize("dtype", SMALL, ids=named)
def test_the_quick_look_is_right_for_each_code_alone(allow: Any, dtype: DType) -> None:
    values = torch_values(codes(dtype), dtype)
    legal = np.isfinite(values) | ((values == -np.inf) & (allow == "inf"))
    step = 1 if dtype.size == 1 else 17
    suspicious = np.unique(np.concatenate([np.flatnonzero(~np.isfinite(values)), np.arange(0, values.size, step)]))
    for code in suspicious.tolist():
        assert any_illegal(array(dtype, code), dtype, allow) == (not legal[code]), hex(code)


# distance


def ranks(dtype: DType) -> npt.NDArray[np.int64]:
    """The place of every code when sorted by torch's value, −0 before +0; NaN codes come last and do not count."""
    values = torch_values(codes(dtype), dtype)
    order = np.lexsort((~np.signbit(values), values))
    place = np.empty(values.size, dtype=np.int64)
    place[order] = np.arange(values.size)
    return place


@pytest.mark.parametrize("dtype", FP8, ids=named)
def test_the_distance_of_every_pair_of_fp8_codes_is_that_of_their_ranks(dtype: DType) -> None:
    a, b = (side.ravel() for side in np.meshgrid(codes(dtype), codes(dtype)))
    place, nan = ranks(dtype), np.isnan(torch_values(codes(dtype), dtype))
    expected = np.abs(place[a] - place[b]).astype(np.uint64)
    expected[(nan[a] | nan[b]) & (a != b)] = NAN_DISTANCE
    expected[a == b] = 0
    np.testing.assert_array_equal(ulp_distance(a, b, dtype), expected)


@pytest.mark.parametrize("shift", [1, 2, 0x1234, 0x7FFF, 0x8000, 0xFFFF])
@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_the_distance_of_every_16_bit_code_to_another_is_that_of_their_ranks(name: str, shift: int) -> None:
    dtype = DTYPES[name]
    a = codes(dtype)
    b = a + np.uint16(shift)
    place, nan = ranks(dtype), np.isnan(torch_values(a, dtype))
    expected = np.abs(place[a] - place[b]).astype(np.uint64)
    expected[nan[a] | nan[b]] = NAN_DISTANCE
    np.testing.assert_array_equal(ulp_distance(a, b, dtype), expected)


@pytest.mark.parametrize(("name", "kind"), [("F16", np.float16), ("F32", np.float32), ("F64", np.float64)])
@given(data=st.data())
def test_the_distance_is_the_number_of_steps_of_nextafter(name: str, kind: Any, data: st.DataObject) -> None:
    dtype = DTYPES[name]
    sign = 1 << (8 * dtype.size - 1)
    start_bits = data.draw(st.one_of(words(dtype), st.sampled_from([0, 1, 2, 5, sign, sign + 1, sign + 2, sign + 5])))
    start = array(dtype, start_bits)
    if not np.isfinite(start.view(kind)[0]):
        return
    steps, toward = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([-np.inf, np.inf]))
    end = start.view(kind).copy()
    taken = 0
    with np.errstate(over="ignore", under="ignore"):
        while taken < steps and np.isfinite(end[0]):
            end = np.nextafter(end, kind(toward))
            taken += 1
    finish = end.view(dtype.raw)
    assert ulp_distance(start, finish, dtype, fold_zeros=True).tolist() == [taken]
    # nextafter knows one zero; the distance of codes counts both.
    crossed = bool(np.signbit(start.view(kind)[0]) != np.signbit(end[0]))
    assert ulp_distance(start, finish, dtype).tolist() == [taken + crossed]


@given(x=st.floats(allow_nan=False, allow_infinity=False))
def test_one_ulp_of_python_is_one_step(x: float) -> None:
    dtype = DTYPES["F64"]
    y = abs(x) + math.ulp(x)
    a, b = (np.array([value]).view("<u8") for value in (abs(x), y))
    assert ulp_distance(a, b, dtype).tolist() == [1]


@pytest.mark.parametrize("dtype", FLOATS, ids=named)
@given(data=st.data())
def test_the_distance_is_a_metric_of_the_line(dtype: DType, data: st.DataObject) -> None:
    raw = array(dtype, *(data.draw(words(dtype)) for _ in range(3)))
    a, b, c = (raw[i : i + 1] for i in range(3))
    forth, back = int(ulp_distance(a, b, dtype)[0]), int(ulp_distance(b, a, dtype)[0])
    assert forth == back
    assert (forth == 0) == (int(a[0]) == int(b[0]))
    if not is_nan(raw, dtype).any():
        values = decode(raw, dtype)
        a, b, c = (raw[i : i + 1] for i in np.lexsort((~np.signbit(values), values)))
        left, right, both = (int(ulp_distance(p, q, dtype)[0]) for p, q in ((a, b), (b, c), (a, c)))
        assert both == left + right < NAN_DISTANCE


@pytest.mark.parametrize("dtype", WHOLE, ids=named)
@given(data=st.data())
def test_the_distance_of_whole_numbers_is_their_difference(dtype: DType, data: st.DataObject) -> None:
    top = 256**dtype.size
    low = -top // 2 if dtype.kind == "int" else 0
    number = st.one_of(st.integers(low, low + top - 1), st.sampled_from([low, low + top - 1, 0]))
    x, y = data.draw(number), data.draw(number)
    a, b = array(dtype, x % top), array(dtype, y % top)
    assert ulp_distance(a, b, dtype).tolist() == [abs(x - y)]
    assert abs_difference(a, b, dtype).tolist() == [float(abs(x - y))]
    limit = data.draw(st.integers(0, 2**64 - 2))
    assert within(a, b, dtype, Mode("ulp", limit)).tolist() == [abs(x - y) <= limit]
    bound = data.draw(st.one_of(st.floats(0, 2.0**65), st.just(abs(x - y) + 0.5)))
    assert within(a, b, dtype, Mode("abs", bound)).tolist() == [abs(x - y) <= Fraction(bound)]


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"])
def test_minus_zero_stands_right_below_zero(name: str) -> None:
    dtype = DTYPES[name]
    sign = 1 << (8 * dtype.size - 1)
    a, b = array(dtype, sign, sign + 1, 1, sign, 0), array(dtype, 0, 1, sign + 1, 1, sign)
    assert ulp_distance(a, b, dtype).tolist() == [1, 3, 3, 2, 1]
    assert ulp_distance(a, b, dtype, fold_zeros=True).tolist() == [0, 2, 2, 1, 0]
    assert opposite_zeros(a, b, dtype).tolist() == [True, False, False, False, True]


# tolerance


@pytest.mark.parametrize("kind", ["ulp", "abs", "rel"])
@pytest.mark.parametrize("dtype", SMALL, ids=named)
@given(data=st.data())
def test_within_is_what_exact_fractions_say(kind: Any, dtype: DType, data: st.DataObject) -> None:
    a, b = (array(dtype, data.draw(words(dtype))) for _ in range(2))
    x, y = (float(torch_values(side, dtype)[0]) for side in (a, b))
    # A bound of few bits keeps each product exact in float64.
    bound = data.draw(st.integers(0, 40)) if kind == "ulp" else data.draw(st.integers(0, 64)) / 32
    if int(a[0]) == int(b[0]):
        expected = True
    elif not (math.isfinite(x) and math.isfinite(y)):
        expected = False
    elif kind == "ulp":
        expected = int(ulp_distance(a, b, dtype, fold_zeros=True)[0]) <= bound
    else:
        scale = max(abs(Fraction(x)), abs(Fraction(y))) if kind == "rel" else 1
        # The difference is rounded once, as `within` says: 1e25 - -1e-15 is 1e25. All else is exact.
        expected = Fraction(abs(x - y)) <= Fraction(bound) * scale
    assert within(a, b, dtype, Mode(kind, bound)).tolist() == [expected]
    assert within(b, a, dtype, Mode(kind, bound)).tolist() == [expected]


@pytest.mark.parametrize("mode", [Mode("ulp", 0), Mode("abs", 0), Mode("rel", 0)], ids=str)
@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"])
def test_the_zeros_are_equal_under_every_tolerance_and_differ_in_bits(name: str, mode: Mode) -> None:
    dtype = DTYPES[name]
    a, b = array(dtype, 0), array(dtype, 1 << (8 * dtype.size - 1))
    assert within(a, b, dtype, mode).all()
    assert not within(a, b, dtype, Mode()).any()


@pytest.mark.parametrize("mode", [Mode("ulp", 2**64 - 2), Mode("abs", 1.7e308), Mode("rel", 1e300)], ids=str)
def test_an_infinity_and_a_nan_are_within_no_tolerance_of_anything_else(mode: Mode) -> None:
    dtype = DTYPES["F64"]
    sides = np.array([np.inf, -np.inf, np.nan, 1.7976931348623157e308, 0.0]).view("<u8")
    a, b = (side.ravel() for side in np.meshgrid(sides, sides))
    special = ~(np.isfinite(a.view("<f8")) & np.isfinite(b.view("<f8")))
    np.testing.assert_array_equal(within(a, b, dtype, mode)[special], (a == b)[special])


@pytest.mark.parametrize(("bound", "fits"), [(2.0, True), (1.9, False), (1e308, True)])
def test_rel_holds_where_the_difference_overflows(bound: float, fits: bool) -> None:
    a, b = (np.array([value]).view("<u8") for value in (1.5e308, -1.5e308))
    assert within(a, b, DTYPES["F64"], Mode("rel", bound)).tolist() == [fits]
    assert not within(a, b, DTYPES["F64"], Mode("abs", 1.79e308)).any()
    assert abs_difference(a, b, DTYPES["F64"]).tolist() == [math.inf]


def test_the_same_bits_differ_by_nothing_infinite_or_nan_too() -> None:
    sides = np.array([np.inf, -np.inf, np.nan, -0.0]).view("<u8")
    assert abs_difference(sides, sides, DTYPES["F64"]).tolist() == [0.0] * 4
    others = np.array([-np.inf, 1.0, 1.0, 0.0]).view("<u8")
    np.testing.assert_array_equal(abs_difference(sides, others, DTYPES["F64"]), [np.inf, np.inf, np.nan, 0.0])


@pytest.mark.parametrize("function", [decode, nonfinite, is_nan])
def test_raw_bits_of_another_width_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match=r"raw bits of BF16 are uint16, this array holds uint32"):
        function(np.zeros(3, dtype=np.uint32), DTYPES["BF16"])


def test_a_distance_needs_two_sides_of_one_kind() -> None:
    one, two = np.zeros(1, dtype=np.uint16), np.zeros(2, dtype=np.uint16)
    with pytest.raises(ValueError, match=r"shapes \(1,\) and \(2,\)"):
        ulp_distance(one, two, DTYPES["BF16"])
    with pytest.raises(ValueError, match="float16"):
        ulp_distance(one, one.view(np.float16), DTYPES["F16"])  # type: ignore[arg-type]

"""compare_rows says what a plain loop over elements says, finds every planted bit, and stays small and out of NaN's traps."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.compare import bits
from specalign.compare.bits import NAN_DISTANCE, BlockResult, compare_rows, decode, nonfinite, ulp_distance
from specalign.compare.modes import BITS, Mode, parse_mode
from specalign.compare.values import is_nan, within
from specalign.dump.dtypes import DTYPES, DType

EVERY = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
BF16 = DTYPES["BF16"]
ONE, NAN, OTHER_NAN, INF, MINUS_INF, MINUS_ZERO = 0x3F80, 0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x8000


def bf16(*rows: list[int]) -> npt.NDArray[Any]:
    return np.array(rows, dtype="<u2")


def ordinary(dtype: DType, rows: int, width: int, *, seed: int = 0) -> npt.NDArray[Any]:
    """Random finite codes that are neither zero nor near another special value."""
    codes = np.random.default_rng(seed).integers(1, 64, (rows, width))
    return codes.astype(np.dtype(dtype.raw))


# against a plain loop


def plain_loop(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: DType, mode: Mode, allow: str) -> dict[str, Any]:
    """What `BlockResult` should hold, element by element."""
    found: dict[str, Any] = dict.fromkeys(
        ("mismatches", "nonfinite_a", "nonfinite_b", "zero_signs", "nan_equal_bits", "max_ulp"), 0
    )
    found |= {"max_abs": 0.0, "first": None, "row_mask": [False] * len(a)}
    for row, column in np.ndindex(*a.shape):
        x, y = (side[row : row + 1, column] for side in (a, b))
        u, v = (float(decode(side, dtype)[0]) for side in (x, y))
        for name, side, value in (("nonfinite_a", x, u), ("nonfinite_b", y, v)):
            found[name] += bool(nonfinite(side, dtype)[0]) and not (allow == "inf" and value == -math.inf)
        if x[0] == y[0]:
            found["nan_equal_bits"] += bool(is_nan(x, dtype)[0])
            continue
        found["zero_signs"] += u == v == 0.0
        gap = float(abs(int(u) - int(v))) if not dtype.is_float else abs(u - v)
        found["max_abs"] = gap if math.isnan(gap) or gap > found["max_abs"] else found["max_abs"]
        found["max_ulp"] = max(found["max_ulp"], int(ulp_distance(x, y, dtype, fold_zeros=not mode.is_bits)[0]))
        if not within(x, y, dtype, mode)[0]:
            found["mismatches"] += 1
            found["row_mask"][row] = True
            found["first"] = found["first"] or (row, column, int(x[0]), int(y[0]))
    return found


def as_dict(result: BlockResult) -> dict[str, Any]:
    first = result.first
    return {
        name: getattr(result, name) for name in ("mismatches", "nonfinite_a", "nonfinite_b", "zero_signs", "nan_equal_bits")
    } | {
        "max_ulp": result.max_ulp,
        "max_abs": result.max_abs,
        "row_mask": result.row_mask.tolist(),
        "first": first and (first.row, first.column, first.bits_a, first.bits_b),
    }


@st.composite
def pairs(draw: st.DrawFn, dtype: DType) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Two small arrays that differ in a few places, with special codes among them."""
    rows, width = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    # Whole numbers stay below 2^24, where float64 is exact; test_bits_values has the rest.
    sign = 1 << (8 * dtype.size - 1)
    top = ((1 << dtype.exponent) - 1) << dtype.mantissa
    special = [0, sign, top, sign | top, top + 1, sign - 1, 2 * sign - 1, 1, sign + 1] if dtype.is_float else [0, 1, 127]
    code = st.one_of(st.sampled_from([c for c in special if c < 2 * sign]), st.integers(0, min(sign, 1 << 24) - 1))
    cells = rows * width
    a = np.array(draw(st.lists(code, min_size=cells, max_size=cells)), dtype=np.dtype(dtype.raw)).reshape(rows, width)
    b = a.copy()
    if cells:
        for at in draw(st.lists(st.integers(0, cells - 1), max_size=5)):
            b.flat[at] = draw(code)
    return a, b


@pytest.mark.parametrize("allow", ["no", "inf"])
@EVERY
@given(data=st.data(), block=st.sampled_from([8, 24, 64, 512 * 1024]), part=st.sampled_from([1, 3, 16, 8192]))
def test_it_says_what_a_plain_loop_says_whatever_the_blocks(
    allow: Any, dtype: DType, data: st.DataObject, block: int, part: int
) -> None:
    a, b = data.draw(pairs(dtype))
    mode = data.draw(st.sampled_from(["bits", "ulp:0", "ulp:3", "abs:0", "abs:0.25", "rel:0.125", "rel:0"]).map(parse_mode))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "BLOCK_BYTES", block)
        patch.setattr(bits, "DECODED_ELEMENTS", part)
        result = compare_rows(a, b, dtype, mode, allow_nonfinite=allow)
    np.testing.assert_equal(as_dict(result), plain_loop(a, b, dtype, mode, allow))
    assert (result.rows, result.elements, result.dtype, result.mode) == (len(a), a.size, dtype.name, mode)
    assert result.equal == (result.mismatches == 0)


# planted faults


@EVERY
def test_every_single_bit_is_found_where_it_was_planted(dtype: DType) -> None:
    a = ordinary(dtype, 700, 501)  # more than one block of each type, and rows of an odd width
    for bit in range(8 * dtype.size):
        row, column = (bit * 97) % 700, (bit * 53) % 501
        b = a.copy()
        b[row, column] ^= b.dtype.type(1 << bit)
        result = compare_rows(a, b, dtype)
        assert (result.mismatches, result.rows, result.elements) == (1, 700, 700 * 501)
        assert np.flatnonzero(result.row_mask).tolist() == [row]
        assert result.first is not None
        assert (result.first.row, result.first.column) == (row, column)
        assert (result.first.bits_a, result.first.bits_b) == (int(a[row, column]), int(b[row, column]))
        assert result.max_ulp >= 1
        assert not result.ok


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (8, 65536), (3, 1_000_003), (4097, 129)])
@pytest.mark.parametrize("corner", [0, -1])
def test_the_first_and_the_last_element_are_compared(shape: tuple[int, int], corner: int) -> None:
    a = ordinary(BF16, *shape)
    b = a.copy()
    b[corner, corner] += 1
    result = compare_rows(a, b, BF16)
    assert result.first is not None
    assert (result.first.row, result.first.column) == (corner % shape[0], corner % shape[1])
    assert (result.mismatches, result.max_ulp) == (1, 1)


@pytest.mark.parametrize("at", [(0, 0), (511, 2879), (300, 1234)])
@pytest.mark.parametrize("code", [INF, MINUS_INF, NAN, OTHER_NAN, 0x7F81, 0xFFFF])
def test_a_nonfinite_value_on_both_sides_is_equal_but_not_ok(at: tuple[int, int], code: int) -> None:
    a = ordinary(BF16, 512, 2880)
    a[at] = code
    result = compare_rows(a, a.copy(), BF16)
    assert result.equal
    assert not result.ok
    assert (result.nonfinite_a, result.nonfinite_b) == (1, 1)
    assert result.nan_equal_bits == (code not in (INF, MINUS_INF))
    assert "equal, but not finite" in result.format()


# the rules, one by one


def test_equal_tensors_are_ok() -> None:
    a = ordinary(BF16, 600, 2880)
    result = compare_rows(a, a.copy(), BF16)
    assert result.ok
    assert (result.mismatches, result.max_ulp, result.max_abs, result.first) == (0, 0, 0.0, None)
    assert result.format() == "equal: 600 rows, 1728000 elements of BF16, compared by bits"


def test_the_zeros_differ_in_bits_and_are_counted() -> None:
    a, b = bf16([0, ONE], [MINUS_ZERO, 0]), bf16([MINUS_ZERO, ONE], [0, 0])
    result = compare_rows(a, b, BF16)
    assert (result.mismatches, result.zero_signs, result.max_ulp, result.max_abs) == (2, 2, 1, 0.0)
    tolerant = compare_rows(a, b, BF16, Mode("ulp", 0))
    assert tolerant.ok
    assert (tolerant.mismatches, tolerant.zero_signs, tolerant.max_ulp) == (0, 2, 0)


@pytest.mark.parametrize("mode", [BITS, Mode("ulp", 2**64 - 2), Mode("abs", 1e308), Mode("rel", 1e308)], ids=str)
def test_a_nan_equals_only_the_same_nan(mode: Mode) -> None:
    same = compare_rows(bf16([NAN]), bf16([NAN]), BF16, mode)
    assert (same.equal, same.ok, same.nan_equal_bits) == (True, False, 1)
    for other in (OTHER_NAN, ONE, INF):
        result = compare_rows(bf16([NAN, ONE]), bf16([other, ONE]), BF16, mode)
        assert (result.mismatches, result.max_ulp, result.nonfinite_a) == (1, NAN_DISTANCE, 1)
        assert math.isnan(result.max_abs)
        assert "a NaN" in result.format()


def test_a_nan_difference_is_not_hidden_by_a_later_or_an_earlier_number() -> None:
    for values in ([NAN, ONE, ONE], [ONE, NAN, ONE], [ONE, ONE, NAN]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bits, "DECODED_ELEMENTS", 1)
            assert math.isnan(compare_rows(bf16(values), bf16([2, 2, 2]), BF16).max_abs)


def test_minus_infinity_is_legal_where_logits_are_compared_and_nothing_else_is() -> None:
    rows = bf16([MINUS_INF, ONE], [ONE, MINUS_INF])
    assert not compare_rows(rows, rows, BF16).ok
    assert compare_rows(rows, rows, BF16, allow_nonfinite="inf").ok
    for code in (INF, NAN, OTHER_NAN, 0xFF81):
        rows[0, 1] = code
        result = compare_rows(rows, rows, BF16, allow_nonfinite="inf")
        assert (result.ok, result.nonfinite_a, result.nonfinite_b) == (False, 1, 1)


def test_a_legal_infinity_on_one_side_is_still_a_mismatch() -> None:
    result = compare_rows(bf16([MINUS_INF]), bf16([ONE]), BF16, Mode("rel", 10), allow_nonfinite="inf")
    assert (result.mismatches, result.nonfinite_a, result.max_abs) == (1, 0, math.inf)


def test_what_lies_within_the_tolerance_still_shows_in_the_largest_difference() -> None:
    a, b = bf16([ONE, ONE, ONE]), bf16([ONE + 2, ONE, ONE - 1])
    result = compare_rows(a, b, BF16, Mode("ulp", 2))
    assert result.ok
    assert (result.max_ulp, result.max_abs) == (2, 2 * 2.0**-7)
    assert compare_rows(a, b, BF16, Mode("ulp", 1)).mismatches == 1
    assert compare_rows(a, b, BF16, Mode("abs", 2.0**-6)).ok
    assert not compare_rows(a, b, BF16, Mode("abs", 0.0156)).ok


def test_the_report_says_what_where_and_by_how_much() -> None:
    result = compare_rows(bf16([ONE, 0], [ONE, ONE]), bf16([ONE, MINUS_ZERO], [ONE + 1, ONE]), BF16)
    assert result.format().splitlines() == [
        "mismatch: 2 rows, 4 elements of BF16, compared by bits",
        "    2 elements in 2 rows; first at row 0, column 1: 0x0000 (0.0) against 0x8000 (-0.0)",
        "    largest difference: 1 ulp, 0.0078125 absolute; 1 differ in the sign of zero",
    ]


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_a_comparison_of_nothing_is_not_ok(shape: tuple[int, int]) -> None:
    result = compare_rows(np.empty(shape, dtype="<u2"), np.empty(shape, dtype="<u2"), BF16)
    assert (result.rows, result.elements, result.ok, result.equal) == (shape[0], 0, False, True)
    assert result.format().startswith("nothing compared")


def test_the_result_cannot_be_changed() -> None:
    result = compare_rows(bf16([1]), bf16([2]), BF16)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.mismatches = 0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        result.row_mask[0] = False


# layouts in memory


def strided(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.repeat(a, 2, axis=0)[::2]


def reversed_rows(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return a[::-1].copy()[::-1]


def inner_columns(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.pad(a, ((0, 0), (3, 2)), constant_values=7)[:, 3:-2]


def column_major(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asfortranarray(a)


def off_by_one_byte(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(b"\0" + a.tobytes(), dtype=np.uint8)[1:].view(a.dtype).reshape(a.shape)


@pytest.mark.parametrize("layout", [strided, reversed_rows, inner_columns, column_major, off_by_one_byte])
@pytest.mark.parametrize("name", ["BF16", "F32", "F64", "F8_E4M3"])
def test_the_layout_in_memory_does_not_matter(name: str, layout: Any) -> None:
    dtype = DTYPES[name]
    a = ordinary(dtype, 300, 517)
    b = a.copy()
    view = layout(a)
    assert compare_rows(view, b, dtype).ok
    assert compare_rows(b, view, dtype).ok
    b[200, 100] ^= b.dtype.type(1)
    b[299, 516] ^= b.dtype.type(1)
    result = compare_rows(layout(b), a, dtype)
    assert (result.mismatches, np.flatnonzero(result.row_mask).tolist()) == (2, [200, 299])


def test_a_read_only_map_of_a_file_is_compared(tmp_path: Path) -> None:
    a = ordinary(BF16, 100, 300)
    a.tofile(tmp_path / "a")
    mapped = np.memmap(tmp_path / "a", dtype="<u2", mode="r", shape=(100, 300))
    assert compare_rows(mapped, a, BF16).ok


def test_memory_beyond_the_arguments_stays_below_two_blocks() -> None:
    a = ordinary(BF16, 1024, 2880)
    b = a.copy()
    b[::2] += 1
    b[0, 0] = NAN
    for other in (a.copy(), b):
        tracemalloc.start()
        try:
            compare_rows(a, other, BF16, Mode("rel", 1e-3))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * bits.BLOCK_BYTES, f"{peak} bytes for {a.nbytes}"


# errors


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (np.zeros((2, 3), "<u2"), np.zeros((2, 4), "<u2"), r"a is \[2, 3\], b is \[2, 4\]"),
        (np.zeros((2, 3), "<u2"), np.zeros((3, 3), "<u2"), r"a is \[2, 3\], b is \[3, 3\]"),
        (np.zeros(3, "<u2"), np.zeros(3, "<u2"), r"a is \[3\], b is \[3\]"),
        (np.zeros((2, 3), "<u2"), np.zeros((2, 3), "<u4"), "a holds uint16, b holds uint32"),
        (np.zeros((2, 3), "<u4"), np.zeros((2, 3), "<u4"), "BF16 are uint16, this array holds uint32"),
        (np.zeros((2, 3), "<f2"), np.zeros((2, 3), "<f2"), "BF16 are uint16, this array holds float16"),
    ],
)
def test_sides_that_do_not_fit_are_refused_by_name(a: Any, b: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compare_rows(a, b, BF16)


def test_an_unknown_permission_is_refused() -> None:
    with pytest.raises(ValueError, match="allow_nonfinite is 'nan'"):
        compare_rows(bf16([1]), bf16([1]), BF16, allow_nonfinite="nan")  # type: ignore[arg-type]


def test_comparing_needs_numpy_only() -> None:
    code = "import sys; import specalign.compare.bits, specalign.compare.logprobs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "impl"}, check=False).returncode == 0

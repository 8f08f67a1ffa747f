"""Infinities and NaN are counted by their codes, for every element type of a dump, wherever the rows lie."""

from __future__ import annotations

import numpy as np
import pytest

from specalign.dump import nonfinite
from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.nonfinite import count_nonfinite, illegal_counts, unpack_counts
from tests.unit.dump.plain_fingerprints import SPECIAL_CODES, plain_counts, special_rows

FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]


def test_every_float_has_codes_that_are_tried() -> None:
    assert list(SPECIAL_CODES) == FLOATS


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_at_an_edge_counts_as_what_it_is(dtype: str) -> None:
    codes = np.array(SPECIAL_CODES[dtype], np.uint64).astype(DTYPES[dtype].raw)
    assert count_nonfinite(codes[:, None], DTYPES[dtype]).tolist() == [plain_counts([code], dtype) for code in codes.tolist()]


@pytest.mark.parametrize("dtype", [name for name in FLOATS if DTYPES[name].size <= 2])
def test_every_code_of_a_small_type_counts_as_what_it_is(dtype: str) -> None:
    codes = np.arange(256 ** DTYPES[dtype].size, dtype=DTYPES[dtype].raw)
    assert count_nonfinite(codes, DTYPES[dtype]).tolist() == [plain_counts([code], dtype) for code in codes.tolist()]


@pytest.mark.parametrize(
    ("dtype", "never", "negative"),
    [("BF16", 255, 1), ("F16", 2047, 1), ("F8_E4M3", 2, 0), ("F8_E5M2", 7, 1), ("F8_E4M3FNUZ", 1, 0), ("F8_E5M2FNUZ", 1, 0)],
)
def test_a_type_has_as_many_codes_that_are_not_finite_as_its_paper_says(dtype: str, never: int, negative: int) -> None:
    codes = np.arange(256 ** DTYPES[dtype].size, dtype=DTYPES[dtype].raw)
    assert count_nonfinite(codes[None], DTYPES[dtype]).tolist() == [[never, negative]]


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch, dtype: str, block: int) -> None:
    monkeypatch.setattr(nonfinite, "_BLOCK", block)
    rows = special_rows(dtype, DTYPES[dtype].raw, 13, 9)
    counts = count_nonfinite(rows, DTYPES[dtype])
    assert counts.dtype == np.uint32
    assert counts.tolist() == [plain_counts(row, dtype) for row in rows.tolist()]
    assert counts.any() == DTYPES[dtype].is_float


def test_rows_may_lie_anywhere_and_have_several_axes() -> None:
    rows, dtype = special_rows("BF16", "<u2", 12, 20), DTYPES["BF16"]
    for view in (rows[::2], rows[:, 3:], rows[:, ::3], rows.T, rows[::-1], np.broadcast_to(rows[:1], (4, 20))):
        assert count_nonfinite(view, dtype).tolist() == [plain_counts(row, "BF16") for row in view.tolist()]
    heads = rows.reshape(12, 4, 5).swapaxes(1, 2)
    assert np.array_equal(count_nonfinite(heads, dtype), count_nonfinite(rows, dtype))


def test_counts_of_shards_add_up() -> None:
    rows, dtype = special_rows("F8_E5M2", "<u1", 6, 40), DTYPES["F8_E5M2"]
    parts = [count_nonfinite(rows[:, a:b], dtype) for a, b in ((0, 8), (8, 28), (28, 40))]
    assert np.array_equal(sum(parts), count_nonfinite(rows, dtype))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (2, 0, 4)])
def test_no_rows_and_no_elements_have_none(shape: tuple[int, ...]) -> None:
    assert count_nonfinite(np.zeros(shape, "<u2"), DTYPES["BF16"]).tolist() == [[0, 0]] * shape[0]


def test_a_row_that_a_count_may_not_hold_is_refused() -> None:
    with pytest.raises(DumpError, match=r"4294967296 elements"):
        count_nonfinite(np.broadcast_to(np.zeros((), "<u1"), (1, 2**32)), DTYPES["F8_E5M2"])


def test_bits_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="raw bits of BF16"):
        count_nonfinite(np.zeros((1, 4), "<u4"), DTYPES["BF16"])


def test_minus_infinity_alone_may_be_legal() -> None:
    counts = np.array([[2, 3], [0, 5], [2**32 - 1, 2**32 - 1]], np.uint32)
    assert illegal_counts(counts, "no").tolist() == [5, 5, 2**33 - 2]
    assert illegal_counts(counts, "inf").tolist() == [2, 0, 2**32 - 1]


def test_both_counts_of_a_row_come_as_one_number() -> None:
    packed = np.array([0, 7, 9 << 32, (2**32 - 1 << 32) + 2**32 - 1], np.uint64)
    assert unpack_counts(packed.view("<i8")[::1]).tolist() == [[0, 0], [7, 0], [0, 9], [2**32 - 1, 2**32 - 1]]
    assert unpack_counts(np.stack([packed, packed], axis=1)[:, 1]).tolist() == unpack_counts(packed).tolist()

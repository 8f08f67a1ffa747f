"""Repeatable, batch invariant, order invariant: each check finds the function that is not, and refuses what proves nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specalign.compare.repeatable import (
    BitsDifferError,
    NotComparableError,
    assert_batch_invariant,
    assert_order_invariant,
    assert_repeatable,
)

ROWS = np.random.default_rng(5).standard_normal((12, 64)).astype(np.float32)


def in_order(rows: np.ndarray) -> np.ndarray:
    """Each row summed from left to right in float32, whatever the others are."""
    total = np.zeros(len(rows), np.float32)
    for column in rows.T:
        total = total + column
    return total


def split_by_rows(rows: np.ndarray) -> np.ndarray:
    """The same sums in as many blocks as fill a machine: fewer rows, more blocks (split-K)."""
    blocks = 8 if len(rows) < 4 else 1
    return np.sum([in_order(part) for part in np.split(rows, blocks, axis=1)], axis=0, dtype=np.float32)


def test_the_control_really_changes_bits() -> None:
    assert (split_by_rows(ROWS[:2]).view("u4") != split_by_rows(ROWS)[:2].view("u4")).any()


# Repeatable


def test_a_pure_function_is_repeatable() -> None:
    assert_repeatable(lambda: {"sum": in_order(ROWS), "list": [ROWS, (ROWS[0],)]})


def test_state_is_found_with_its_bits_and_its_distance() -> None:
    results = iter([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, np.nextafter(np.float32(1), np.float32(2)), 1.0]])
    with pytest.raises(BitsDifferError) as caught:
        assert_repeatable(lambda: {"h": np.array([next(results)], np.float32)})
    assert str(caught.value).splitlines()[:3] == [
        "assert_repeatable: call 3 of 3 gives other bits than call 1",
        "  result['h'] (F32 [1, 3]): element [0, 1]: 0x3f800000 (1.0) in call 1, 0x3f800001 (1.0000001192092896) in call 3, 1 ulp",
        "    1 of 3 elements differ, at most 1 ulp",
    ]


def test_a_buffer_that_is_written_again_is_found() -> None:
    buffer = np.zeros(3, np.float32)

    def counts() -> np.ndarray:
        np.add(buffer, 1, out=buffer)
        return buffer  # the same array each time: only a copy of the first result can tell

    with pytest.raises(BitsDifferError, match="call 2 of 2"):
        assert_repeatable(counts, runs=2)


def test_every_call_is_made_and_compared() -> None:
    for wrong in range(2, 6):
        calls = itertools.count(1)
        with pytest.raises(BitsDifferError, match=f"call {wrong} of 5"):
            assert_repeatable(lambda: np.float64(next(calls) >= wrong), runs=5)  # noqa: B023
    assert next(calls) == 6


CHANGES: dict[str, tuple[Any, Any, str]] = {
    "the sign of zero": (np.float32([0.0]), np.float32([-0.0]), "0x00000000 (0.0) in call 1, 0x80000000 (-0.0) in call 2, 1 ulp"),
    "the element type": (np.float32([1]), np.float64([1]), "result: element type F32 in call 1, F64 in call 2"),
    "signed and unsigned": (np.int32([1]), np.uint32([1]), "result: element type I32 in call 1, U32 in call 2"),
    "the shape": (np.float32([[1, 2]]), np.float32([[1], [2]]), "result (F32): shape [1, 2] in call 1, [2, 1] in call 2"),
    "a key more": (
        {"a": np.ones(1)},
        {"a": np.ones(1), "b": np.ones(1)},
        "1 (result['a']) in call 1, 2 (result['a'], result['b'])",
    ),
    "the order of keys": (
        {"a": np.ones(1), "b": np.ones(1)},
        {"b": np.ones(1), "a": np.ones(1)},
        "2 (result['a'], result['b']) in call 1, 2 (result['b'], result['a'])",
    ),
    "a scalar": (np.float32(1), np.float32(2), "result (F32 []): element []: 0x3f800000 (1.0)"),
    "the last of three axes": (np.zeros((2, 2, 2)), np.eye(8, dtype=np.float64)[6].reshape(2, 2, 2), "element [1, 1, 0]"),
    "a byte": (np.array([True]), np.array([False]), "0x01 (1.0) in call 1, 0x00 (0.0) in call 2, 1 ulp"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_counts_as_other_bits(change: str) -> None:
    first, second, message = CHANGES[change]
    results = iter([first, second])
    with pytest.raises(BitsDifferError, match=re.escape(message)):
        assert_repeatable(lambda: next(results), runs=2)


def test_equal_numbers_in_the_other_byte_order_have_the_same_bits() -> None:
    results = iter([np.float32([1, 2]), np.array([1, 2], ">f4")])
    assert_repeatable(lambda: next(results), runs=2)


def test_nan_is_refused_unless_it_is_allowed_and_then_counts_by_its_bits() -> None:
    quiet, other = (np.array([bits], "u4").view("f4") for bits in (0x7FC00000, 0x7FC00001))
    with pytest.raises(NotComparableError, match=r"result \(F32 \[1\]\) holds 1 NaN, the first at \[0\]"):
        assert_repeatable(lambda: quiet)
    assert_repeatable(lambda: quiet, allow_nan=True)
    results = iter([quiet, other])
    with pytest.raises(BitsDifferError, match="a NaN apart"):
        assert_repeatable(lambda: next(results), runs=2, allow_nan=True)


NOTHING: dict[str, tuple[Any, str]] = {
    "nothing": (None, "result is None: only torch tensors and numpy arrays"),
    "an empty tree": ({"a": [], "b": ()}, "result holds no tensor"),
    "no elements": ({"a": np.zeros((0, 4))}, "result['a'] is F64 [0, 4]: it has no elements"),
    "a number": ([1.5], "result[0] is an object of type float"),
    "a text": ("abc", "result is an object of type str"),
    "complex": (np.ones(1, complex), "elements of complex128, whose bits are unknown here"),
    "objects": (np.array([None]), "elements of object, whose bits are unknown here"),
    "masked": (np.ma.masked_array([1.0], [True]), "result is an object of type MaskedArray"),
}


@pytest.mark.parametrize("what", NOTHING)
def test_a_result_with_nothing_to_compare_is_refused(what: str) -> None:
    result, message = NOTHING[what]
    with pytest.raises(NotComparableError, match=re.escape(message)):
        assert_repeatable(lambda: result)


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = [np.ones(1)]
    tree.append(tree)
    with pytest.raises(NotComparableError, match=re.escape("result[1] contains itself")):
        assert_repeatable(lambda: tree)


@pytest.mark.parametrize("runs", [1, 0, True, 2.0, "3"])
def test_fewer_than_two_runs_are_refused(runs: Any) -> None:
    with pytest.raises(NotComparableError, match=r"runs is .*: give a whole number of at least 2"):
        assert_repeatable(lambda: ROWS, runs=runs)


# Batch invariant


def test_a_sum_in_order_is_batch_invariant() -> None:
    assert_batch_invariant(in_order, ROWS)
    assert_batch_invariant(lambda rows: {"sum": in_order(rows["x"]), "same": [rows["y"]]}, {"x": ROWS, "y": ROWS[:, 0]})


def test_a_sum_that_is_split_by_the_number_of_rows_is_found() -> None:
    with pytest.raises(BitsDifferError) as caught:
        assert_batch_invariant(split_by_rows, ROWS)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("assert_batch_invariant: rows 0:1 as a batch of 1 have other bits than in the whole batch of 12")
    whole, alone = split_by_rows(ROWS)[:1].view("u4")[0], split_by_rows(ROWS[:1]).view("u4")[0]
    assert f"0x{whole:08x}" in lines[1]
    assert f"0x{alone:08x}" in lines[1]
    assert re.search(r"in the batch of 1, \d+ ulp$", lines[1])
    assert lines[-1].startswith("  next: look for a split")


def test_only_the_sizes_asked_for_are_tried() -> None:
    assert_batch_invariant(split_by_rows, ROWS, sizes=[4, 6])
    with pytest.raises(BitsDifferError, match=re.escape("rows 10:12 as a batch of 2")):
        assert_batch_invariant(split_by_rows, ROWS, sizes=[5])  # two batches of five, and a rest of two


def test_the_sizes_by_default() -> None:
    seen = set()

    def sees(rows: np.ndarray) -> np.ndarray:
        seen.add(len(rows))
        return rows

    assert_batch_invariant(sees, ROWS)
    assert seen == {1, 2, 3, 4, 5, 8, 11, 12}


def test_a_function_that_writes_into_its_rows_does_not_spoil_the_others() -> None:
    rows = ROWS.copy()

    def doubles(part: np.ndarray) -> np.ndarray:
        part *= 2
        return part

    assert_batch_invariant(doubles, rows)
    assert_order_invariant(doubles, rows)
    assert (rows == ROWS).all()


BAD_BATCHES: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any], str]] = {
    "no rows": (in_order, ROWS[:0], {}, "rows of shape [0, 64] hold no row"),
    "one row": (in_order, ROWS[:1], {}, "one row alone has no other batch"),
    "no rows in a tree": (in_order, {"x": ROWS[:0]}, {}, "rows['x'] is F32 [0, 64]: it has no elements"),
    "rows that do not agree": (
        in_order,
        [ROWS, ROWS[:3]],
        {},
        "the same number of rows first; here: rows[0] F32 [12, 64], rows[1]",
    ),
    "a scalar": (in_order, np.float32(1), {}, "needs the same number of rows first; here: rows F32 []"),
    "only the whole": (in_order, ROWS, {"sizes": [12]}, "the whole batch would be compared with itself"),
    "no sizes": (in_order, ROWS, {"sizes": []}, "the whole batch would be compared with itself"),
    "size 0": (in_order, ROWS, {"sizes": [0]}, "size 0: give whole numbers from 1 to 12"),
    "a size too large": (in_order, ROWS, {"sizes": [1, 13]}, "size 13: give whole numbers from 1 to 12"),
    "a size that is no number": (in_order, ROWS, {"sizes": [True]}, "size True"),
    "returns nothing": (lambda rows: None, ROWS, {}, "result is None"),
    "returns one number": (lambda rows: rows.sum(), ROWS, {}, "a function of 12 rows must return 12 rows"),
    "returns other rows": (lambda rows: rows[:-1], ROWS, {}, "result is F32 [11, 64]: a function of 12 rows must return 12 rows"),
    "returns NaN": (lambda rows: rows * np.float32("nan"), ROWS, {}, "holds 768 NaN"),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_what_proves_nothing_about_batches_is_refused(what: str) -> None:
    fn, rows, options, message = BAD_BATCHES[what]
    with pytest.raises(NotComparableError, match=re.escape(message)):
        assert_batch_invariant(fn, rows, **options)


# Order invariant


def first_come(rows: np.ndarray) -> np.ndarray:
    """Each row less the sum of all rows, taken out of a dict in the order in which they were put in."""
    parts = {row.tobytes(): row for row in rows}
    total = np.zeros(rows.shape[1], np.float32)
    for row in parts.values():
        total = total + row
    return rows - total


def test_rows_by_themselves_are_order_invariant() -> None:
    assert_order_invariant(in_order, ROWS)
    assert_order_invariant(split_by_rows, ROWS, permutations=[list(range(12))[::-1]])


def test_a_sum_in_the_order_of_a_dict_is_found() -> None:
    with pytest.raises(BitsDifferError) as caught:
        assert_order_invariant(first_come, ROWS)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("assert_order_invariant: rows in the order [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0] have other bits")
    assert re.match(r"  result \(F32 \[12, 64\]\): element \[\d+, \d+\]: 0x[0-9a-f]{8} \(.*\) in the first order, 0x", lines[1])


def test_a_result_by_position_is_found() -> None:
    with pytest.raises(BitsDifferError):
        assert_order_invariant(lambda rows: np.arange(len(rows)), ROWS)
    with pytest.raises(BitsDifferError):
        assert_order_invariant(lambda rows: np.sort(in_order(rows)), ROWS)


def test_one_swap_is_enough_to_find_what_depends_on_it() -> None:
    def marks_row_3(rows: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(rows)) == 3, np.float32(1), np.float32(0)) + rows[:, 0]

    swap = [0, 1, 2, 4, 3, *range(5, 12)]
    with pytest.raises(BitsDifferError, match=re.escape("element [3]:")):
        assert_order_invariant(marks_row_3, ROWS, permutations=[swap])


def test_the_orders_follow_from_the_seed() -> None:
    def orders(seed: int) -> list[list[float]]:
        seen = []

        def sees(rows: np.ndarray) -> np.ndarray:
            seen.append(rows[:, 0].tolist())
            return rows

        assert_order_invariant(sees, ROWS, permutations=5, seed=seed)
        return seen

    assert len({tuple(order) for order in orders(1)}) == 6
    assert orders(1) == orders(1) != orders(2)


BAD_ORDERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one row": (ROWS[:1], {}, "one row alone"),
    "no rows": (ROWS[:0], {}, "hold no row"),
    "equal rows": (np.ones((4, 2)), {}, "permutation 0 leaves the rows as they are, bit for bit"),
    "no permutation": (ROWS, {"permutations": []}, "no permutation was given"),
    "none of them": (ROWS, {"permutations": 0}, "permutations is 0: give at least 1"),
    "a row twice": (ROWS[:3], {"permutations": [[0, 1, 1]]}, "[0, 1, 1] is no permutation of the rows 0 to 2"),
    "the same order": (ROWS[:3], {"permutations": [[2, 1, 0], [0, 1, 2]]}, "permutation 1 leaves the rows as they are"),
}


@pytest.mark.parametrize("what", BAD_ORDERS)
def test_what_proves_nothing_about_orders_is_refused(what: str) -> None:
    rows, options, message = BAD_ORDERS[what]
    with pytest.raises(NotComparableError, match=re.escape(message)):
        assert_order_invariant(in_order, rows, **options)


def test_two_rows_have_one_other_order() -> None:
    seen = []

    def sees(rows: np.ndarray) -> np.ndarray:
        seen.append(rows[:, 0].tolist())
        return rows

    assert_order_invariant(sees, ROWS[:2], permutations=5)
    assert seen == [ROWS[:2, 0].tolist(), ROWS[1::-1, 0].tolist()]

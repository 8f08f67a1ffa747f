"""Which pairs of rows are looked at together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specalign.compare.layerwise import compare_dumps
from specalign.compare.pairing import RUN, Located, Pairing
from tests.unit.compare.dumps import Row, decode, flip, prefill, run

REQUESTS = {name: [first, *range(3, 203)] for first, name in enumerate(("one", "two", "three"))}
LONG = 150


def located(left: NDArray[np.int32], right: NDArray[np.int32]) -> Located:
    """Pairs of rows of two forwards."""
    zeros, numbers = np.zeros(len(left), np.int32), np.arange(len(left), dtype=np.int32)
    return Located(Pairing((), ("a", "b"), numbers, numbers, numbers), zeros, left, zeros, right)


@pytest.mark.hypothesis
@given(
    runs=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(1, 3 * RUN)), min_size=1, max_size=8),
    most=st.integers(1, 2 * RUN),
    split=st.booleans(),
)
def test_stretches_are_all_pairs_in_their_order(runs: list[tuple[int, int, int]], most: int, split: bool) -> None:
    left, right = (np.concatenate([np.arange(r[side], r[side] + r[2]) for r in runs]).astype(np.int32) for side in (0, 1))
    parts = list(located(left, right).stretches(most, split_runs=split))
    assert [at for start, end in parts for at in range(start, end)] == list(range(len(left)))
    for start, end in parts:
        is_run = all((np.diff(rows[start:end]) == 1).all() for rows in (left, right))
        assert end - start <= most or (is_run and not split)


def test_long_runs_are_not_cut() -> None:
    left, right = np.arange(300, dtype=np.int32), np.r_[100:200, 0:100, 300:400].astype(np.int32)
    assert list(located(left, right).stretches(7, split_runs=False)) == [(0, 100), (100, 200), (200, 300)]


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "one", "two")])
@pytest.mark.parametrize("position", [0, LONG - 1, LONG, 200])
def test_a_flipped_bit_is_found_wherever_its_row_lies(order: tuple[str, ...], position: int) -> None:
    """In runs of a prefill, and among rows of decode steps that are gathered in another order than they lie in."""
    train = run(REQUESTS, [row for name in REQUESTS for row in prefill(name, 201)], keys=("boundary.1", "boundary.2"))
    steps = [decode(at, *(order if at % 2 else order[::-1])) for at in range(LONG, 201)]

    def edit(key: str, row: Row, made: NDArray[np.uint16]) -> NDArray[np.uint16]:
        return flip(made) if (key, row[:2]) == ("boundary.2", ("two", position)) else made

    for change in (None, edit):
        forwards = [[row for name in order for row in prefill(name, LONG)], *steps]
        report = compare_dumps(train, run(REQUESTS, *forwards, keys=("boundary.1", "boundary.2"), edit=change, name="rollout"))
        assert [key.rows_compared for key in report.keys] == [603, 603]
        assert [key.rows_mismatching for key in report.keys] == ([0, 0] if change is None else [0, 1])
    assert report.first is not None
    assert (report.first.key, report.first.position) == ("boundary.2", position)

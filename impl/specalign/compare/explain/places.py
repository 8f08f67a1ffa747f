"""Causes that show in the places: the right rows, where others belong."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.explain.sample import Sample
from specalign.compare.result import Explanation

MOST_ROWS: Final = 8192
"""Rows that are looked up; those of the lowest positions if more differ."""

ENOUGH: Final = 0.9
"""Share of the rows that must be found elsewhere: of rows that moved by one place, the outermost are found nowhere."""


def rows_permuted(sample: Sample) -> Explanation | None:
    """The rows of one side are found, bit for bit, at other places of the other side."""
    numbers = np.flatnonzero(sample.wrong)[:MOST_ROWS]
    candidates = np.flatnonzero(sample.compared)[: 4 * MOST_ROWS]
    mine, theirs = (sample.aligned.identity(side, sample.key.text, rows) for side, rows in (("b", numbers), ("a", candidates)))  # type: ignore[arg-type]
    if mine is None or theirs is None:
        return None
    places = {value.tobytes(): int(row) for value, row in zip(theirs[::-1], candidates[::-1], strict=True)}
    found = np.array([places.get(value.tobytes(), -1) for value in mine])
    moved = found >= 0
    if np.count_nonzero(moved) < max(2, ENOUGH * len(numbers)):
        return None
    return _swapped_requests(sample, numbers[moved], found[moved], len(numbers)) or _permuted(
        sample, numbers[moved], found[moved], len(numbers)
    )


def _swapped_requests(sample: Sample, rows: NDArray[np.int64], found: NDArray[np.int64], tried: int) -> Explanation | None:
    """Every row stands at its own position, in the other one of two requests."""
    aligned = sample.aligned
    here, there = aligned.requests_a[rows], aligned.requests_a[found]
    pairs = {(int(x), int(y)) for x, y in zip(here, there, strict=True)}
    if (aligned.positions[rows] != aligned.positions[found]).any() or len(pairs) != 2 or {(y, x) for x, y in pairs} != pairs:
        return None
    one, two = (aligned.names_a[number] for number in sorted(pairs)[0])
    return sample.explanation(
        "rows-permuted",
        f"requests {one} and {two} are exchanged on one side: {len(rows)} of {tried} rows that differ are the other request's",
        "which side mixed the two up? Look at how its batch is scattered to requests",
        len(rows),
        tried,
    )


def _permuted(sample: Sample, rows: NDArray[np.int64], found: NDArray[np.int64], tried: int) -> Explanation:
    aligned = sample.aligned
    steps = np.unique(aligned.positions[found] - aligned.positions[rows])
    how = f"all moved by {int(steps[0]):+d} positions" if len(steps) == 1 else "in another order"
    example = f"position {int(aligned.positions[rows[0]])} of side b holds position {int(aligned.positions[found[0]])} of side a"
    return sample.explanation(
        "rows-permuted",
        f"{len(rows)} of {tried} rows that differ stand elsewhere on the other side, bit for bit, {how}: {example}",
        "which side permutes its rows? Look at padding, packing, sequence-parallel and context-parallel order",
        len(rows),
        tried,
    )

"""The rows that explanations are tried on."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.aligned import AlignedRows
from specalign.compare.result import CompareReport, Explanation, KeyResult, Side
from specalign.dump.keys import Key, parse_key

MOST_ROWS: Final = 64
"""Rows on which the values are tried: those at the lowest positions, and others spread over the rest."""

SIDES: Final[tuple[tuple[Side, Side], ...]] = (("b", "a"), ("a", "b"))
"""The side under suspicion, and the other: b first, which usually is the engine under test."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The first key that differs, and rows of it.

    Attributes:
        result: the figures of the key; `key` it parsed.
        rows: numbers of some rows that differ, ascending.
        wrong: all rows that differ, bool; `compared` all that were compared.
        aligned: access to their values.
    """

    result: KeyResult
    key: Key
    rows: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    compared: NDArray[np.bool_]
    aligned: AlignedRows

    def same(self, side: Side, key: str, other: Side, other_key: str) -> bool:
        """Whether all sampled rows of one side's key have the bits of the other side's other key."""
        one, two = self.aligned.identity(side, key, self.rows), self.aligned.identity(other, other_key, self.rows)
        return one is not None and two is not None and np.array_equal(one, two)

    def explanation(self, cause: str, text: str, next: str, fits: int | None = None, tried: int | None = None) -> Explanation:
        """An explanation that fits the sample, unless other figures are given."""
        count = len(self.rows)
        return Explanation(cause, text, next, count if fits is None else fits, count if tried is None else tried)


def take_sample(report: CompareReport, aligned: AlignedRows) -> Sample | None:
    """The sample of a report's first key that differs."""
    result = next((key for key in report.keys if key.first is not None), None)
    if result is None:
        return None
    wrong = aligned.wrong(result.key)
    numbers = np.flatnonzero(wrong)
    return Sample(result, parse_key(result.key), spread(numbers), wrong, aligned.compared(result.key), aligned)


def spread(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """At most `MOST_ROWS` of the numbers: half of them the first ones, half of them evenly spread."""
    if len(numbers) <= MOST_ROWS:
        return numbers.astype(np.int64)
    half = MOST_ROWS // 2
    others = np.linspace(half, len(numbers) - 1, half).astype(np.int64)
    return np.unique(np.concatenate([numbers[:half], numbers[others]])).astype(np.int64)

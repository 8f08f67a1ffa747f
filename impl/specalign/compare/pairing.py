"""Which row of which forward is compared with which, in an order that reads each forward as seldom as possible."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.index import RowIndex
from specalign.compare.result import Side

Ints = NDArray[np.int32]

BATCH_FORWARDS: Final = 256
"""Most forwards whose rows are looked at together: decode steps have few rows each."""


RUN: Final = 64
"""Fewest rows below each other on both sides that are compared where they lie."""


def _cut(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    return ((start, min(end, start + most)) for start in range(begin, end, most))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """Pairs of observations to be compared under the same keys.

    Attributes:
        keys: what is compared.
        sides: whose observations `left` and `right` are.
        numbers: of the rows, int32 `[pairs]`.
        left, right: indices into the `RowIndex` of either side, int32 `[pairs]`.
    """

    keys: tuple[str, ...]
    sides: tuple[Side, Side]
    numbers: Ints
    left: Ints
    right: Ints

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, chosen: Any) -> Pairing:
        """Some of the pairs: a slice, or an array of places."""
        return Pairing(self.keys, self.sides, self.numbers[chosen], self.left[chosen], self.right[chosen])

    def located(self, indexes: Sequence[RowIndex]) -> Located:
        """The pairs, and where each row stands."""
        left, right = (indexes[0 if side == "a" else 1] for side in self.sides)
        return Located(self, left.forwards[self.left], left.rows[self.left], right.forwards[self.right], right.rows[self.right])

    def ordered(self, indexes: Sequence[RowIndex]) -> Pairing:
        """Sorted so that each forward of the side with fewer of them is opened once, and the others one after the other."""
        left, right = (indexes[0 if side == "a" else 1] for side in self.sides)
        outer, inner = left.forwards[self.left], right.forwards[self.right]
        if len(np.unique(outer)) > len(np.unique(inner)):
            outer, inner = inner, outer
        rows = left.rows[self.left]
        order = np.lexsort((rows, inner, outer))
        return self if (np.diff(order) == 1).all() else self.at(order.astype(np.int32))

    def split(self, parts: int) -> list[Pairing]:
        """About equal parts."""
        edges = [len(self) * part // parts for part in range(parts + 1)]
        return [self.at(slice(start, end)) for start, end in itertools.pairwise(edges) if end > start]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Located:
    """A pairing, and the forward and row of every pair: int32 `[pairs]` each."""

    pairs: Pairing
    left_forwards: Ints
    left_rows: Ints
    right_forwards: Ints
    right_rows: Ints

    def __len__(self) -> int:
        return len(self.left_rows)

    def at(self, chosen: slice) -> Located:
        """Some of the pairs."""
        columns = (self.left_forwards, self.left_rows, self.right_forwards, self.right_rows)
        return Located(self.pairs.at(chosen), *(column[chosen] for column in columns))

    def blocks(self) -> list[tuple[int, int]]:
        """Where the pairs of two forwards begin and end."""
        changes = (np.diff(self.left_forwards) != 0) | (np.diff(self.right_forwards) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self)]
        return [(start, end) for start, end in itertools.pairwise(edges) if end > start]

    def stretches(self, most_scattered: int, *, split_runs: bool) -> Iterator[tuple[int, int]]:
        """The pairs of two forwards in parts: runs of rows that lie below each other on both sides, which need no copies, and
        between them at most so many rows. Runs that are short are taken for scattered rows.

        Args:
            split_runs: runs have no more rows than that either.
        """
        breaks = np.flatnonzero((np.diff(self.left_rows) != 1) | (np.diff(self.right_rows) != 1)) + 1
        most = most_scattered if split_runs else len(self)
        begin = 0
        for start, end in itertools.pairwise([0, *breaks.tolist(), len(self)]) if len(breaks) * RUN <= len(self) else ():
            if end - start >= RUN:
                yield from _cut(begin, start, most_scattered)
                yield from _cut(start, end, most)
                begin = end
        yield from _cut(begin, len(self), most_scattered)

    def batches(self, most_rows: int) -> Iterator[Located]:
        """Blocks, several small ones together: at most `most_rows` rows and `BATCH_FORWARDS` forwards."""
        begin, end, count = 0, 0, 0
        for start, stop in self.blocks():
            if count and (stop - begin > most_rows or count == BATCH_FORWARDS):
                yield self.at(slice(begin, end))
                begin, count = start, 0
            end, count = stop, count + 1
        if end > begin:
            yield self.at(slice(begin, end))

"""Figures of one key, gathered block by block, in any order and in any process."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.bits import NAN_DISTANCE

NO_CHANNEL: Final = 2**62
"""The channel of a non-finite element that was counted and not located. Behind every other: a place that is known comes first."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Place:
    """One element of one row, by the numbers of the comparison; the lowest is the first.

    Attributes:
        position, row: of the row, and its number.
        channel: the column; lane of a fingerprint; `NO_CHANNEL`.
        bits_a, bits_b, value_a, value_b, ulp: as in `Divergence`; `ulp` is −1 where it has no meaning.
        left, right: where it stands: index of the forward, and row within it, on either side.
    """

    position: int
    row: int
    channel: int
    bits_a: int = 0
    bits_b: int = 0
    value_a: float = 0.0
    value_b: float = 0.0
    ulp: int = -1
    left: tuple[int, int] = (0, 0)
    right: tuple[int, int] = (0, 0)


@dataclasses.dataclass(slots=True, eq=False)
class Tally:
    """The figures of one key; attributes as in `KeyResult`, and:

    Attributes:
        dtypes: element types of either side.
        compared, mismatching: rows in each cell, int64 `[cells]`; `ulps` the largest distance there, uint64.
        wrong: numbers of the rows that differ, one array a block.
        first_nonfinite: side and place of the first non-finite element.
    """

    cells: int
    dtypes: tuple[str, str] = ("", "")
    width: int = 0
    fingerprint: bool = False
    rows: int = 0
    mismatching_rows: int = 0
    mismatching_elements: int = 0
    max_ulp: int = 0
    max_abs: float = 0.0
    zero_signs: int = 0
    nonfinite_a: int = 0
    nonfinite_b: int = 0
    first: Place | None = None
    first_nonfinite: tuple[Place, str] | None = None
    wrong: list[NDArray[np.int32]] = dataclasses.field(default_factory=list)
    compared: NDArray[np.int64] = dataclasses.field(init=False)
    mismatching: NDArray[np.int64] = dataclasses.field(init=False)
    ulps: NDArray[np.uint64] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.compared = np.zeros(self.cells, np.int64)
        self.mismatching = np.zeros(self.cells, np.int64)
        self.ulps = np.zeros(self.cells, np.uint64)

    def add_cells(self, cells: NDArray[Any], mask: NDArray[np.bool_], ulps: NDArray[np.uint64] | None) -> None:
        """Count rows: the cell of each, which of them differ, and the distances of those that do."""
        self.compared += np.bincount(cells, minlength=self.cells)
        if mask.any():
            self.mismatching += np.bincount(cells[mask], minlength=self.cells)
            if ulps is not None:
                np.maximum.at(self.ulps, cells[mask], ulps)

    def merge(self, other: Tally) -> None:
        """Add the figures of other blocks of the same key."""
        if other.rows:
            self.dtypes, self.width, self.fingerprint = other.dtypes, other.width, other.fingerprint
        self.rows += other.rows
        self.mismatching_rows += other.mismatching_rows
        self.mismatching_elements += other.mismatching_elements
        self.max_ulp = max(self.max_ulp, other.max_ulp)
        self.max_abs = float(np.maximum(self.max_abs, other.max_abs))  # keeps a NaN
        self.zero_signs += other.zero_signs
        self.nonfinite_a += other.nonfinite_a
        self.nonfinite_b += other.nonfinite_b
        self.first = min(filter(None, (self.first, other.first)), default=None)
        self.first_nonfinite = min(filter(None, (self.first_nonfinite, other.first_nonfinite)), default=None)
        self.wrong += other.wrong
        self.compared += other.compared
        self.mismatching += other.mismatching
        np.maximum(self.ulps, other.ulps, out=self.ulps)

    @property
    def ulp_or_none(self) -> int | None:
        """The largest distance; None for fingerprints, and where a NaN has no distance to anything."""
        return None if self.fingerprint or self.max_ulp == NAN_DISTANCE else self.max_ulp

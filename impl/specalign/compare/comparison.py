"""Two dumps that were opened and matched: everything but the values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.forwards import Forward, forwards_of, key_sets
from specalign.compare.groups import Group, Observed, groups_of, observe
from specalign.compare.index import RowIndex, index_rows
from specalign.compare.pairing import Pairing
from specalign.compare.result import Side
from specalign.compare.selection import Selection
from specalign.compare.shelf import Shelf
from specalign.compare.universe import Universe, match_rows
from specalign.dump.passes import Dump

MAP_CELLS: Final = 64
"""Most squares of the layer-by-position map along the positions."""


@dataclasses.dataclass(slots=True, eq=False)
class Comparison:
    """What `prepare` makes.

    Attributes:
        dumps, forwards, indexes: of side a and side b.
        universe: the rows of both.
        groups: keys that both sides have, the largest group first.
        only: keys that only side a has, and only side b.
        selection: what was asked for.
        wrong: the rows that differ under each key, bool `[rows]`; filled in by the comparison.
    """

    dumps: tuple[Dump, Dump]
    forwards: tuple[list[Forward], list[Forward]]
    indexes: tuple[RowIndex, RowIndex]
    universe: Universe
    groups: list[Group]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    selection: Selection
    wrong: dict[str, NDArray[np.bool_]] = dataclasses.field(default_factory=dict)

    def shelf(self, side: Side, keys: Sequence[str]) -> Shelf:
        """The open forwards of one side, for a comparison of these keys."""
        number = 0 if side == "a" else 1
        return Shelf(self.dumps[number], side, self.forwards[number], keys)

    def group_of(self, key: str) -> Group | None:
        """The group that a key of both sides is in."""
        return next((group for group in self.groups if key in group.keys), None)

    @property
    def base(self) -> Group:
        """The group that the row accounts are about: the one with the most forwards; all rows if no key is on both sides."""
        if self.groups:
            return self.groups[0]
        views = (self.universe.a, self.universe.b)
        sides = [
            observe(np.ones(len(forwards), np.bool_), index, view)
            for forwards, index, view in zip(self.forwards, self.indexes, views, strict=True)
        ]
        return Group((), *sides)

    def pairings(self, group: Group) -> dict[str, Pairing]:
        """What is compared in a group: "a-b", and "a-a" and "b-b" for rows that one side observed more than once."""
        both = np.flatnonzero(group.a.has & group.b.has).astype(np.int32)
        made = {"a-b": Pairing(group.keys, ("a", "b"), both, group.a.primary[both], group.b.primary[both])}
        sides: tuple[tuple[Side, Observed], ...] = (("a", group.a), ("b", group.b))
        for side, observed in sides:
            numbers = self.universe.side(side).ids[observed.repeats]
            made[f"{side}-{side}"] = Pairing(group.keys, (side, side), numbers, observed.primary[numbers], observed.repeats)
        return {name: pairing.ordered(self.indexes) for name, pairing in made.items() if len(pairing)}


def prepare(a: Dump, b: Dump, selection: Selection) -> Comparison:
    """Open the forwards of two dumps, index their rows, match them, and group the keys of both.

    Raises:
        DumpError: a dump that cannot be read.
    """
    forwards = forwards_of(a), forwards_of(b)
    indexes = index_rows(a, "a", forwards[0]), index_rows(b, "b", forwards[1])
    universe = match_rows(*indexes)
    keys = [selection.of({key for keys in key_sets(side) for key in keys}) for side in forwards]
    both = [key for key in keys[0] if key in set(keys[1])]
    only = tuple(key for key in keys[0] if key not in both), tuple(key for key in keys[1] if key not in both)
    groups = groups_of(both, forwards, indexes, (universe.a, universe.b))
    return Comparison((a, b), forwards, indexes, universe, groups, only, selection)


def position_edges(positions: NDArray[np.int32]) -> tuple[int, ...]:
    """Edges of at most `MAP_CELLS` squares of equal width over all positions."""
    end = int(positions.max()) + 1 if len(positions) else 1
    width = -(-end // MAP_CELLS)
    return tuple(range(0, end + width, width))

"""Keys that the same forwards hold, and which observation of a row speaks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from specalign.compare.forwards import Forward, key_sets
from specalign.compare.index import RowIndex
from specalign.compare.universe import NOBODY, SideRows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What one side observed under the keys of a group.

    Attributes:
        primary: the observation that speaks for each row: the first; int32 `[rows]`, `NOBODY` where there is none.
        repeats: the other observations, int32.
        forwards: which forwards hold the keys, bool `[forwards]`.
    """

    primary: NDArray[np.int32]
    repeats: NDArray[np.int32]
    forwards: NDArray[np.bool_]

    @property
    def has(self) -> NDArray[np.bool_]:
        """Which rows were observed, bool `[rows]`."""
        return np.asarray(self.primary != NOBODY)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Keys for which the same forwards of either side hold a tensor.

    Attributes:
        keys: in the order of the forward.
        a, b: what either side observed.
    """

    keys: tuple[str, ...]
    a: Observed
    b: Observed


def groups_of(
    keys: Iterable[str],
    forwards: tuple[Sequence[Forward], Sequence[Forward]],
    indexes: tuple[RowIndex, RowIndex],
    rows: tuple[SideRows, SideRows],
) -> list[Group]:
    """The groups of `keys`, the one with the most forwards first."""
    sets = tuple(key_sets(side) for side in forwards)
    found: dict[tuple[frozenset[frozenset[str]], ...], list[str]] = {}
    for key in keys:
        holders = tuple(frozenset(held for held in side if key in held) for side in sets)
        found.setdefault(holders, []).append(key)
    groups = []
    for holders, members in found.items():
        sides = [
            observe(np.array([forward.keys in held for forward in side], np.bool_), index, view)
            for held, side, index, view in zip(holders, forwards, indexes, rows, strict=True)
        ]
        groups.append(Group(tuple(members), *sides))
    return sorted(groups, key=lambda group: -int(group.a.forwards.sum() + group.b.forwards.sum()))


def observe(holds: NDArray[np.bool_], index: RowIndex, view: SideRows) -> Observed:
    """What one side observed in the forwards that `holds` marks, bool `[forwards]`."""
    chosen = np.flatnonzero(holds[index.forwards] & (view.ids != NOBODY))
    primary = np.full(len(view.requests), NOBODY, np.int32)
    # Assigned backwards: of several observations of a row the first one is written last, and stays.
    primary[view.ids[chosen[::-1]]] = chosen[::-1]
    repeats = chosen[primary[view.ids[chosen]] != chosen]
    return Observed(primary, repeats.astype(np.int32), holds)

"""Which rows must be compared under which key, and what became of all the others."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from specalign.compare.comparison import Comparison
from specalign.compare.declared import Declared
from specalign.compare.groups import Group
from specalign.compare.index import RowIndex
from specalign.compare.result import Account, Problem, Side
from specalign.compare.universe import NOBODY, SideRows
from specalign.dump.keys import MAY_BE_INFINITE

Rows = NDArray[np.bool_]
Expect = Literal["both", "a", "b"] | int

SHOWN: Final = 4
"""Requests, and ranges of positions, that a message lists."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """What is expected; no value is looked at for it.

    Attributes:
        comparison: the matched rows.
        expect: "both": every row of either side; "a", "b": every row of that side; a number: both, and exactly so many.
        declared: gaps that the caller knows of.
    """

    comparison: Comparison
    expect: Expect
    declared: tuple[Declared, ...]

    def expected(self, key: str, group: Group) -> Rows:
        """Rows that must be compared under a key, bool `[rows]`. Logits and log-probs exist for some rows, and those count that
        either side has.
        """
        universe = self.comparison.universe
        a, b = (group.a.has, group.b.has) if key in MAY_BE_INFINITE else (universe.a.has, universe.b.has)
        wanted = {"a": a, "b": b}.get(str(self.expect), a | b)
        return np.asarray(wanted & ~universe.a.terminal & ~universe.b.terminal & ~self._excused(key, group))

    def missing(self) -> list[Problem]:
        """Rows that one side has and the other lacks altogether, one problem a side."""
        group, universe = self.comparison.base, self.comparison.universe
        problems = []
        sides: tuple[tuple[Side, Rows, Rows], ...] = (("a", group.a.has, group.b.has), ("b", group.b.has, group.a.has))
        for side, mine, other in sides:
            lacking = mine & ~other & ~self._excused("") & ~universe.side(side).terminal
            if self._asks_for(side) and lacking.any():
                problems.append(self._missing(side, lacking))
        return problems

    def unmatched(self) -> list[Problem]:
        """Requests that share no row with the other side, unless nobody asked for them or all of their rows are declared."""
        universe, excused = self.comparison.universe, self._excused("")
        return [
            problem
            for side, number, problem in universe.unmatched
            if self._asks_for(side) and ((universe.side(side).requests == number) & ~excused).any()
        ]

    def stale(self) -> list[Problem]:
        """Declarations that excuse nothing."""
        return [
            Problem("stale-declaration", "a declared gap is none", entry.format(), "0 rows", "remove it from the declared gaps")
            for entry in self.declared
            if not self._is_used(entry)
        ]

    def account(self, side: Side) -> Account:
        """Where the rows of one side went, under the keys that the most forwards hold."""
        comparison, group = self.comparison, self.comparison.base
        number = 0 if side == "a" else 1
        index, rows, dump = comparison.indexes[number], comparison.universe.side(side), comparison.dumps[number]
        mine, other = (group.a, group.b) if side == "a" else (group.b, group.a)
        here = mine.forwards[index.forwards]
        only_here = mine.has & ~other.has
        terminal = only_here & rows.terminal
        declared = only_here & ~terminal & (self._excused("") if self._asks_for(side) else True)
        unplaced = int(np.count_nonzero(here & (rows.ids == NOBODY)))
        counts = {
            "compared": int(np.count_nonzero(mine.has & other.has)),
            "repeated": len(mine.repeats),
            "padding": int(index.padding[mine.forwards].sum()),
            "health_checks": int(index.health_checks[mine.forwards].sum()),
            "terminal": int(np.count_nonzero(terminal)),
            "declared": int(np.count_nonzero(declared)),
            "missing": int(np.count_nonzero(only_here & ~terminal & ~declared)) + unplaced,
        }
        total = int(np.count_nonzero(here)) + counts["padding"] + counts["health_checks"]
        if total != sum(counts.values()):
            raise RuntimeError(f"side {side} has {total} rows, and {counts} is {sum(counts.values())}: a fault of specalign")
        passes = int(np.count_nonzero(mine.forwards))
        return Account(str(dump.path), dump.manifest.producer, passes, len(index.request_ids), total, **counts)

    def _asks_for(self, side: Side) -> bool:
        return isinstance(self.expect, int) or self.expect in ("both", side)

    def _excused(self, key: str, group: Group | None = None) -> Rows:
        """Rows that a declaration excuses under a key; "" asks for those that are excused under every key."""
        excused = np.zeros(len(self.comparison.universe.positions), np.bool_)
        for entry in self.declared:
            if entry.covers_key(key):
                excused |= self._rows_of(entry, group)
        return excused

    def _rows_of(self, entry: Declared, group: Group | None = None) -> Rows:
        """The rows that a declaration is about: those that its side lacks; where it names keys, those that lack a value."""
        universe, having = self.comparison.universe, _other(entry.side)
        rows = universe.side(having)
        names = self.comparison.indexes[0 if having == "a" else 1].request_ids
        covered = entry.covers_rows(universe.positions, rows.requests, names) & ~self._held_by_others(entry, having)
        if entry.keys == "*":
            return covered & ~universe.side(entry.side).has
        return covered if group is None else covered & ~(group.a if entry.side == "a" else group.b).has

    def _held_by_others(self, entry: Declared, having: Side) -> Rows:
        """Rows that also belong to a request which the declaration does not name."""
        index, ids = self.comparison.indexes[0 if having == "a" else 1], self.comparison.universe.side(having).ids
        named = np.array([fnmatch.fnmatchcase(name, entry.requests) for name in index.request_ids], np.bool_)
        held = np.zeros(len(self.comparison.universe.positions), np.bool_)
        if len(named):
            held[ids[(ids != NOBODY) & ~named[index.requests]]] = True
        return held

    def _is_used(self, entry: Declared) -> bool:
        only = self.comparison.only[1 if entry.side == "a" else 0]
        if entry.keys != "*" and any(entry.covers_key(key) for key in only):
            return True
        rows = self._rows_of(entry)
        if entry.keys == "*":
            return bool(rows.any())
        lacking = (
            (group.a if entry.side == "a" else group.b).has
            for group in self.comparison.groups
            if any(map(entry.covers_key, group.keys))
        )
        return any(bool((rows & ~has).any()) for has in lacking)

    def _missing(self, side: Side, lacking: Rows) -> Problem:
        rows = self.comparison.universe.side(side)
        index = self.comparison.indexes[0 if side == "a" else 1]
        return Problem(
            "rows-missing",
            f"side {_other(side)} has no row for rows that side {side} has",
            describe_rows(lacking, rows, index, self.comparison.universe.positions),
            f"{int(np.count_nonzero(lacking))} of {int(np.count_nonzero(rows.has))} rows",
            "record them (a prefix cache hit gives no rows: flush the cache; a killed run lacks its last passes), or declare them"
            " missing",
        )


def _other(side: Side) -> Side:
    return "b" if side == "a" else "a"


def describe_rows(chosen: Rows, rows: SideRows, index: RowIndex, positions: NDArray[Any]) -> str:
    """`request r1 positions 0-9, 14; request r2 positions 3`, shortened."""
    numbers = np.flatnonzero(chosen)
    requests = rows.requests[numbers]
    names = list(dict.fromkeys(requests.tolist()))
    texts = [
        f"request {index.request_ids[name]} positions {_ranges(np.unique(positions[numbers[requests == name]]))}"
        for name in names[:SHOWN]
    ]
    left = len(names) - len(texts)
    return "; ".join(texts) + (f"; and {left} more requests" if left else "")


def _ranges(values: NDArray[Any]) -> str:
    runs = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:SHOWN]]
    return ", ".join(texts) + (", …" if len(runs) > SHOWN else "")


def sequence_of(keys: Sequence[str]) -> str:
    """A list of keys, shortened."""
    return ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")

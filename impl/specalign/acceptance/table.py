"""The before/after table: what each silent fault costs a head, and whether these prompts tell it apart from the right way."""

from __future__ import annotations

import dataclasses
from typing import Final

from specalign.acceptance.metrics import Acceptance, Difference, Interval
from specalign.acceptance.rounds import PromptRounds

RIGHT: Final = "right"
DEAD: Final = "random head"
NONE: Final = "no drafting"
"""Rows that are no fault: the right way and the two controls."""

DEAD_AT_MOST: Final = 1.02
"""A head that learnt nothing still guesses a token now and then, so its length is not 1 to the last digit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One way to feed and read a head.

    Attributes:
        name: "right", a fault, "random head" or "no drafting".
        states: what the head was fed, as text.
        fault: whether it must be told apart from "right".
        acceptance: its figures.
        difference: "right" minus this row, paired by prompt; None for "right" itself.
        teacher: of each draft step, the share of right first choices where all tokens before are the text's own.
        teacher_difference: of the first step, "right" minus this row.
    """

    name: str
    states: str
    fault: bool
    acceptance: Acceptance
    difference: Difference | None = None
    teacher: tuple[Interval, ...] = ()
    teacher_difference: Interval | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LoopCheck:
    """The real loop beside the replay, for one row.

    Attributes:
        row: which.
        prompts: how many ran through both.
        differing: those whose rounds are not the same.
    """

    row: str
    prompts: int
    differing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """All rows of one head.

    Attributes:
        rows: "right" first.
        loops: what the real loop said.
        depth: drafts of a chain.
        new_tokens: wanted of each answer.
        counts: the rounds of "right", prompt by prompt.
    """

    rows: tuple[Row, ...]
    loops: tuple[LoopCheck, ...]
    depth: int
    new_tokens: int
    counts: tuple[PromptRounds, ...] = ()

    @property
    def not_told_apart(self) -> tuple[Row, ...]:
        """Faults that these prompts do not tell from the right way."""
        return tuple(row for row in self.rows if row.fault and row.difference is not None and not row.difference.told_apart)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the table proves nothing, if so; each a sentence."""
        found = [
            f"{row.name!r} is not told apart from the right way by {row.acceptance.prompts} prompts"
            + (f": about {row.difference.prompts_needed} would do" if row.difference and row.difference.prompts_needed else "")
            for row in self.not_told_apart
        ]
        found += [
            f"the dead control has a length of {row.acceptance.length.value:.3f}, more than {DEAD_AT_MOST}: it is right too often"
            " for a head that learnt nothing"
            for row in self.rows
            if row.name == DEAD and row.acceptance.length.value > DEAD_AT_MOST
        ]
        found += [
            f"the real loop and the replay count different rounds for {loop.row!r} on {len(loop.differing)} of"
            f" {loop.prompts} prompts, first {loop.differing[0]!r}"
            for loop in self.loops
            if loop.differing
        ]
        return tuple(found)

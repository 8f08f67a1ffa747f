"""The gate: does a head still reach what its golden says? Bounds come from the counts, never from a slack that somebody chose.

A run fails if its length dropped (`paired_drop`), if a position's rate dropped (a paired interval of golden - run above 0, at a
level divided among the positions), if it does not clear the dead control, or if the prompts are too few to see half of what
separates the head from the dead control: a gate without teeth passes everything, so it is no pass. A rise is told and no failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.golden_file import AcceptanceGolden
from specalign.acceptance.likeness import format_likeness, looks_like
from specalign.acceptance.metrics import LEVEL, Acceptance, Interval, measure, paired_share
from specalign.acceptance.paired_drop import paired_drop
from specalign.acceptance.rounds import PromptRounds

FEWEST_PROMPTS: Final = 6
"""Of fewer, all of which dropped, as many do by chance in more than 2.5%: 1 / 2^5."""

LENGTH: Final = "length"
FLOOR: Final = "dead control"
TEETH: Final = "prompts"
"""What a problem is of, beside the positions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why a run fails.

    Attributes:
        concern: `LENGTH`, `position 1` and so on, `FLOOR` or `TEETH`.
        text: a sentence without a stop.
    """

    concern: str
    text: str

    @property
    def is_drop(self) -> bool:
        """Whether a figure dropped; otherwise the run is no better than a dead head, or proves too little."""
        return self.concern not in (FLOOR, TEETH)


@dataclasses.dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the gate says.

    Attributes:
        run: figures of the run.
        golden: length of the golden.
        drop: golden minus run, paired by prompt.
        position_drops: of each position, golden's rate minus the run's, at the level divided among them.
        floor: upper bound of the dead control.
        visible: a drop that these prompts show at the latest: the half width of the golden's own interval, or of the paired one
            where that is wider.
        found: why the run fails; empty if it passes.
        looks_like: faults whose length and rates lie within `FITS` standard errors of the run's, the nearest first; only of a
            run that fails.
    """

    run: Acceptance
    golden: Interval
    drop: Interval
    position_drops: tuple[Interval, ...]
    floor: float
    visible: float
    found: tuple[Problem, ...]
    looks_like: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """The sentences."""
        return tuple(problem.text for problem in self.found)

    @property
    def ok(self) -> bool:
        """Whether the run passes."""
        return not self.found

    @property
    def rose(self) -> bool:
        """Whether the run is clearly better: time for a new golden."""
        return self.drop.high < 0


def judge(golden: AcceptanceGolden, run: Sequence[PromptRounds]) -> GateVerdict:
    """Hold a run against the golden of its pair.

    Args:
        golden: of the pair.
        run: of the same prompts in the same order, with the golden's depth and number of new tokens.

    Raises:
        AcceptanceError: other prompts, or none.
    """
    paired = paired_drop(golden.counts, run)
    drop, seen = paired.difference, sum(bool(prompt.rounds) for prompt in run)
    figures, right, dead = measure(run), golden.rows[0], golden.dead
    positions = _position_drops(golden.counts, run)
    visible = max(drop.value - drop.low, right.length.value - right.length.low)
    found = [*dropped(drop, positions, length=paired.dropped), *cleared(figures.length, dead.length)]
    if seen < FEWEST_PROMPTS:
        text = f"{seen} prompts with rounds can show no drop, however large: give {FEWEST_PROMPTS} at least"
        found.append(Problem(TEETH, text))
    elif blunt := toothless(golden, visible, f"{len(run)} prompts"):
        found.append(Problem(TEETH, f"{blunt}; take more prompts"))
    like = looks_like(golden.rows, figures.length, figures.per_position, figures.rounds) if found else ()
    return GateVerdict(figures, right.length, drop, positions, dead.length.high, visible, tuple(found), like)


def dropped(drop: Interval, positions: Sequence[Interval], *, length: bool) -> Iterator[Problem]:
    """The figures that dropped: of the length `length` says so, of a position its lower bound."""
    if length:
        yield Problem(LENGTH, f"the acceptance length dropped by {drop}")
    for place, item in enumerate(positions, start=1):
        if item.low > 0:
            yield Problem(position(place), f"the rate of position {place} dropped by {item}")


def position(place: int) -> str:
    """The concern of a position, counted from 1."""
    return f"position {place}"


def cleared(length: Interval, dead: Interval) -> Iterator[Problem]:
    """Whether a length lies above the dead control: the lower bound of one above the upper of the other."""
    if length.low <= dead.high:
        yield Problem(FLOOR, f"{length} does not clear the dead control, which reaches up to {dead.high:.3f}")


def toothless(golden: AcceptanceGolden, visible: float, what: str) -> str | None:
    """Why a pass would prove nothing, if the smallest drop that shows is more than half of what a dead head would cost."""
    apart = golden.rows[0].length.value - golden.dead.length.value
    if visible <= apart / 2:
        return None
    return (
        f"{what} show no drop below {visible:.3f}, more than half of what separates the head from a dead one"
        f" ({apart:.3f}): a pass would prove nothing"
    )


def _position_drops(before: Sequence[PromptRounds], run: Sequence[PromptRounds]) -> tuple[Interval, ...]:
    """Of each position: the difference of the shares of rounds that accepted so far."""
    deepest = max((item.proposed for prompt in before for item in prompt.rounds), default=0)
    asked, rounds = (np.array([len(prompt.rounds) for prompt in some], dtype=np.float64) for some in (before, run))
    found = []
    for place in range(1, deepest + 1):
        # Each side's share has its own number of rounds; scaled to the golden's, their difference is one of sums.
        mine, theirs = (
            np.array([sum(item.accepted >= place for item in prompt.rounds) for prompt in some], dtype=np.float64)
            for some in (before, run)
        )
        scaled = np.divide(theirs * asked, rounds, out=np.zeros_like(theirs), where=rounds > 0)
        found.append(paired_share(mine, scaled, asked, level=1 - (1 - LEVEL) / deepest))
    return tuple(found)


def format_verdict(verdict: GateVerdict) -> str:
    """The verdict as text; its first line says it all."""
    head = "PASS" if verdict.ok else "FAIL"
    lines = [f"{head}: acceptance length {verdict.run.length} against {verdict.golden} in the golden"]
    lines += [f"  {problem}" for problem in verdict.problems]
    if not verdict.ok:
        lines.append(f"  {format_likeness(verdict.looks_like)}")
    if verdict.ok and verdict.rose:
        lines.append(f"  it rose by {-verdict.drop.value:.3f}: write a new golden, so that the gate holds it")
    lines.append(
        f"  golden - run {verdict.drop}, by position {' '.join(f'{item.value:+.3f}' for item in verdict.position_drops)};"
        f" {verdict.run.prompts} prompts show a drop from {verdict.visible:.3f} on; dead control up to {verdict.floor:.3f}"
    )
    return "\n".join(lines)


def check_settings(golden: AcceptanceGolden, pair: Mapping[str, str], depth: int, new_tokens: int) -> None:
    """Raises `AcceptanceError` if a run was made otherwise than its golden."""
    mine = {**pair, "depth": str(depth), "new tokens": str(new_tokens)}
    theirs = {**golden.pair, "depth": str(golden.depth), "new tokens": str(golden.new_tokens)}
    other = [
        f"{key}: {mine.get(key)} here, {theirs.get(key)} there"
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
    ]
    if other:
        raise AcceptanceError(f"the golden is of another pair or another way to measure it: {'; '.join(other)}")

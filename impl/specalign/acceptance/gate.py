"""The gate: does a head still reach what its golden says? Bounds come from the counts, never from a slack that somebody chose.

A run fails if its length dropped (`paired_drop`), if a position's rate dropped (a paired interval of golden - run above 0, at a
level divided among the positions), if it does not clear the dead control, or if the prompts are too few to see half of what
separates the head from the dead control: a gate without teeth passes everything, so it is no pass. A rise is told and no failure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.golden_file import AcceptanceGolden, KnownRow
from specalign.acceptance.metrics import LEVEL, Acceptance, Interval, measure, paired_share
from specalign.acceptance.paired_drop import paired_drop
from specalign.acceptance.rounds import PromptRounds

FITS: Final = 2.0
"""Standard errors within which a run looks like a fault."""

FEWEST_PROMPTS: Final = 6
"""Of fewer, all of which dropped, as many do by chance in more than 2.5%: 1 / 2^5."""

_Z: Final = 1.96


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
        problems: why the run fails, a sentence each; empty if it passes.
        looks_like: faults whose length and rates lie within `FITS` standard errors of the run's, the nearest first; only of a
            run that fails.
    """

    run: Acceptance
    golden: Interval
    drop: Interval
    position_drops: tuple[Interval, ...]
    floor: float
    visible: float
    problems: tuple[str, ...]
    looks_like: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the run passes."""
        return not self.problems

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
    problems = []
    if paired.dropped:
        problems.append(f"the acceptance length dropped by {drop}, from {right.length.value:.3f} to {figures.length.value:.3f}")
    problems += [
        f"the rate of position {place} dropped by {found}" for place, found in enumerate(positions, start=1) if found.low > 0
    ]
    if figures.length.low <= dead.length.high:
        problems.append(f"{figures.length} does not clear the dead control, which reaches up to {dead.length.high:.3f}")
    if seen < FEWEST_PROMPTS:
        problems.append(f"{seen} prompts with rounds can show no drop, however large: give {FEWEST_PROMPTS} at least")
    elif visible > (right.length.value - dead.length.value) / 2:
        problems.append(
            f"{len(run)} prompts show no drop below {visible:.3f}, more than half of what separates the head from a dead one"
            f" ({right.length.value - dead.length.value:.3f}): a pass would prove nothing; take more prompts"
        )
    return GateVerdict(
        figures,
        right.length,
        drop,
        positions,
        dead.length.high,
        visible,
        tuple(problems),
        _looks_like(golden, figures) if problems else (),
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


def _looks_like(golden: AcceptanceGolden, run: Acceptance) -> tuple[str, ...]:
    near = [(distance, row.name) for row in golden.rows if row.fault and (distance := _distance(row, run)) <= FITS]
    return tuple(name for _, name in sorted(near))


def _distance(row: KnownRow, run: Acceptance) -> float:
    """The largest of the distances of length and rates, in standard errors of their difference."""
    errors = [math.hypot(_error(row.length), _error(run.length))]
    gaps = [abs(row.length.value - run.length.value)]
    widening = _widening(run)
    for before, now in zip(row.per_position, run.per_position, strict=False):
        gaps.append(abs(before - now))
        # A rate varies with the prompts as the length does; without counts of its own, binomially, widened as the length is.
        errors.append(max(math.sqrt((before * (1 - before) + now * (1 - now)) / run.rounds), 1e-3) * widening)
    return max(gap / max(error, 1e-9) for gap, error in zip(gaps, errors, strict=True))


def _error(interval: Interval) -> float:
    return (interval.high - interval.low) / (2 * _Z)


def _widening(run: Acceptance) -> float:
    """By how much the prompts widen the interval of the length beyond that of independent rounds; at least 1."""
    rates = [1.0, *run.per_position, 0.0]
    chances = [a - b for a, b in itertools.pairwise(rates)]
    mean = sum(count * chance for count, chance in enumerate(chances))
    variance = sum((count - mean) ** 2 * chance for count, chance in enumerate(chances))
    alone = math.sqrt(max(variance, 1e-9) / run.rounds)
    return max(1.0, _error(run.length) / alone)


def format_verdict(verdict: GateVerdict) -> str:
    """The verdict as text; its first line says it all."""
    head = "PASS" if verdict.ok else "FAIL"
    lines = [f"{head}: acceptance length {verdict.run.length} against {verdict.golden} in the golden"]
    lines += [f"  {problem}" for problem in verdict.problems]
    if verdict.problems:
        looks = ", ".join(verdict.looks_like) or "none of the known faults"
        lines.append(f"  looks like: {looks}")
    if verdict.ok and verdict.rose:
        lines.append(f"  it rose by {-verdict.drop.value:.3f}: write a new golden, so that the gate holds it")
    lines.append(
        f"  golden - run {verdict.drop}, by position {' '.join(f'{item.value:+.3f}' for item in verdict.position_drops)};"
        f" {verdict.run.prompts} prompts show a drop from {verdict.visible:.3f} on; dead control up to {verdict.floor:.3f}"
    )
    return "\n".join(lines)


def check_settings(golden: AcceptanceGolden, pair: dict[str, str], depth: int, new_tokens: int) -> None:
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

"""The gate for figures of a running engine: sums without prompts, held against the golden of the pair.

An engine tells how many rounds it counted, not of which prompts. So nothing is paired, and the error of its figures is that of
the golden, scaled: SE(served) = SE(golden) x sqrt(rounds of the golden / rounds served). That takes its prompts to be of the
golden's kind, as different among each other and with answers as long: other prompts have another length, which looks like a drop
or hides one. Send the golden's own prompts, greedy, with its number of new tokens.

A figure dropped if golden - served is above z x hypot(SE(golden), SE(served)): z = 1.96 for the length, and for the positions the
one that divides the same 2.5% among them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Final

import numpy as np

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.gate import FEWEST_PROMPTS, TEETH, Problem, cleared, dropped, toothless
from specalign.acceptance.golden_file import AcceptanceGolden
from specalign.acceptance.likeness import Z, error_of, format_likeness, looks_like, spread
from specalign.acceptance.metrics import LEVEL, Acceptance, Interval, measure, share
from specalign.acceptance.served_result import Served

NOT_PAIRED: Final = (
    "prompts are not paired: this takes those served to be of the golden's kind; unlike ones shift the length by themselves"
)
_DEPTH_NOT_TOLD: Final = "these figures do not tell how many drafts a chain has: serve the pair with the golden's {depth}"


@dataclasses.dataclass(frozen=True, slots=True)
class ServedVerdict:
    """What the gate says of an engine's figures.

    Attributes:
        served: the figures.
        rounds: how many they are of.
        golden: length of the golden.
        length: of the engine: the middle of what it may be, and the bounds of that widened by its error.
        drop: golden minus served, with the bounds that chance and what the figures leave open give it.
        position_drops: of each position that the engine tells, the same at the level divided among them.
        floor: upper bound of the dead control.
        visible: the smallest drop of the length that so many rounds show.
        found: why it fails; empty if it passes.
        looks_like: as in `GateVerdict`.
        notes: what these figures do not tell.
    """

    served: Served
    rounds: int
    golden: Interval
    length: Interval
    drop: Interval
    position_drops: tuple[Interval, ...]
    floor: float
    visible: float
    found: tuple[Problem, ...]
    looks_like: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the figures pass."""
        return not self.found


def judge_served(golden: AcceptanceGolden, served: Served) -> ServedVerdict:
    """Hold an engine's figures against the golden of its pair.

    Raises:
        AcceptanceError: no number of rounds is known; another depth shows; or the figures leave so much open that they may be a
            drop and may be none.
    """
    rounds = _rounds(served)
    _refuse_other_depth(golden, served)
    right, dead, before = golden.rows[0].length, golden.dead.length, measure(golden.counts)
    error = max(error_of(before.length), spread(before.per_position) / math.sqrt(before.rounds))
    own = _scaled(error, before, rounds)
    visible = Z * math.hypot(error, own)
    if right.value - served.low > visible >= right.value - served.high:
        raise AcceptanceError(
            f"{served.engine}'s length is between {served.low:.3f} and {served.high:.3f}, and a drop begins at"
            f" {right.value - visible:.3f}: these figures tell neither; ask for more exact ones (docs/served.md)"
        )
    value = (served.low + served.high) / 2 if served.length is None else served.length
    length = Interval(value, served.low - Z * own, served.high + Z * own)
    drop = Interval(right.value - value, right.value - served.high - visible, right.value - served.low + visible)
    positions = _position_drops(golden, before, served, rounds)
    found = [
        *dropped(drop, positions, length=drop.low > 0),
        *cleared(length, dead),
        *_told_enough(golden, before, rounds, visible),
    ]
    like = looks_like(golden.rows, length, served.per_position, rounds) if found else ()
    notes = (NOT_PAIRED, *(() if _mean_depth(served) else (_DEPTH_NOT_TOLD.format(depth=golden.depth),)))
    return ServedVerdict(served, rounds, right, length, drop, positions, dead.high, visible, tuple(found), like, notes)


def _told_enough(golden: AcceptanceGolden, before: Acceptance, rounds: int, visible: float) -> Iterator[Problem]:
    fewest = math.ceil(FEWEST_PROMPTS * before.rounds / before.prompts)
    if rounds < fewest:
        text = f"{rounds} rounds are fewer than {FEWEST_PROMPTS} prompts of the golden have ({fewest}): send more requests"
        yield Problem(TEETH, text)
    elif blunt := toothless(golden, visible, f"{rounds} rounds"):
        yield Problem(TEETH, f"{blunt}; send more requests")


def _rounds(served: Served) -> int:
    if not served.rounds:
        raise AcceptanceError(
            f"{served.engine}, {served.form}: how many rounds these figures are of is not known, so neither is how far chance"
            " moves them; give counters or the figures of responses (docs/served.md)"
        )
    return served.rounds


def _mean_depth(served: Served) -> float | None:
    return served.proposed / served.rounds if served.proposed and served.rounds else None


def _refuse_other_depth(golden: AcceptanceGolden, served: Served) -> None:
    """Chains of another depth have another length by themselves. A mean below the depth comes of rounds that were cut short."""
    mean, told = _mean_depth(served), len(served.per_position)
    if (mean is not None and math.ceil(mean - 1e-9) != golden.depth) or told > golden.depth:
        seen = f"{told} positions" if mean is None else f"{mean:.2f} drafts a round"
        raise AcceptanceError(
            f"{served.engine} proposed {seen}, and the golden is of chains of {golden.depth}: serve with as many (a tree counts"
            " all of its nodes), or measure a golden with that --depth"
        )


def _scaled(error: float, before: Acceptance, rounds: int) -> float:
    """The error of so many rounds on prompts of the golden's kind."""
    return error * math.sqrt(before.rounds / rounds)


def _position_drops(golden: AcceptanceGolden, before: Acceptance, served: Served, rounds: int) -> tuple[Interval, ...]:
    """Golden minus served of each position that both tell."""
    told = min(len(served.per_position), len(before.per_position))
    z = NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / max(told, 1))
    found = []
    for place in range(1, told + 1):
        asked = np.array([sum(item.proposed >= place for item in prompt.rounds) for prompt in golden.counts])
        right = np.array([sum(item.accepted >= place for item in prompt.rounds) for prompt in golden.counts])
        rate, own = share(right, asked), served.per_position[place - 1]
        # Where all prompts agree their spread tells nothing: at least the binomial error of one more right and one more wrong.
        least = (int(right.sum()) + 1) / (int(asked.sum()) + 2)
        error = max(error_of(rate), math.sqrt(least * (1 - least) / int(asked.sum())))
        wide = z * math.hypot(error, _scaled(error, before, rounds))
        gap = rate.value - own
        found.append(Interval(gap, gap - wide, gap + wide))
    return tuple(found)


def format_served_verdict(verdict: ServedVerdict) -> str:
    """The verdict as text; its first line says it all."""
    head = "PASS" if verdict.ok else "FAIL"
    lines = [
        f"{head}: {verdict.served.engine}'s acceptance length {verdict.length} of {verdict.rounds} rounds against"
        f" {verdict.golden} in the golden"
    ]
    lines += [f"  {problem.text}" for problem in verdict.found]
    if not verdict.ok:
        lines.append(f"  {format_likeness(verdict.looks_like)}")
    rates = " ".join(f"{item.value:+.3f}" for item in verdict.position_drops)
    lines.append(
        f"  golden - served {verdict.drop}{f', by position {rates}' if rates else ', positions not told'}; so many rounds show a"
        f" drop from {verdict.visible:.3f} on; dead control up to {verdict.floor:.3f}"
    )
    return "\n".join([*lines, *(f"  note: {note}" for note in verdict.notes)])

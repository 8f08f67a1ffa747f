"""Acceptance figures of a run, their intervals over prompts, and whether two runs can be told apart. numpy only.

The **acceptance length** is tokens gained over rounds, of all prompts together: 1 for a drafter that is never right, at most
k + 1 for chains of k. Prompts are the unit that is drawn: rounds of one prompt resemble each other, so an interval over rounds
would be too narrow. Two runs on the same prompts are compared prompt by prompt (paired), which takes out how hard each prompt is.

Intervals are percentile bootstrap intervals (Efron 1979) of the ratio of sums, with a fixed seed: the same counts give the same
interval.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.rounds import PromptRounds

RESAMPLES: Final = 10_000
SEED: Final = 20_251_130
LEVEL: Final = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its bootstrap interval, at `LEVEL` unless it is said."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Acceptance:
    """What a run on some prompts counted.

    Attributes:
        prompts: of which those with at least one round count in `length`'s interval.
        rounds, tokens, accepted, proposed: sums over all prompts.
        length: acceptance length with its interval over prompts.
        per_position: of each position 1..k: the share of the rounds that proposed so far which accepted so far.
        tokens_per_target_step: tokens of the answers over passes of the target, prefill included in both.
    """

    prompts: int
    rounds: int
    tokens: int
    accepted: int
    proposed: int
    length: Interval
    per_position: tuple[float, ...]
    tokens_per_target_step: float


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """How much longer run A accepts than run B on the same prompts.

    Attributes:
        difference: length of A minus that of B, with its paired interval.
        told_apart: the lower bound is above 0.
        prompts_needed: about how many prompts would tell them apart, if these do not; None if no number would, since the
            difference is not above 0.
    """

    difference: Interval
    told_apart: bool
    prompts_needed: int | None


def measure(prompts: Sequence[PromptRounds]) -> Acceptance:
    """The figures of a run.

    Raises:
        AcceptanceError: no prompt, or none with a round; a name twice.
    """
    tokens, rounds = _sums(prompts)
    flat = [item for prompt in prompts for item in prompt.rounds]
    deepest = max(item.proposed for item in flat)
    rates = []
    for place in range(1, deepest + 1):
        reached = [item for item in flat if item.proposed >= place]
        rates.append(sum(item.accepted >= place for item in reached) / len(reached))
    return Acceptance(
        prompts=len(prompts),
        rounds=len(flat),
        tokens=int(tokens.sum()),
        accepted=sum(item.accepted for item in flat),
        proposed=sum(item.proposed for item in flat),
        length=_interval(_ratio(tokens, rounds), tokens.sum() / rounds.sum()),
        per_position=tuple(rates),
        tokens_per_target_step=(int(tokens.sum()) + len(prompts)) / (len(flat) + len(prompts)),
    )


def difference(first: Sequence[PromptRounds], second: Sequence[PromptRounds]) -> Difference:
    """`first` minus `second`, paired by prompt.

    Raises:
        AcceptanceError: as `measure`; or the prompts are not the same.
    """
    names = [item.name for item in first]
    if names != [item.name for item in second]:
        raise AcceptanceError(
            f"paired runs need the same prompts in the same order: {len(first)} and {len(second)} prompts,"
            f" first difference at {_first_difference(names, [item.name for item in second])}"
        )
    (tokens_a, rounds_a), (tokens_b, rounds_b) = _sums(first), _sums(second)
    value = tokens_a.sum() / rounds_a.sum() - tokens_b.sum() / rounds_b.sum()
    found = _interval(_ratio(tokens_a, rounds_a) - _ratio(tokens_b, rounds_b), value)
    told = found.low > 0
    return Difference(found, told, None if told else _needed(found, len(first)))


def share(right: NDArray[Any], asked: NDArray[Any]) -> Interval:
    """The share of right answers of all prompts together, with its interval over prompts.

    Args:
        right, asked: counts by prompt, [prompts].
    """
    if not asked.sum():
        raise AcceptanceError("no question was asked, so no share of right answers is known")
    return _interval(_ratio(right, asked), float(right.sum() / asked.sum()))


def paired_share(first: NDArray[Any], second: NDArray[Any], asked: NDArray[Any], *, level: float = LEVEL) -> Interval:
    """Share of right answers of `first` minus that of `second` to the same questions, [prompts] each."""
    if not asked.sum():
        raise AcceptanceError("no question was asked, so no shares can be compared")
    return _interval(_ratio(first - second, asked), float((first - second).sum() / asked.sum()), level)


def _sums(prompts: Sequence[PromptRounds]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(tokens, rounds) by prompt, float64."""
    names = [item.name for item in prompts]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise AcceptanceError(f"prompt {twice!r} came twice: figures over prompts need each of them once, under its own name")
    tokens = np.array([item.tokens for item in prompts], dtype=np.float64)
    rounds = np.array([len(item.rounds) for item in prompts], dtype=np.float64)
    if not rounds.sum():
        raise AcceptanceError(
            f"{len(prompts)} prompts and not one round: every answer ended with its first token, or no prompt was given"
        )
    return tokens, rounds


@functools.lru_cache(maxsize=4)
def draws(prompts: int) -> NDArray[Any]:
    """How often each prompt is drawn in each resample, [RESAMPLES, prompts]; the same for the same number of prompts."""
    drawn = np.random.default_rng(SEED).multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    made: NDArray[Any] = drawn.astype(np.float64)
    made.flags.writeable = False  # it is kept
    return made


def _ratio(top: NDArray[Any], bottom: NDArray[Any]) -> NDArray[Any]:
    """sum(top) / sum(bottom) in each resample; NaN in one that drew no round at all."""
    weights = draws(len(top))
    below = weights @ bottom
    ratio: NDArray[Any] = np.divide(weights @ top, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratio


def _interval(resampled: NDArray[Any], value: float, level: float = LEVEL) -> Interval:
    tail = (1 - level) / 2
    low, high = np.nanquantile(resampled, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))


def _needed(found: Interval, prompts: int) -> int | None:
    """The interval's half below narrows with the root of the number of prompts; None where the difference is not above 0."""
    if found.value <= 0:
        return None
    return max(prompts + 1, math.ceil(prompts * ((found.value - found.low) / found.value) ** 2))


def _first_difference(first: Sequence[str], second: Sequence[str]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return f"{place}: {first[place : place + 1]} and {second[place : place + 1]}"

"""Whether a run accepts less than its golden did on the same prompts: the statistic of the gate. numpy only.

Two conditions, both needed: the paired 95% bootstrap interval of golden minus run lies above 0, and swapping the two by prompt
gives as large a drop at most in `CHANCE` of all draws. If nothing changed, golden and run of a prompt can be swapped, so the
second holds for few prompts and for few changed ones, where a bootstrap interval alone is too narrow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from specalign.acceptance.metrics import RESAMPLES, SEED, Interval, difference
from specalign.acceptance.rounds import PromptRounds

CHANCE: Final = 0.025
"""The side of a 95% interval that a drop lies on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """How much shorter a run accepts than its golden.

    Attributes:
        difference: golden minus run, with its paired interval.
        chance: how often swapping them by prompt drops as much.
    """

    difference: Interval
    chance: float

    @property
    def dropped(self) -> bool:
        """Whether chance does not explain it."""
        return self.difference.low > 0 and self.chance <= CHANCE


def paired_drop(golden: Sequence[PromptRounds], run: Sequence[PromptRounds]) -> Drop:
    """`golden` against `run`, paired by prompt.

    Raises:
        AcceptanceError: as `specalign.acceptance.difference`: other prompts, none with a round.
    """
    found = difference(golden, run).difference
    counts = np.array([[(item.tokens, len(item.rounds)) for item in side] for side in (golden, run)], dtype=np.float64)
    swapped = np.random.default_rng(SEED).integers(0, 2, (RESAMPLES, len(golden))).astype(np.float64)
    change = counts[1] - counts[0]
    first, second = counts[0].sum(0) + swapped @ change, counts[1].sum(0) - swapped @ change
    with np.errstate(divide="ignore", invalid="ignore"):
        drops = first[:, 0] / first[:, 1] - second[:, 0] / second[:, 1]
    as_large = int((drops >= found.value - 1e-12).sum()) + int(np.isnan(drops).sum())
    return Drop(found, (1 + as_large) / (1 + RESAMPLES))

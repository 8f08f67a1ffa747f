"""A drop is told where there is one, and seldom where there is none, also with few prompts and few that changed."""

from __future__ import annotations

import numpy as np
import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round
from specalign.acceptance.paired_drop import paired_drop


def drawn(rng: np.random.Generator, chances: np.ndarray, rounds: int = 20) -> list[PromptRounds]:
    """A run: drafts of each prompt are right with its chance, one after another."""
    made = []
    for name, chance in enumerate(chances):
        counts = [int(np.argmin([*(rng.random(4) < chance), False])) for _ in range(rounds)]
        made.append(PromptRounds(str(name), tuple(Round(4, count, count + 1) for count in counts)))
    return made


def dropped(seed: int, prompts: int, change: float) -> bool:
    rng = np.random.default_rng(seed)
    chances = np.clip(0.5 + rng.normal(0, 0.15, prompts), 0.02, 0.98)
    return paired_drop(drawn(rng, chances), drawn(rng, np.clip(chances - change, 0, 1))).dropped


@pytest.mark.parametrize("prompts", [8, 40])
def test_false_alarms_are_as_rare_as_said(prompts: int) -> None:
    assert sum(dropped(seed, prompts, 0.0) for seed in range(200)) <= 12  # 5 expected; more than 12 in 0.2% of all cases


def test_a_drop_is_caught_at_80_prompts() -> None:
    assert all(dropped(seed, 80, 0.1) for seed in range(20))


def test_four_changed_prompts_are_no_drop_though_the_bootstrap_interval_says_so() -> None:
    golden = drawn(np.random.default_rng(0), np.full(80, 0.5))
    less = [
        PromptRounds(item.name, tuple(Round(4, 0, 1) for _ in item.rounds)) if place < 4 else item
        for place, item in enumerate(golden)
    ]
    found = paired_drop(golden, less)
    assert found.difference.low > 0
    assert not found.dropped


def test_the_same_counts_and_other_prompts() -> None:
    golden = drawn(np.random.default_rng(0), np.full(10, 0.5))
    assert not paired_drop(golden, golden).dropped
    with pytest.raises(AcceptanceError, match="first difference at 9"):
        paired_drop(golden, golden[:9])

"""A drop is told where there is one, and seldom where there is none, also with few prompts and few that changed."""

from __future__ import annotations

import numpy as np
import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round
from specalign.acceptance.metrics import Interval
from specalign.acceptance.paired_drop import CHANCE, Drop, paired_drop


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


def test_a_drop_needs_both_an_interval_above_0_and_a_rare_swap() -> None:
    """Each alone is none; the bounds themselves: 0 is not above 0, and `CHANCE` is rare enough."""
    above, touching = Interval(0.1, 0.001, 0.2), Interval(0.1, 0.0, 0.2)
    assert Drop(above, CHANCE).dropped
    assert not Drop(above, CHANCE + 1e-9).dropped
    assert not Drop(touching, 0.0).dropped


def test_the_chance_is_that_of_all_swaps() -> None:
    """Of four prompts that all dropped alike, none or all swapped gives as large a drop, and all of them as large a rise: 1 in 16."""
    golden = [PromptRounds(str(i), (Round(2, 2, 3), Round(2, 0, 1))) for i in range(4)]
    run = [PromptRounds(str(i), (Round(2, 1, 2), Round(2, 0, 1))) for i in range(4)]
    found = paired_drop(golden, run)
    assert found.difference.value == pytest.approx(0.5)
    assert found.chance == pytest.approx(1 / 16, abs=0.01)
    assert paired_drop(run, golden).difference.value == pytest.approx(-0.5)
    assert paired_drop(run, golden).chance == 1.0
    assert paired_drop(golden, golden).chance == 1.0


def test_the_chance_is_never_0_and_a_swap_without_a_round_counts_for_it() -> None:
    """One that leaves a side without rounds says nothing, so it is no witness for a drop."""
    many = [PromptRounds(str(i), (Round(2, 2, 3),) * 9) for i in range(30)]
    none = [PromptRounds(str(i), (Round(2, 0, 1),) * 9) for i in range(30)]
    assert 0 < paired_drop(many, none).chance < 1e-3
    golden = [PromptRounds("a", (Round(2, 2, 3),)), PromptRounds("b", ())]
    run = [PromptRounds("a", ()), PromptRounds("b", (Round(2, 0, 1),))]
    assert paired_drop(golden, run).chance == pytest.approx(0.75, abs=0.02)  # of 4 swaps 2 leave a side empty, and 1 is the run

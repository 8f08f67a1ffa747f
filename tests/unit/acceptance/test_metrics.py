"""Figures by hand; intervals against scipy-free closed forms; and whether two runs are told apart, where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round, difference, measure
from specalign.acceptance.metrics import paired_share, share


def prompt(name: str, *accepted: int, proposed: int = 4) -> PromptRounds:
    return PromptRounds(name, tuple(Round(proposed, count, count + 1) for count in accepted))


def drawn(seed: int, prompts: int, rate: float, rounds: int = 20) -> list[PromptRounds]:
    """Prompts whose drafts are right with this chance, one after another."""
    rng = np.random.default_rng(seed)
    chances = np.clip(rate + rng.normal(0, 0.1, prompts), 0, 1)
    return [
        prompt(str(i), *(int(np.argmin([*(rng.random(4) < chance), False])) for _ in range(rounds)))
        for i, chance in enumerate(chances)
    ]


def test_figures_by_hand() -> None:
    found = measure([prompt("a", 4, 0), prompt("b", 1), PromptRounds("c", ())])
    assert (found.prompts, found.rounds, found.tokens, found.accepted, found.proposed) == (3, 3, 8, 5, 12)
    assert found.length.value == 8 / 3
    assert found.per_position == (2 / 3, 1 / 3, 1 / 3, 1 / 3)
    assert found.tokens_per_target_step == (8 + 3) / (3 + 3)


def test_positions_that_were_not_proposed_do_not_count_against_the_rate() -> None:
    found = measure([PromptRounds("a", (Round(2, 2, 3), Round(1, 0, 1), Round(2, 1, 2)))])
    assert found.per_position == (2 / 3, 1 / 2)


def test_a_dead_drafter_has_length_one_without_doubt() -> None:
    found = measure([prompt("a", 0, 0, 0), prompt("b", 0)])
    assert (found.length.value, found.length.low, found.length.high) == (1.0, 1.0, 1.0)


def test_the_interval_is_as_wide_as_the_normal_approximation_of_a_mean_says() -> None:
    """With as many rounds for each prompt the ratio of sums is a mean over prompts."""
    prompts = drawn(0, 200, 0.5)
    means = np.array([item.tokens / len(item.rounds) for item in prompts])
    found = measure(prompts).length
    half = 1.96 * means.std() / math.sqrt(len(means))
    assert found.value == pytest.approx(means.mean(), rel=1e-12)
    assert found.high - found.value == pytest.approx(half, rel=0.06)
    assert found.value - found.low == pytest.approx(half, rel=0.06)


def test_the_interval_covers_the_true_length_as_often_as_it_says() -> None:
    """rate r, chains of 4, no spread between prompts: the length is 1 + r + r^2 + r^3 + r^4."""
    rng, covered, runs = np.random.default_rng(1), 0, 200
    true = sum(0.5**power for power in range(5))
    for _ in range(runs):
        rounds = np.argmin(np.concatenate([rng.random((60, 10, 4)) < 0.5, np.zeros((60, 10, 1), bool)], axis=2), axis=2)
        found = measure([prompt(str(i), *map(int, row)) for i, row in enumerate(rounds)]).length
        covered += found.low <= true <= found.high
    assert 0.89 <= covered / runs <= 0.99  # 95% +- 4 standard deviations of 200 runs


def test_pairing_tells_apart_what_lies_within_the_spread_of_prompts() -> None:
    right = drawn(2, 80, 0.5)
    fault = [PromptRounds(p.name, tuple(Round(4, max(r.accepted - (i % 5 == 0), 0), max(r.accepted - (i % 5 == 0), 0) + 1)
             for i, r in enumerate(p.rounds))) for p in right]  # fmt: skip
    found = difference(right, fault)
    assert found.told_apart
    assert found.difference.low > 0
    assert measure(fault).length.high > measure(right).length.low  # unpaired, the intervals overlap
    assert found.prompts_needed is None


def test_equal_runs_are_not_told_apart_and_no_number_of_prompts_would() -> None:
    run = drawn(3, 20, 0.4)
    found = difference(run, run)
    assert (found.difference.value, found.told_apart, found.prompts_needed) == (0.0, False, None)


def test_a_small_difference_says_how_many_prompts_would_do() -> None:
    right, fault = drawn(4, 12, 0.50), drawn(5, 12, 0.48)
    found = difference(right, fault)
    assert not found.told_apart
    if found.difference.value > 0:
        assert found.prompts_needed is not None
        assert found.prompts_needed > 12
    else:
        assert found.prompts_needed is None


def test_the_number_of_prompts_is_that_at_which_the_lower_half_shrinks_to_the_difference() -> None:
    from specalign.acceptance.metrics import Interval, _needed

    assert _needed(Interval(0.1, -0.1, 0.3), 20) == 80  # half 0.2 must halve: four times the prompts
    assert _needed(Interval(-0.1, -0.2, 0.0), 20) is None
    assert _needed(Interval(0.1, 0.0, 0.2), 20) == 21


def test_the_same_counts_give_the_same_interval() -> None:
    run = drawn(6, 30, 0.5)
    assert measure(run) == measure(list(run))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "0 prompts and not one round"),
        ([PromptRounds("a", ())], "1 prompts and not one round"),
        ([prompt("a", 1), prompt("a", 2)], "prompt 'a' came twice"),
    ],
)
def test_nothing_to_measure_is_an_error(prompts: list[PromptRounds], message: str) -> None:
    with pytest.raises(AcceptanceError, match=message):
        measure(prompts)


def test_other_prompts_are_not_paired() -> None:
    with pytest.raises(AcceptanceError, match=r"first difference at 1: \['b'\] and \['c'\]"):
        difference([prompt("a", 1), prompt("b", 1)], [prompt("a", 1), prompt("c", 1)])


def test_shares_of_right_answers() -> None:
    right, worse, asked = np.array([3, 1]), np.array([1, 1]), np.array([4, 4])
    assert share(right, asked).value == 0.5
    assert paired_share(right, worse, asked).value == 0.25
    assert paired_share(right, right, asked).low == 0.0
    with pytest.raises(AcceptanceError, match="no question"):
        share(right, np.array([0, 0]))

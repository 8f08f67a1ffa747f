"""Sampled draft–verify decoding draws from the target's distribution, whatever the head proposes: chi-square against exact chances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specalign.draft import DraftError
from specalign.speculate import Sampling, TreeShape, decode_plain, decode_speculative

from .pairs import STATES, VOCABULARY, make_head, make_target

PROMPT = [3, 1, 4]
MANY = 4000
TEMPERATURE = 0.7


def exact(new: int) -> np.ndarray:
    """The chance of each answer of `new` tokens, from the model's own softmax over every beginning: [13] * new."""
    target = make_target()
    chances = np.ones(())
    for length in range(new):
        starts = np.stack(np.unravel_index(np.arange(VOCABULARY**length), (VOCABULARY,) * length), axis=-1) if length else [[]]
        tokens = torch.tensor([[*PROMPT, *map(int, start)] for start in starts])
        with torch.no_grad():
            step = (target.model(tokens).logits[:, -1].double() / TEMPERATURE).softmax(-1).numpy()
        chances = chances[..., None] * step.reshape((VOCABULARY,) * (length + 1))
    return chances


def chi_square(answers: list[tuple[int, ...]], chances: np.ndarray) -> float:
    """How many standard deviations the statistic lies above its mean; cells with less than 5 expected are put together."""
    counts = np.zeros(chances.shape)
    for answer in answers:
        counts[answer] += 1
    expected = chances.ravel() * len(answers)
    rare = expected < 5
    seen = np.append(counts.ravel()[~rare], counts.ravel()[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    kept = wanted > 0
    statistic = ((seen[kept] - wanted[kept]) ** 2 / wanted[kept]).sum()
    freedom = kept.sum() - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


SHAPES = {
    "a drawn chain of 2": TreeShape(2),
    "a chosen tree": TreeShape(2, 3),
    "a pruned tree": TreeShape(2, 4, 6),
    "all tokens that the small head has": TreeShape(1, 7),
}


@pytest.mark.parametrize("small", [False, True], ids=["the target's vocabulary", "its own vocabulary"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_answers_are_distributed_as_the_target_says(shape: TreeShape, small: bool) -> None:
    found = decode_speculative(
        make_target(), make_head(scale=0.3, small=small), STATES, [PROMPT] * MANY, 3, shape=shape,
        sampling=Sampling(TEMPERATURE, seed=5),
    )  # fmt: skip
    assert all(len(item.tokens) == 3 for item in found)
    assert chi_square([item.tokens for item in found], exact(3)) < 4
    accepted = sum(r.accepted for item in found for r in item.rounds)
    assert 0 < accepted < sum(r.proposed for item in found for r in item.rounds)


def test_the_statistic_finds_other_distributions() -> None:
    """The negative control: plain sampling at the right temperature passes, at another one it does not."""
    right = decode_plain(make_target(), [PROMPT] * MANY, 3, Sampling(TEMPERATURE, seed=6))
    wrong = decode_plain(make_target(), [PROMPT] * MANY, 3, Sampling(0.9, seed=6))
    assert chi_square([item.tokens for item in right], exact(3)) < 4
    assert chi_square([item.tokens for item in wrong], exact(3)) > 8


def test_the_same_seed_gives_the_same_answers_and_another_seed_others() -> None:
    def answers(seed: int) -> list[tuple[int, ...]]:
        found = decode_speculative(make_target(), make_head(), STATES, [PROMPT] * 8, 8, sampling=Sampling(1.0, seed))
        return [item.tokens for item in found]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)


def test_nodes_of_a_tree_are_not_drawn() -> None:
    from specalign.speculate.drafter import Drafter

    with pytest.raises(DraftError, match="chosen and not drawn"):
        Drafter(make_head(), 1).propose(TreeShape(2, 2), temperature=1.0)


def test_a_node_has_no_more_children_than_there_are_draft_tokens() -> None:
    with pytest.raises(DraftError, match="at most 7 children"):
        decode_speculative(make_target(), make_head(small=True), STATES, [PROMPT], 3, shape=TreeShape(2, 8))

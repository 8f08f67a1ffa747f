"""Biased, group-limited routing against a loop in numpy's fp32, one rounding a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.scoring import RoutingRule, route, route_scores, sum_in_order

F32 = np.float32


def best(values: list[Any], k: int) -> list[int]:
    return sorted(range(len(values)), key=lambda place: -values[place])[:k]


def looped(scores: list[Any], bias: list[Any], rule: RoutingRule) -> tuple[list[int], list[Any]]:
    """One token. Every number is an fp32 scalar, so that every operation rounds."""
    choices = [score + b for score, b in zip(scores, bias, strict=True)]
    size = len(scores) // rule.groups
    if rule.groups > 1:
        sums = []
        for group in range(rule.groups):
            own = choices[group * size : (group + 1) * size]
            total = F32(0)
            for place in best(own, rule.best_in_group):
                total = total + own[place]
            sums.append(total)
        kept = best(sums, rule.top_groups)
        mask = F32(-np.inf) if rule.outside == "-inf" else F32(0)
        choices = [choice if place // size in kept else mask for place, choice in enumerate(choices)]
    ids = best(choices, rule.top_k)
    if rule.order == "engine":
        threshold = choices[ids[-1]]
        ids = sorted(ids, key=lambda place: (choices[place] == threshold, place))
    weights = [scores[place] for place in ids]
    if rule.renormalize:
        total = F32(0)
        for weight in weights:
            total = total + weight
        weights = [weight / (total + F32(1e-20)) for weight in weights]
    return ids, [weight * F32(rule.scale) for weight in weights]


RULES = [
    RoutingRule(top_k=6, scale=2.5),
    RoutingRule(top_k=6, scale=2.5, order="engine"),
    RoutingRule(top_k=6, groups=4, top_groups=2, scale=1.7),
    RoutingRule(top_k=6, groups=4, top_groups=2, scale=1.7, order="engine"),
    RoutingRule(top_k=6, groups=4, top_groups=2, outside="zero"),
    RoutingRule(top_k=4, groups=4, top_groups=1, best_in_group=4),
    RoutingRule(top_k=1, groups=8, top_groups=3, renormalize=False, scale=0.1),
]


@pytest.mark.parametrize("coarse", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("rule", RULES, ids=range(len(RULES)))
def test_ids_and_weights_are_those_of_the_loop_bit_for_bit(rule: RoutingRule, coarse: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    scores, bias = torch.rand(400, 16, generator=generator), torch.randn(16, generator=generator) * 0.3
    if coarse:
        scores, bias = (scores * 8).round() / 8, (bias * 8).round() / 8
    made = route_scores(scores, rule, bias=bias)
    assert made.ids.dtype == torch.int64
    assert made.weights.dtype == torch.float32
    wanted = [looped(list(row), list(bias.numpy()), rule) for row in scores.numpy()]
    assert made.ids.tolist() == [ids for ids, _ in wanted]
    weights = torch.from_numpy(np.array([weights for _, weights in wanted], dtype=F32))
    assert torch.equal(made.weights.view(torch.int32), weights.view(torch.int32))


def test_the_sum_goes_slot_by_slot() -> None:
    half_ulp = 2.0**-24
    slots = torch.tensor([[1.0, half_ulp, half_ulp], [half_ulp, half_ulp, 1.0]])
    assert sum_in_order(slots).tolist() == [1.0, 1.0 + 2.0**-23]
    assert sum_in_order(torch.zeros(2, 0)).tolist() == [0.0, 0.0]


def test_scores_of_zero_weigh_zero() -> None:
    made = route_scores(torch.zeros(1, 4), RoutingRule(top_k=2, scale=2.5))
    assert made.weights.tolist() == [[0.0, 0.0]]


def test_a_tie_of_groups_goes_to_the_lowest() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.25, 0.5, 0.5, 0.25, 0.125, 0.125]])
    made = route_scores(scores, RoutingRule(top_k=2, groups=4, top_groups=1))
    assert made.ids.tolist() == [[0, 1]]
    made = route_scores(scores.flip(1), RoutingRule(top_k=4, groups=4, top_groups=2))
    assert made.ids.sort(1).values.tolist() == [[2, 3, 4, 5]]


def test_a_mask_of_zero_lets_an_expert_outside_in_where_choices_are_negative() -> None:
    scores, bias = torch.tensor([[0.5, 0.25, 0.125, 0.125]]), torch.tensor([-0.6, -0.6, -0.6, -0.6])
    inside, outside = (
        route_scores(scores, RoutingRule(top_k=1, groups=2, top_groups=1, outside=mask), bias=bias).ids.tolist()
        for mask in ("-inf", "zero")
    )
    assert [inside, outside] == [[[0]], [[2]]]


def test_the_bias_moves_the_choice_and_no_weight() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    made = route(logits, RoutingRule(top_k=1, renormalize=False), bias=torch.tensor([9.0, 0.0, 0.0]))
    assert made.ids.tolist() == [[0]]
    assert made.weights.tolist() == [[0.5]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_logits_are_scored_in_fp32(dtype: torch.dtype) -> None:
    logits = torch.randn(20, 8).to(dtype)
    for score in ("sigmoid", "softmax"):
        rule = RoutingRule(top_k=3, score=score)
        assert torch.equal(route(logits, rule).weights, route(logits.float(), rule).weights)


def test_gradients_reach_the_logits_of_the_chosen_experts() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]], requires_grad=True)
    route(logits, RoutingRule(top_k=1, renormalize=False, scale=2.0)).weights.sum().backward()
    sigma = torch.sigmoid(torch.tensor(3.0))
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0.0, pytest.approx(float(2 * sigma * (1 - sigma)), rel=1e-6), 0.0]]


def test_no_tokens_have_no_routes() -> None:
    made = route(torch.zeros(0, 8), RoutingRule(top_k=2, groups=2, top_groups=1))
    assert made.ids.shape == made.weights.shape == (0, 2)


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_the_first_nan_is_named(score: str) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = float("nan")
    with pytest.raises(RoutingError, match=r"logits\[1, 2\] is nan \(token 1, expert 2; 1 in all\)"):
        route(logits, RoutingRule(top_k=1, score=score))


SCORES = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: RoutingRule(top_k=-1), r"top_k = -1"),
        (lambda: RoutingRule(top_k=1, groups=2, top_groups=3), r"top_groups = 3 of 2"),
        (lambda: RoutingRule(top_k=1, best_in_group=0), r"best_in_group = 0"),
        (lambda: RoutingRule(top_k=1, score="relu"), r"score = 'relu': expected one of"),
        (lambda: RoutingRule(top_k=1, outside="none"), r"outside = 'none': expected one of"),
        (lambda: route_scores(SCORES, RoutingRule(top_k=1, groups=3)), r"8 experts in 3 groups"),
        (lambda: route_scores(SCORES, RoutingRule(top_k=1, groups=8)), r"best_in_group = 2 of groups of 1 experts"),
        (lambda: route_scores(SCORES, RoutingRule(top_k=3, groups=4)), r"top_k = 3, but 1 of 4 groups of 2 leave 2 experts"),
        (lambda: route_scores(SCORES, RoutingRule(top_k=9)), r"top_k = 9, but 1 of 1 groups of 8 leave 8"),
        (lambda: route_scores(SCORES, RoutingRule(top_k=1), bias=torch.zeros(2)), r"bias is \[2\]: expected \[8\]"),
        (lambda: route_scores(SCORES.bfloat16(), RoutingRule(top_k=1)), r"bfloat16 \[2, 8\]: expected fp32"),
        (lambda: route(SCORES[0], RoutingRule(top_k=1)), r"logits are float32 \[8\]"),
        (
            lambda: route_scores(SCORES, RoutingRule(top_k=1), bias=torch.tensor([0.0] * 7 + [-float("inf")])),
            r"choices\[0, 7\] is -inf \(token 0, expert 7; 2 in all\)",
        ),
    ],
)
def test_what_cannot_be_routed_is_refused(made: Any, message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        made()


def test_six_slots_tell_the_order_of_the_sum() -> None:
    """The weights of this row are others if the sum is `torch.sum`'s, whatever that does with six, or if it goes backwards."""
    generator = torch.Generator().manual_seed(0)
    slots: Tensor = torch.rand(1000, 6, generator=generator)
    assert (sum_in_order(slots) != sum_in_order(slots.flip(1))).float().mean() > 0.3

"""From a router's logits to experts and weights, as DeepSeek-V3 and GLM route: a bias for the choice, groups, weights without it.

In this order, all of it in fp32 (arXiv 2412.19437 §2.1.2; transformers' `DeepseekV3TopkRouter` and `Glm4MoeTopkRouter`;
megatron-core's `topk_routing_with_score_function`):

1. score = sigmoid(logit), or softmax over the row;
2. choice = score + bias; the bias moves the choice and never a weight;
3. a group's score is the sum of its best choices, highest first; the best groups stay, ties to the lowest group; experts outside
   are masked by −inf (`outside="-inf"`: transformers' DeepSeek-V3 and GLM, megatron-core) or by 0 (`outside="zero"`: A.X K2 and,
   for softmax scores, Mistral 4 in transformers). Where choices inside are below 0 they differ: an expert outside wins by its 0;
4. the k best choices by `ordered_topk`;
5. weight = the score, gathered; if renormalized, divided by their sum + 1e-20, the sum taken slot by slot from slot 0 on with one
   rounding a step; at last multiplied by the scale.

The order of the slots is part of the weights' bits, since fp32 addition depends on it. Steps 2 to 5 are exact from given scores;
sigmoid and softmax themselves may differ by a few units in the last place between devices and libraries.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.topk import SCORE_DTYPES, CheckNan, Order, ordered_topk, refuse_nan

Score: TypeAlias = Literal["sigmoid", "softmax"]
Outside: TypeAlias = Literal["-inf", "zero"]

SUM_FLOOR = 1e-20
"""Added to the sum of the weights, so that scores that are all 0 give weights of 0."""

_OUTSIDE = {"-inf": float("-inf"), "zero": 0.0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """How a router chooses.

    Attributes:
        top_k: experts a token takes.
        score: `sigmoid` or `softmax`.
        groups: equal runs of experts; 1 is no grouping.
        top_groups: groups that stay.
        best_in_group: choices that a group's score sums: 2 in transformers; megatron-core takes top_k // top_groups.
        outside: what masks the experts of other groups.
        renormalize: divide the weights by their sum. (megatron-core does so for a sigmoid with top_k > 1 only.)
        scale: what the weights are multiplied by, last.
        order: the order of the slots, see `specalign.routing.topk`.

    Raises:
        RoutingError: numbers that cannot be together; those that need the number of experts are looked at by `route`.
    """

    top_k: int
    score: Score = "sigmoid"
    groups: int = 1
    top_groups: int = 1
    best_in_group: int = 2
    outside: Outside = "-inf"
    renormalize: bool = True
    scale: float = 1.0
    order: Order = "sorted"

    def __post_init__(self) -> None:
        for name in ("top_k", "groups", "top_groups", "best_in_group"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise RoutingError(f"{name} = {getattr(self, name)!r}: expected a whole number")
        if self.top_k < 0 or self.best_in_group < 1 or not 1 <= self.top_groups <= self.groups:
            numbers = (
                f"top_k = {self.top_k}, best_in_group = {self.best_in_group}, top_groups = {self.top_groups} of {self.groups}"
            )
            raise RoutingError(f"{numbers}: expected top_k ≥ 0, best_in_group ≥ 1 and 1 ≤ top_groups ≤ groups")
        if not math.isfinite(self.scale):
            raise RoutingError(f"scale = {self.scale!r}: expected a finite number")
        for name, allowed in (("score", Score), ("outside", Outside), ("order", Order)):
            if getattr(self, name) not in get_args(allowed):
                raise RoutingError(f"{name} = {getattr(self, name)!r}: expected one of {list(get_args(allowed))}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """`ids` int64 `[T, k]` and `weights` fp32 `[T, k]`, slot by slot; gradients flow through the weights to the logits."""

    ids: Tensor
    weights: Tensor


def route(logits: Tensor, rule: RoutingRule, *, bias: Tensor | None = None, check_nan: CheckNan = "sync") -> Routing:
    """Choose experts for each token and weigh them. The arithmetic and its sources: see the module.

    Args:
        logits: `[T, E]`, fp32, bf16 or fp16; taken to fp32 first.
        rule: how.
        bias: `[E]`, added to the scores in fp32 for the choice.
        check_nan: see `ordered_topk`.

    Raises:
        RoutingError: a NaN among the logits or a choice that is not finite (a bias of −inf), with the first (token, expert);
            shapes or numbers that cannot be together.
    """
    if logits.ndim != 2 or logits.dtype not in SCORE_DTYPES:
        raise RoutingError(f"logits are {_kind(logits)}: expected [tokens, experts] in fp32, bf16 or fp16")
    _check_mode(check_nan)
    if check_nan == "sync":
        refuse_nan(logits, "logits")
    scores = logits.float().sigmoid() if rule.score == "sigmoid" else logits.float().softmax(-1)
    return route_scores(scores, rule, bias=bias, check_nan=check_nan)


def route_scores(scores: Tensor, rule: RoutingRule, *, bias: Tensor | None = None, check_nan: CheckNan = "sync") -> Routing:
    """As `route`, from fp32 scores `[T, E]` that are there already: the part that is exact on every device."""
    _check_shapes(scores, rule, bias)
    _check_mode(check_nan)
    with torch.no_grad():
        choices = scores if bias is None else scores + bias.float()
        if check_nan == "sync":
            refuse_nan(choices, "choices", infinite=True)  # −inf would tie with the experts that are masked
        if rule.groups > 1:
            choices = choices.masked_fill(~_in_best_groups(choices, rule), _OUTSIDE[rule.outside])
        ids = ordered_topk(choices, rule.top_k, order=rule.order, check_nan="off").ids
    weights = scores.gather(1, ids)
    if rule.renormalize:
        weights = weights / (sum_in_order(weights) + SUM_FLOOR)[:, None]
    return Routing(ids, weights * rule.scale)


def sum_in_order(slots: Tensor) -> Tensor:
    """Sums `[T]` of `[T, k]`, slot 0 first, each addition rounded. `torch.sum` leaves its order to the device and the shape."""
    total = torch.zeros_like(slots[:, 0]) if slots.shape[1] else slots.new_zeros(len(slots))
    for column in slots.unbind(1):
        total = total + column
    return total


def _in_best_groups(choices: Tensor, rule: RoutingRule) -> Tensor:
    """bool `[T, E]`: the experts of the groups that stay."""
    tokens, experts = choices.shape
    size = experts // rule.groups
    best = ordered_topk(choices.reshape(tokens * rule.groups, size), rule.best_in_group, check_nan="off").values
    group_scores = sum_in_order(best).view(tokens, rule.groups)
    kept = ordered_topk(group_scores, rule.top_groups, check_nan="off").ids
    group_of = torch.arange(experts, device=choices.device) // size
    return (kept[:, :, None] == group_of).any(1)


def _check_shapes(scores: Tensor, rule: RoutingRule, bias: Tensor | None) -> None:
    if scores.ndim != 2 or scores.dtype != torch.float32:
        raise RoutingError(f"scores are {_kind(scores)}: expected fp32 [tokens, experts]")
    experts = scores.shape[1]
    if bias is not None and bias.shape != (experts,):
        raise RoutingError(f"bias is {list(bias.shape)}: expected [{experts}], one for each expert")
    if bias is not None and bias.device != scores.device:
        raise RoutingError(f"bias is on {bias.device}, scores on {scores.device}: put both on one device")
    if experts % rule.groups:
        raise RoutingError(f"{experts} experts in {rule.groups} groups: groups are of one size")
    size = experts // rule.groups
    if rule.groups > 1 and rule.best_in_group > size:
        raise RoutingError(f"best_in_group = {rule.best_in_group} of groups of {size} experts: expected {size} at most")
    if rule.top_k > size * rule.top_groups:
        raise RoutingError(
            f"top_k = {rule.top_k}, but {rule.top_groups} of {rule.groups} groups of {size} leave"
            f" {size * rule.top_groups} experts to choose from: an expert outside would be taken"
        )


def _check_mode(check_nan: str) -> None:
    """A word that is not known must not mean "off"."""
    if check_nan not in get_args(CheckNan):
        raise RoutingError(f"check_nan = {check_nan!r}: expected one of {list(get_args(CheckNan))}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

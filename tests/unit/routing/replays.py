"""A router small enough to read, and the microbatches that go through it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specalign.routing.replay import RoutingReplay

EXPERTS, TOPK, TOKENS = 8, 2, 5


def replay(name: str = "router", **options: Any) -> RoutingReplay:
    return RoutingReplay(name, num_experts=EXPERTS, topk=TOPK, **options)


def scores(seed: int, tokens: int = TOKENS) -> Tensor:
    return torch.randn(tokens, EXPERTS, generator=torch.Generator().manual_seed(seed))


def ids(seed: int, tokens: int = TOKENS) -> Tensor:
    """`[tokens, k]` int64, distinct in each row."""
    order = torch.rand(tokens, EXPERTS, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    return order[:, :TOPK].clone()


def choose(values: Tensor, topk: int, num_groups: int | None = None, group_topk: int | None = None) -> tuple[Tensor, Tensor]:
    """Megatron's own choice."""
    found = torch.topk(values, topk, dim=1)
    return found.values, found.indices


def route(one: RoutingReplay, values: Tensor) -> tuple[Tensor, Tensor]:
    return one.get_replay_topk(values, TOPK, None, None, choose)


class Layer(torch.nn.Module):
    """x + the chosen scores' products, so that the output and all gradients depend on which experts were chosen."""

    def __init__(self, one: RoutingReplay, seed: int = 0) -> None:
        super().__init__()
        self.replay, self._chosen = one, list[Tensor]()
        weight = torch.randn(EXPERTS, EXPERTS, generator=torch.Generator().manual_seed(100 + seed))
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        probs, chosen = route(self.replay, x @ self.weight)
        self._chosen.append(chosen.detach().clone())
        return x + torch.zeros_like(x).scatter(1, chosen, probs.softmax(dim=1))

    @property
    def seen(self) -> list[list[list[int]]]:
        """The ids of each call. Waits for the GPU."""
        return [chosen.tolist() for chosen in self._chosen]


def recomputed(layer: torch.nn.Module, x: Tensor, *, reentrant: bool = False) -> Tensor:
    found: Tensor = checkpoint(layer, x, use_reentrant=reentrant)
    return found


def inputs(count: int) -> list[Tensor]:
    return [scores(50 + at).requires_grad_() for at in range(count)]

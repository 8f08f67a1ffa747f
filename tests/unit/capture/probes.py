"""Probe models whose boundaries are known in closed form.

Block i adds 2**i to every element, so that boundary b of a stream that starts with e is e + 2**b - 1: exact in every float dtype for
the few blocks used here, and different for every boundary. The final norm multiplies by 1000.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 4
BLOCKS = 6


def start(rows: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float32) -> Tensor:
    """The embedding output: 0 everywhere, so that boundary b is 2**b - 1."""
    return torch.zeros((*rows, WIDTH), dtype=dtype)


def boundary(b: int, like: Tensor) -> Tensor:
    return torch.full_like(like, float(2**b - 1))


class PlainBlock(nn.Module):
    """Takes and returns hidden (transformers)."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.scale.to(hidden_states.dtype) * 2.0**self.number


class ResidualBlock(PlainBlock):
    """Takes and returns (hidden, residual), and adds in place, as fused add-and-norm kernels do (SGLang, vLLM)."""

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if residual is None:
            residual = hidden_states.clone()
        else:
            residual.add_(hidden_states)
        return torch.full_like(residual, 2.0**self.number), residual


class InPlaceBlock(PlainBlock):
    """Changes the stream in place and returns it: an alias of it would change with every later block."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.add_(2.0**self.number)


class TimesThousand(nn.Module):
    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return hidden * 1000.0
        total = hidden + residual
        return total * 1000.0, total


class Stack(nn.Module):
    """A model of the usual shape: embedding, layers, norm. `blocks` are plain ones unless given."""

    def __init__(self, blocks: list[nn.Module] | None = None, *, residual: bool = False) -> None:
        super().__init__()
        make = ResidualBlock if residual else PlainBlock
        self.layers = nn.ModuleList(blocks if blocks is not None else [make(number) for number in range(BLOCKS)])
        self.norm = TimesThousand()
        self.residual = residual

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.residual:
            for layer in self.layers:
                hidden = layer(hidden)
            return self.norm(hidden)
        residual = None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return self.norm(hidden, residual)[0]


class Wrapped(nn.Module):
    """A causal language model around a stack: `model.layers`, `model.norm`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.model(hidden) * 2.0

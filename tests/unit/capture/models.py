"""Models of the shapes that engines and trainers have, made of the probe blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.unit.capture.probes import BLOCKS, InPlaceBlock, PlainBlock, Stack, TimesThousand, Wrapped


class MegatronLayer(PlainBlock):
    """Keyword arguments behind `*args, **kwargs`, sequence first, `(hidden, context)` back."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.layer_number = number + 1

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        return kwargs["hidden_states"] + 2.0**self.number, None


class MegatronDecoder(nn.Module):
    def __init__(self, first: int = 0, last: int = BLOCKS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MegatronLayer(number) for number in range(first, last))
        self.final_layernorm = TimesThousand()

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            hidden, _ = layer(hidden_states=hidden, attention_mask=mask, rotary_pos_emb=mask)
        return self.final_layernorm(hidden)


class GPTModel(nn.Module):
    def __init__(self, first: int = 0, last: int = BLOCKS) -> None:
        super().__init__()
        self.decoder = MegatronDecoder(first, last)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(hidden, torch.ones(1))


class HeldStream:
    """A residual stream outside of the tensors, as SGLang 0.5.23 keeps it in its ForwardBatch."""

    def __init__(self) -> None:
        self.residual: Tensor | None = None

    def snapshot(self, hidden: Tensor) -> Tensor:
        return hidden.clone() if self.residual is None else hidden + self.residual


class Batch:
    residual_stream: HeldStream | None = None


class HoldingBlock(PlainBlock):
    def forward(self, positions: Tensor, hidden_states: Tensor, forward_batch: Batch) -> Tensor:  # type: ignore[override]
        held = forward_batch.residual_stream
        assert held is not None
        held.residual = held.snapshot(hidden_states)
        return torch.full_like(hidden_states, 2.0**self.number)


class HoldingStack(Stack):
    def __init__(self) -> None:
        super().__init__([HoldingBlock(number) for number in range(BLOCKS)])

    def forward(self, hidden: Tensor) -> Tensor:
        batch = Batch()
        batch.residual_stream = HeldStream()
        for layer in self.layers:
            hidden = layer(torch.arange(3.0), hidden, batch)
        return self.norm(hidden, batch.residual_stream.residual)[0]


class Peft(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, hidden: Tensor) -> Tensor:
        return self.base_model.model(hidden)


class Outer(nn.Module):
    """What DDP and Float16Module look like from outside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, hidden: Tensor) -> Tensor:
        return self.module(hidden)


MODELS = {
    "plain": lambda: Stack(),
    "in place": lambda: Stack([InPlaceBlock(number) for number in range(BLOCKS)]),
    "causal LM": lambda: Wrapped(Stack()),
    "wrapped twice": lambda: Outer(Wrapped(Stack())),
    "PEFT": lambda: Peft(Wrapped(Stack())),
    "SGLang pair": lambda: Wrapped(Stack(residual=True)),
    "SGLang held": lambda: Wrapped(HoldingStack()),
    "Megatron": lambda: GPTModel(),
}

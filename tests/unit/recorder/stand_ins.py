"""Models that behave like engines' where it matters to a recorder: SGLang's blocks, norms and batches, Megatron's chunks."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8


class ForwardMode(enum.IntEnum):
    """SGLang 0.5.16's numbers."""

    EXTEND = 1
    DECODE = 2
    MIXED = 3
    IDLE = 4
    TARGET_VERIFY = 5
    DRAFT_EXTEND_V2 = 6


class EagleVerifyInput(SimpleNamespace): ...


class EagleDraftInput(SimpleNamespace): ...


def forward_batch(mode: ForwardMode, lengths: list[int], begins: list[int], rids: list[str] | None, **more: Any) -> Any:
    """A ForwardBatch with `lengths` rows for each request, from position `begins`."""
    positions = [begin + place for begin, length in zip(begins, lengths, strict=True) for place in range(length)]
    rows = len(positions)
    fields: dict[str, Any] = {
        "forward_mode": mode,
        "input_ids": torch.randint(0, 64, (rows,), generator=torch.Generator().manual_seed(rows)),
        "positions": torch.tensor(positions, dtype=torch.int64),
        "seq_lens": torch.tensor([begin + length for begin, length in zip(begins, lengths, strict=True)]),
        "rids": rids,
        "spec_info": None,
        "extend_seq_lens": None,
        "extend_seq_lens_cpu": None,
    }
    if mode in (ForwardMode.EXTEND, ForwardMode.MIXED):
        fields |= {"extend_seq_lens": torch.tensor(lengths), "extend_seq_lens_cpu": lengths}
    return SimpleNamespace(**(fields | more))


class RMSNorm(nn.Module):
    """Adds in place into the residual that it gets, as SGLang's fused norm does."""

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Any:
        if residual is not None:
            residual.add_(hidden)
            hidden.copy_(residual * 0.5)
            return hidden, residual
        return hidden * 0.5


class DecoderLayer(nn.Module):
    """`(positions, hidden_states, forward_batch, residual) -> (hidden, residual)`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm()
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(
        self, positions: Tensor, hidden_states: Tensor, forward_batch: Any, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Inner(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer(number) for number in range(layers))
        self.norm = RMSNorm()

    def forward(self, input_ids: Tensor, positions: Tensor, forward_batch: Any) -> Tensor:
        hidden, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, forward_batch, residual)
        if not len(hidden):
            return hidden
        normed: Tensor = self.norm(hidden, residual)[0]
        return normed


class SglangModel(nn.Module):
    """Called by SGLang as `model.forward(...)`, past the hooks of this outermost module."""

    def __init__(self, layers: int = 3, *, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.model = Inner(layers)

    def forward(self, input_ids: Tensor, positions: Tensor, forward_batch: Any) -> Tensor:
        return self.model(input_ids, positions, forward_batch)

    def run(self, batch: Any) -> Tensor:
        with torch.no_grad():
            return self.forward(batch.input_ids, batch.positions, batch)

    def truth(self, batch: Any) -> dict[str, Tensor]:
        """The boundaries, computed again without a hook, each sum in a tensor of its own."""
        inner, found = self.model, {}
        with torch.no_grad():
            hidden, residual = inner.embed_tokens(batch.input_ids), None
            found["boundary.0"] = hidden.clone()
            for number, layer in enumerate(inner.layers):
                hidden, residual = layer(batch.positions, hidden, batch, residual)
                found[f"boundary.{number + 1}"] = hidden + residual
                found[f"module.layers.{number}.mlp"] = hidden.clone()
                found[f"module.layers.{number}.residual_fp32"] = hidden.float() + residual.float()
            found["post_norm"] = inner.norm(hidden, residual)[0]
        return found


def register_forward_hooks(model: nn.Module, specs: list[dict[str, Any]], resolve: Any) -> None:
    """What SGLang 0.5.16 does with `--forward-hooks`, once for each model runner."""
    import fnmatch

    for spec in specs:
        hook = resolve(spec["hook_factory"])(spec.get("config") or {})
        if hook is None:
            continue
        for name, module in model.named_modules():
            if any(fnmatch.fnmatch(name, pattern) for pattern in spec["target_modules"]):
                module.register_forward_hook(hook)


class TransformerLayer(nn.Module):
    """Megatron's: keyword arguments, sequence first, `(hidden, context)` back, numbered globally from 1."""

    def __init__(self, layer_number: int) -> None:
        super().__init__()
        self.layer_number = layer_number
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        hidden = kwargs["hidden_states"]
        return hidden + torch.tanh(self.mlp(hidden)), None


class GPTModel(nn.Module):
    """One chunk: layers `first` .. `last` - 1 of `total`."""

    def __init__(self, first: int, last: int, total: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_layers=total, hidden_size=WIDTH, sequence_parallel=False)
        self.embedding = nn.Embedding(64, WIDTH) if first == 0 else None
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(TransformerLayer(number + 1) for number in range(first, last))
        if last == total:
            self.decoder.final_layernorm = nn.LayerNorm(WIDTH)
        self.received: Tensor | None = None

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Any, packed_seq_params: Any = None) -> Tensor:
        hidden = self.received if self.embedding is None else self.embedding(input_ids).transpose(0, 1)
        for layer in self.decoder.layers:
            hidden, _ = layer(hidden_states=hidden, attention_mask=attention_mask)
        return self.decoder.final_layernorm(hidden) if hasattr(self.decoder, "final_layernorm") else hidden


class Float16Module(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.config = module.config

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

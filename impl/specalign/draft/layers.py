"""The Llama layers of an EAGLE3 head: attention, MLP, and the two kinds of decoder layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from specalign.draft.cache import LayerKV
from specalign.draft.config import Eagle3Config
from specalign.draft.norms import RMSNorm
from specalign.draft.rope import rotate


def visible(query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys each query sees: its own position and earlier ones, at most `window` of them.

    Args:
        query: positions of the queries, int [..., T].
        key: positions of the keys, int [..., S].
        window: tokens seen, the query's own included (transformers' and vLLM's meaning); None for all.

    Returns:
        bool [..., 1, T, S], with an axis for the heads.
    """
    distance = query.unsqueeze(-1) - key.unsqueeze(-2)
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return seen.unsqueeze(-3)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; q, k and v take `inputs` features."""

    def __init__(self, config: Eagle3Config, inputs: int, **factory: Any) -> None:
        super().__init__()
        self.head_dim, bias = config.head_dim, config.attention_bias
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(inputs, queries, bias=bias, **factory)
        self.k_proj = nn.Linear(inputs, keys, bias=bias, **factory)
        self.v_proj = nn.Linear(inputs, keys, bias=bias, **factory)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias, **factory)

    def forward(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], seen: torch.Tensor, past: LayerKV | None
    ) -> tuple[torch.Tensor, LayerKV]:
        """Attends from `x` to `past` and `x`.

        Args:
            x: [..., T, inputs].
            turn: cos and sin of x's positions, [..., T, head_dim].
            seen: bool [..., 1, T, S] over past and new keys.
            past: earlier keys and values.

        Returns:
            [..., T, hidden_size], and keys and values of all S tokens.
        """
        query, keys, values = self.project(x, turn)
        new = LayerKV(keys, values)
        kv = new if past is None else past.extended(new)
        keys, values = (self.for_queries(part) for part in (kv.keys, kv.values))
        return self.output(functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)), kv

    def project(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [..., heads, T, head_dim], keys and values [..., key-value heads, T, head_dim] of x [..., T, inputs]."""
        cos, sin = (part.unsqueeze(-3) for part in turn)
        query, key = (rotate(self._heads(part), cos, sin) for part in (self.q_proj(x), self.k_proj(x)))
        return query, key, self._heads(self.v_proj(x))

    def for_queries(self, part: torch.Tensor) -> torch.Tensor:
        """Keys or values [..., key-value heads, S, head_dim], repeated for the query heads that share them."""
        return part.repeat_interleave(self.groups, dim=-3)

    def output(self, mixed: torch.Tensor) -> torch.Tensor:
        """[..., heads, T, head_dim] → [..., T, hidden_size]."""
        out: torch.Tensor = self.o_proj(mixed.transpose(-3, -2).flatten(-2))
        return out

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:-1], -1, self.head_dim).transpose(-3, -2)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Eagle3Config, **factory: Any) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias, **factory)
        self.up_proj = nn.Linear(hidden, inner, bias=bias, **factory)
        self.down_proj = nn.Linear(inner, hidden, bias=bias, **factory)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] → the same."""
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Eagle3Layer(nn.Module):
    """One layer. The first attends over cat(input_layernorm(embeds), hidden_norm(hidden)), later ones over the normed hidden.

    The residual of the first layer is `hidden`, or hidden_norm(hidden) with `norm_before_residual`.
    """

    def __init__(self, config: Eagle3Config, index: int, **factory: Any) -> None:
        super().__init__()
        self.first = index == 0
        self.norm_before_residual = config.norm_before_residual
        self.window = config.window(index)
        self.later_norm = config.later_norm
        for name in ("input_layernorm", "hidden_norm") if self.first else (config.later_norm,):
            self.add_module(name, RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **factory))
        self.self_attn = Attention(config, config.hidden_size * (2 if self.first else 1), **factory)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **factory)
        self.mlp = MLP(config, **factory)

    def forward(
        self,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        seen: torch.Tensor,
        past: LayerKV | None,
    ) -> tuple[torch.Tensor, LayerKV]:
        """`embeds` and `hidden` [..., T, hidden_size] → the residual stream after this layer, and its keys and values."""
        taken, residual = self.inputs(embeds, hidden)
        attended, kv = self.self_attn(taken, turn, seen, past)
        return self.after_attention(residual, attended), kv

    def after_attention(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The residual stream after this layer, [..., hidden_size], out of what attention gave."""
        hidden = residual + attended
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out

    def inputs(self, embeds: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention takes, and the residual that its result is added to."""
        if not self.first:
            return self.get_submodule(self.later_norm)(hidden), hidden
        normed = self.get_submodule("hidden_norm")(hidden)
        taken = torch.cat((self.get_submodule("input_layernorm")(embeds), normed), dim=-1)
        return taken, normed if self.norm_before_residual else hidden

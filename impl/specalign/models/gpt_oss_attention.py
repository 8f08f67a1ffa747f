"""Attention of GPT-OSS: grouped queries, a learned sink for each head, full or sliding layers.

After OpenAI's torch reference (`gpt_oss/torch/model.py`) and transformers' `models/gpt_oss/modeling_gpt_oss.py`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from specalign.models.gpt_oss_config import GptOssConfig
from specalign.models.kv_cache import KVCache
from specalign.models.rope import rotate


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What all blocks of one forward share.

    Attributes:
        cos, sin: `[tokens, head_dim / 2]`, in the dtype of the model.
        masks: for each window in use (None: a full layer) bool `[tokens, rows]`, true where a token sees a row.
        cache: where keys and values go, or None.
    """

    cos: Tensor
    sin: Tensor
    masks: dict[int | None, Tensor]
    cache: KVCache | None = None


def visible(past: int, tokens: int, window: int | None, device: torch.device) -> Tensor:
    """Which rows the next `tokens` tokens see after `past` earlier ones.

    A token sees itself and what came before it; with a window, `window` rows in all. Rows that none of them sees are left out.

    Returns:
        bool `[tokens, rows]`, the last row being that of the last token.
    """
    first = 0 if window is None else max(0, past - window + 1)
    distance = torch.arange(past, past + tokens, device=device)[:, None] - torch.arange(first, past + tokens, device=device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def attend(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention whose denominator has one more term: exp of the head's sink.

    Args:
        queries: `[batch, tokens, shared, group, head_dim]`: query head h is head h % group of the group h // group.
        keys, values: `[batch, rows, shared, head_dim]`.
        sinks: `[shared, group]`.
        mask: bool `[tokens, rows]`, true where a token sees a row.

    Returns:
        The shape and dtype of `queries`.
    """
    scale = queries.shape[-1] ** -0.5
    scores = torch.einsum("btkgd,bskd->bkgts", queries, keys) * scale
    scores = scores.masked_fill(~mask, float("-inf"))
    sink = sinks[None, :, :, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
    scores = torch.cat((scores, sink), dim=-1)
    # The subtraction changes nothing in exact arithmetic; transformers rounds after it, and so do we, for the same bits in bf16.
    weights = torch.softmax(scores - scores.amax(-1, keepdim=True), dim=-1)[..., :-1]
    return torch.einsum("bkgts,bskd->btkgd", weights, values)


class Attention(nn.Module):
    """The attention half of block `layer`, without norm and residual."""

    def __init__(self, config: GptOssConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = config.windows[layer]
        self.head_dim = config.head_dim
        self.shared = config.num_key_value_heads
        self.group = config.num_attention_heads // config.num_key_value_heads
        width, bias = config.num_attention_heads * config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, self.shared * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, self.shared * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=bias)
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """`[batch, tokens, hidden]` to the same shape; appends to `step.cache`."""
        queries = self.q_proj(x).unflatten(-1, (self.shared, self.group, self.head_dim))
        keys = self.k_proj(x).unflatten(-1, (self.shared, self.head_dim))
        values = self.v_proj(x).unflatten(-1, (self.shared, self.head_dim))
        queries, keys = rotate(queries, step.cos, step.sin), rotate(keys, step.cos, step.sin)
        if step.cache is not None:
            keys, values = step.cache.append(self.layer, keys, values)
        sinks = self.sinks.view(self.shared, self.group)
        mixed = attend(queries, keys, values, sinks, step.masks[self.window])
        out: Tensor = self.o_proj(mixed.flatten(-3))
        return out

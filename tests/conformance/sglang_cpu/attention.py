"""Dense attention in place of SGLang's paged kernels, through the interface by which its models call an attention backend."""

from __future__ import annotations

from typing import Any

import torch


class DenseAttention:
    """Causal attention over one sequence that is given whole: no cache, so one forward sees all of its tokens.

    Honours what the layer asks for: its scale, its number of key-value heads, its sliding window (a query at i sees keys
    i - window ... i, which is how SGLang counts: `sliding_window_size` is the config's window minus 1, and -1 means none), and
    `sinks`, one logit a head that takes part in the softmax and has no value.
    """

    token_to_kv_pool = None
    req_to_token_pool = None

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q `[tokens, heads * head_dim]`, k and v `[tokens, kv_heads * head_dim]` in one dtype → `[tokens, heads * head_dim]`.

        An argument that is not named here is a TypeError: the engine asks for something that this backend would ignore.
        """
        tokens, heads, kv_heads = q.shape[0], layer.tp_q_head_num, layer.tp_k_head_num
        q = q.reshape(tokens, heads, -1).transpose(0, 1)
        k, v = (t.reshape(tokens, kv_heads, -1).transpose(0, 1).repeat_interleave(heads // kv_heads, 0) for t in (k, v))
        scores = (q @ k.transpose(1, 2)) * layer.scaling
        scores = scores.masked_fill(_hidden(tokens, layer.sliding_window_size), float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores.dtype).view(heads, 1, 1).expand(heads, tokens, 1)], dim=-1)
        weights = scores.softmax(-1)[..., :tokens]
        return (weights @ v).transpose(0, 1).reshape(tokens, -1)


def _hidden(tokens: int, window: int | None) -> torch.Tensor:
    """`[tokens, tokens]` bool: the keys that a query must not see."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    hidden = distance < 0
    return hidden if window is None or window < 0 else hidden | (distance > window)

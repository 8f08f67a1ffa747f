"""The mixture of experts of GPT-OSS: a router with a bias, top-k, then softmax over the chosen; clamped SwiGLU experts.

After OpenAI's torch reference (`gpt_oss/torch/model.py`) and transformers' `models/gpt_oss/modeling_gpt_oss.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specalign.models.gpt_oss_config import GptOssConfig


def swiglu(x: Tensor, *, alpha: float, limit: float) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), with gate cut off above `limit` and up on both sides.

    Args:
        x: `[..., 2 * width]`, interleaved: gate at the even places, up at the odd ones.

    Returns:
        `[..., width]`.
    """
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(min=-limit, max=limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))


class Router(nn.Module):
    """Which experts each token takes, and with what weight."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.zeros(config.num_local_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.num_local_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[rows, hidden]` to weights, and experts as int64, each `[rows, top_k]`, best first. A row's weights sum to 1."""
        logits = torch.nn.functional.linear(x, self.weight, self.bias)
        best, experts = torch.topk(logits, self.top_k, dim=-1)
        return torch.softmax(best, dim=-1), experts


class Experts(nn.Module):
    """The weights of all experts of a layer, stored as transformers stores them: `[experts, in, out]`."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        self.gate_up_proj = nn.Parameter(torch.zeros(experts, hidden, 2 * inner))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.zeros(experts, inner, hidden))
        self.down_proj_bias = nn.Parameter(torch.zeros(experts, hidden))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of each row's experts.

        The terms are added in ascending order of the experts' numbers, each row once for an expert, so the result is the same
        from run to run, on a GPU too.

        Args:
            x: `[rows, hidden]`.
            weights, chosen: `[rows, top_k]`, as `Router` returns them.

        Returns:
            `[rows, hidden]`.
        """
        out = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            row, slot = torch.where(chosen == expert)
            inner = torch.einsum("rh,hi->ri", x[row], self.gate_up_proj[expert]) + self.gate_up_proj_bias[expert]
            inner = swiglu(inner, alpha=self.alpha, limit=self.limit)
            term = torch.einsum("ri,ih->rh", inner, self.down_proj[expert]) + self.down_proj_bias[expert]
            out.index_add_(0, row, (term * weights[row, slot, None]).to(out.dtype))
        return out


class MoE(nn.Module):
    """The second half of a block, without norm and residual."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, hidden]` to the same shape."""
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows)
        out: Tensor = self.experts(rows, weights, chosen)
        return out.view(x.shape)

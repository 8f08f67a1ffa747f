"""The norm of the target models."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, all of it in fp32, the product cast last (as GPT-OSS does; Llama casts before it)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` in any float dtype, to the same shape and dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * wide).to(x.dtype)

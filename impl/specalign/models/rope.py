"""Rotary position embeddings of the target models: cos and sin for positions, and the rotation of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotary:
    """cos and sin for given positions.

    Not a module: `model.to(torch.bfloat16)` would round frequencies that lie in a buffer, and every angle with them.
    """

    def __init__(self, frequencies: Tensor, concentration: float) -> None:
        self.frequencies = frequencies
        self.concentration = concentration
        self._on: dict[torch.device, Tensor] = {frequencies.device: frequencies}

    def cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Angles and their functions in fp32, then cast.

        Args:
            positions: integers `[tokens]`.
            dtype: of the result.

        Returns:
            cos and sin times the concentration, each `[tokens, head_dim / 2]`.
        """
        frequencies = self._on.setdefault(positions.device, self.frequencies.to(positions.device))
        angles = torch.einsum("t,d->td", positions.float(), frequencies)
        return (angles.cos() * self.concentration).to(dtype), (angles.sin() * self.concentration).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (i, i + head_dim/2) of `x`.

    Args:
        x: `[batch, tokens, ..., head_dim]`, with any number of head axes.
        cos, sin: `[tokens, head_dim / 2]`, in the dtype of `x`.

    Returns:
        The shape and dtype of `x`.
    """
    spread = (-1,) + (1,) * (x.dim() - 3) + (cos.shape[-1],)
    cos, sin = cos.view(spread), sin.view(spread)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

"""Frequencies of rotary position embeddings: the plain kind and YaRN (https://arxiv.org/abs/2309.00071).

Frequencies are computed in fp32 in the same order of operations as transformers (`modeling_rope_utils.py`,
`_compute_yarn_parameters`), since an error of one unit in the last place grows with the position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim) for i = 0 .. head_dim/2 - 1, radians a position: fp32 `[head_dim / 2]` on the CPU."""
    return 1.0 / _wavelengths(head_dim, theta)


def yarn_frequencies(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Tensor:
    """YaRN's "NTK by parts": fast dimensions keep their frequency, slow ones are divided by `factor`, a ramp in between.

    Args:
        head_dim: width of a head; even.
        theta: base of the wavelengths.
        factor: how many times longer the context became.
        original_length: positions seen in pre-training.
        beta_fast, beta_slow: rotations over `original_length` at which the ramp begins and ends.
        truncate: round the edges of the ramp outwards to whole dimensions (YaRN's own code; GPT-OSS does not).

    Returns:
        Radians a position: fp32 `[head_dim / 2]` on the CPU.
    """
    wavelengths = _wavelengths(head_dim, theta)
    low, high = (_dimension_of(beta, head_dim, theta, original_length) for beta in (beta_fast, beta_slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high  # a step in place of a ramp; keeps the division finite
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep


def yarn_concentration(factor: float, *, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """What cos and sin are multiplied by: 0.1 ln(factor) + 1, or the quotient of two of these when both scales are set."""

    def at(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    return at(mscale) / at(mscale_all_dim) if mscale and mscale_all_dim else at(1.0)


def _wavelengths(head_dim: int, theta: float) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, device="cpu").to(torch.float32) / head_dim
    powers: Tensor = theta**exponents
    return powers


def _dimension_of(rotations: float, head_dim: int, theta: float, length: int) -> float:
    """The (fractional) dimension whose wave turns `rotations` times within `length` positions."""
    return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

"""MXFP4 weights: 4-bit floats with one power-of-two scale for 32 of them (OCP Microscaling Formats 1.0).

GPT-OSS checkpoints keep the experts' matrices so: `*_blocks` holds two e2m1 codes a byte, the first one in the low half, and
`*_scales` one e8m0 exponent for each block.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specalign.models.errors import WeightsError

BLOCK: Final = 32
"""Elements that share one scale."""

E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each 4-bit code: sign, two bits of exponent with bias 1, one bit of mantissa (OCP MX, table 5)."""

E8M0_VALUES: Final = (*(2.0 ** (code - 127) for code in range(255)), float("nan"))
"""The value of each scale byte: 2^(code - 127), and NaN for 255 (OCP MX, table 7)."""


def dequantize_mxfp4(blocks: Tensor, scales: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The matrices of all experts, transposed to the layout that transformers computes with.

    Products are formed in fp32 and cast once: exact in fp32 and bf16 wherever the result is not above their range.

    Args:
        blocks: uint8 `[experts, rows, blocks, 16]`.
        scales: uint8 `[experts, rows, blocks]`.
        dtype: of the result.

    Returns:
        `[experts, blocks * 32, rows]`, contiguous, on the device of `blocks`.

    Raises:
        WeightsError: other dtypes or shapes, or a value that is NaN (scale 255) or beyond `dtype`.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise WeightsError(f"MXFP4 blocks and scales must be uint8, not {blocks.dtype} and {scales.dtype}")
    if blocks.dim() != 4 or blocks.shape[-1] != BLOCK // 2 or blocks.shape[:-1] != scales.shape:
        raise WeightsError(
            f"MXFP4 blocks must be [experts, rows, blocks, {BLOCK // 2}] with scales [experts, rows, blocks], not"
            f" {list(blocks.shape)} and {list(scales.shape)}"
        )
    experts, rows, count, _ = blocks.shape
    out = torch.empty(experts, count * BLOCK, rows, dtype=dtype, device=blocks.device)
    for expert in range(experts):  # one at a time: the fp32 copy of all experts of a 20B model would take 4 GB a layer
        out[expert] = _dequantize(blocks[expert], scales[expert]).view(rows, count * BLOCK).T
        if not out[expert].isfinite().all():
            raise WeightsError(
                f"MXFP4 expert {expert} holds values that are not finite in {dtype}: the largest scale code is"
                f" {int(scales[expert].max())} (255 is NaN); the file is damaged, or {dtype} is too narrow for it"
            )
    return out


def _dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 `[rows, blocks, 16]` and `[rows, blocks]` to fp32 `[rows, blocks, 32]`."""
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=blocks.device)
    powers = torch.tensor(E8M0_VALUES, dtype=torch.float32, device=blocks.device)
    codes = torch.stack((blocks & 0xF, blocks >> 4), dim=-1).flatten(-2)
    return values[codes.int()] * powers[scales.int()][..., None]

"""1x128 FP8 (E4M3) quantization of scattered rows, with a true division at both places: its torch reference and the shapes.

For each group of 128 columns: scale = max(absmax, 1e-10) / 448, value = x / scale, rounded to nearest even and held within ±448.
All in FP32 with IEEE division. This is the rule of the activations of SGLang 0.5.15 with slime's deterministic patch, on Hopper.
A NaN makes its group NaN, where the engines' kernels turn it into ±448 without a word.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specalign.routing.reference import scatter_reference

GROUP: Final = 128
FLOOR: Final = 1e-10
LARGEST: Final = 448.0
_ALIGNED_ROWS: Final = 4  # 16 bytes of FP32, which the tensor memory accelerator wants of a column of scales


def quantize_reference(rows: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 values `[M, H]` and FP32 scales `[M, H / 128]` of rows `[M, H]`."""
    groups = rows.float().reshape(len(rows), rows.shape[1] // GROUP, GROUP)
    largest = groups.abs().amax(dim=2).clamp(min=FLOOR)
    # By a tensor: on CUDA, torch divides by a number of Python by way of its reciprocal, which rounds twice.
    scales = largest / torch.full_like(largest, LARGEST)
    values = (groups / scales[:, :, None]).clamp(-LARGEST, LARGEST)
    return values.flatten(1).to(torch.float8_e4m3fn), scales


def scatter_quantize_reference(
    rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor, mn_major: bool
) -> tuple[Tensor, Tensor]:
    """What `quantize_reference` gives of the scattered rows; padding rows are rows of zeros, whose scale is that of the floor.

    Args:
        mn_major: whether a group's scales lie row by row, columns of `num_rows` rounded up to 4, as DeepGEMM reads them. The
            shape of the scales is the same.
    """
    values, scales = empty_quantized(rows, num_rows, mn_major)
    found = quantize_reference(scatter_reference(rows, positions, num_rows, padding_rows))
    values.copy_(found[0])
    scales.copy_(found[1])
    return values, scales


def empty_quantized(rows: Tensor, num_rows: int, mn_major: bool) -> tuple[Tensor, Tensor]:
    """Room for the values and scales of so many rows."""
    width = rows.shape[1]
    values = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=rows.device)
    if not mn_major:
        return values, torch.empty(num_rows, width // GROUP, dtype=torch.float32, device=rows.device)
    # Zeros, since a copy engine reads the rows that round the column up.
    column = -(-num_rows // _ALIGNED_ROWS) * _ALIGNED_ROWS
    return values, torch.zeros(width // GROUP, column, dtype=torch.float32, device=rows.device).t()[:num_rows]

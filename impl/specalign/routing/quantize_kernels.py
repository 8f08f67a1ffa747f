"""Scatter and 1x128 FP8 quantization in one pass, in Triton: a token is quantized once, and written to each of its places.

Class *exact*: the bits of `quantize.scatter_quantize_reference`, but for which NaN a group with a non-finite element becomes.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specalign.routing.blanks import NOBODY, Blanks
from specalign.routing.launches import Launch, launch_for
from specalign.routing.quantize import FLOOR, GROUP, LARGEST, empty_quantized
from specalign.routing.scatter_kernels import width_of, write_blank


def scatter_quantize_triton(
    rows: Tensor, positions: Tensor, num_rows: int, blanks: Blanks, mn_major: bool, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """`quantize.scatter_quantize_reference` as a kernel: contiguous arguments, checked before."""
    values, scales = empty_quantized(rows, num_rows, mn_major)
    launch = launch or launch_for("scatter quantize", rows.shape[1])
    codes = values.view(torch.uint8)
    programs = len(rows) + len(blanks.rows)
    if values.numel() and programs:
        _scatter_quantize[(programs, launch.parts)](
            rows, positions, blanks.rows, codes, scales, scales.stride(0), scales.stride(1), len(rows), rows.shape[1],
            positions.shape[1], blanks.listed, NOBODY, GROUP, FLOOR, LARGEST, launch.block, launch.parts,
            num_warps=launch.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return values, scales


@triton.jit
def _scatter_quantize(rows, positions, blanks, values, scales, row_stride, group_stride, tokens, WIDTH: tl.constexpr,
                      SLOTS: tl.constexpr, LISTED: tl.constexpr, NOBODY: tl.constexpr, GROUP: tl.constexpr, FLOOR: tl.constexpr,
                      LARGEST: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK // GROUP)
    if token >= tokens:
        row = write_blank(blanks, values, token - tokens, WIDTH, LISTED, NOBODY, BLOCK, PARTS)
        empty = tl.div_rn(tl.full(groups.shape, FLOOR, tl.float32), tl.full(groups.shape, LARGEST, tl.float32))
        for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
            group = begin // GROUP + groups
            tl.store(
                scales + row * row_stride + group.to(tl.int64) * group_stride, empty, mask=group * GROUP < width_of(row, WIDTH)
            )
        return
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        group = begin // GROUP + groups
        x = tl.load(rows + token * WIDTH + begin + columns, mask=begin + columns < WIDTH, other=0.0).to(tl.float32)
        scale, quantized = quantize_groups(x, FLOOR, LARGEST)
        codes = quantized.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        for slot in tl.static_range(SLOTS):
            place = tl.load(positions + token * SLOTS + slot).to(tl.int64)
            width = width_of(place, WIDTH)
            tl.store(values + place * WIDTH + begin + columns, codes, mask=begin + columns < width)
            tl.store(scales + place * row_stride + group.to(tl.int64) * group_stride, scale, mask=group * GROUP < width)


@triton.jit
def quantize_groups(x, FLOOR: tl.constexpr, LARGEST: tl.constexpr):
    """Scales `[groups]` and FP32 values `[groups, GROUP]` within the range of FP8, with IEEE divisions."""
    nan = tl.max((x != x).to(tl.int32), axis=1) > 0
    largest = tl.where(nan, float("nan"), tl.maximum(tl.max(tl.abs(x), axis=1), FLOOR))
    scale = tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32))
    quantized = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    quantized = tl.where(quantized > LARGEST, LARGEST, quantized)
    return scale, tl.where(quantized < -LARGEST, -LARGEST, quantized)

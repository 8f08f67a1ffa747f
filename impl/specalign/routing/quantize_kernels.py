"""Scatter and 1x128 FP8 quantization in one pass, in Triton: a token is quantized once, and written to each of its places.

Class *exact*: the bits of `quantize.scatter_quantize_reference`, but for which NaN a group with a non-finite element becomes.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from specalign.routing.blanks import NOBODY, Blanks
from specalign.routing.launches import Launch
from specalign.routing.quantize import FLOOR, GROUP, LARGEST, empty_quantized
from specalign.routing.scatter_kernels import width_of

QUANTIZE: Final = Launch()


def scatter_quantize_triton(
    rows: Tensor, positions: Tensor, num_rows: int, blanks: Blanks, mn_major: bool, launch: Launch = QUANTIZE
) -> tuple[Tensor, Tensor]:
    """`quantize.scatter_quantize_reference` as a kernel: contiguous arguments, checked before."""
    values, scales = empty_quantized(rows, num_rows, mn_major)
    programs = len(rows) + len(blanks.rows)
    if values.numel() and programs:
        _scatter_quantize[(programs, launch.parts)](
            rows, positions, blanks.rows, values, scales, scales.stride(0), scales.stride(1), len(rows), rows.shape[1],
            positions.shape[1], blanks.listed, NOBODY, GROUP, FLOOR, LARGEST, launch.block, launch.parts,
            num_warps=launch.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return values, scales


@triton.jit
def _scatter_quantize(rows, positions, blanks, values, scales, row_stride, group_stride, tokens, WIDTH: tl.constexpr,
                      SLOTS: tl.constexpr, LISTED: tl.constexpr, NOBODY: tl.constexpr, GROUP: tl.constexpr, FLOOR: tl.constexpr,
                      LARGEST: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK // GROUP)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        group = begin // GROUP + groups
        if program < tokens:
            x = tl.load(rows + program * WIDTH + begin + columns, mask=begin + columns < WIDTH, other=0.0).to(tl.float32)
            scale, quantized = quantize_groups(x, FLOOR, LARGEST)
            quantized = quantized.to(values.dtype.element_ty)
            for slot in tl.static_range(SLOTS):
                place = tl.load(positions + program * SLOTS + slot).to(tl.int64)
                width = width_of(place, WIDTH)
                tl.store(values + place * WIDTH + begin + columns, quantized, mask=begin + columns < width)
                tl.store(scales + place * row_stride + group.to(tl.int64) * group_stride, scale, mask=group * GROUP < width)
        else:
            place = program - tokens
            width = WIDTH
            if LISTED:
                place = tl.load(blanks + place).to(tl.int64)
            else:
                width = tl.where(tl.load(blanks + place) == NOBODY, WIDTH, 0)
            scale, quantized = quantize_groups(columns.to(tl.float32) * 0.0, FLOOR, LARGEST)
            tl.store(
                values + place * WIDTH + begin + columns, quantized.to(values.dtype.element_ty), mask=begin + columns < width
            )
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

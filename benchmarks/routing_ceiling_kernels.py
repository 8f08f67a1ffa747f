"""The same reads and writes as the routing kernels, in straight lines: what their traffic can reach on this GPU at all.

`rows` and `planes` are cut into blocks of elements. A program moves one block of `rows` and the same block of each of the planes.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def spread(rows: Tensor, planes: Tensor, block: int, warps: int) -> None:
    """One read, `k` writes: `planes` `[k, T, H]` become copies of `rows` `[T, H]`."""
    _spread[(triton.cdiv(rows.numel(), block),)](rows, planes, rows.numel(), len(planes), block, num_warps=warps)


def add_up(planes: Tensor, rows: Tensor, block: int, warps: int) -> None:
    """`k` reads, one write."""
    _add_up[(triton.cdiv(rows.numel(), block),)](planes, rows, rows.numel(), len(planes), block, num_warps=warps)


def scale(rows: Tensor, planes: Tensor, results: Tensor, block: int, warps: int) -> None:
    """1 + k reads, `k` writes."""
    _scale[(triton.cdiv(rows.numel(), block),)](rows, planes, results, rows.numel(), len(planes), block, num_warps=warps)


@triton.jit
def _spread(rows, planes, size, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(rows + place, mask=place < size)
    for plane in tl.static_range(PLANES):
        tl.store(planes + plane * size.to(tl.int64) + place, values, mask=place < size)


@triton.jit
def _add_up(planes, rows, size, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for plane in tl.static_range(PLANES):
        total += tl.load(planes + plane * size.to(tl.int64) + place, mask=place < size, other=0.0).to(tl.float32)
    tl.store(rows + place, total.to(rows.dtype.element_ty), mask=place < size)


@triton.jit
def _scale(rows, planes, results, size, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(rows + place, mask=place < size, other=0.0).to(tl.float32)
    for plane in tl.static_range(PLANES):
        where = plane * size.to(tl.int64) + place
        found = tl.load(planes + where, mask=place < size, other=0.0).to(tl.float32)
        tl.store(results + where, (values * found).to(results.dtype.element_ty), mask=place < size)

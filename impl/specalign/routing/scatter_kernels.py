"""Token rows to expert-major rows, and the gradient back, in Triton. Class *exact*: the bits of `reference.py`.

A program owns columns of one token: it reads them once and writes them to each of the token's rows. Further programs write zeros
to the rows that no route goes to. No element has two writers, if no two routes go to one row.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specalign.routing.blanks import NOBODY, Blanks
from specalign.routing.launches import Launch, launch_for


def scatter_triton(rows: Tensor, positions: Tensor, num_rows: int, blanks: Blanks, launch: Launch | None = None) -> Tensor:
    """`reference.scatter_reference` as a kernel: contiguous arguments, checked before."""
    result = rows.new_empty(num_rows, rows.shape[1])
    launch = launch or launch_for("scatter", rows.shape[1])
    programs = len(rows) + len(blanks.rows)
    if result.numel() and programs:
        _scatter[(programs, launch.parts)](
            rows, positions, blanks.rows, result, len(rows), rows.shape[1], positions.shape[1], blanks.listed, NOBODY,
            launch.block, launch.parts, launch.store, num_warps=launch.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return result


def scatter_backward_triton(grad: Tensor, positions: Tensor, launch: Launch | None = None) -> Tensor:
    """`reference.scatter_backward_reference` as a kernel."""
    result = grad.new_empty(len(positions), grad.shape[1])
    launch = launch or launch_for("scatter backward", grad.shape[1])
    if result.numel():
        _scatter_backward[(len(positions), launch.parts)](
            grad, positions, result, grad.shape[1], positions.shape[1], launch.block, launch.parts,
            num_warps=launch.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return result


@triton.jit
def width_of(place, WIDTH: tl.constexpr):
    """Columns to handle of a row: none, if there is no row."""
    return tl.where(place >= 0, WIDTH, 0)


@triton.jit
def write_blank(blanks, result, which, WIDTH: tl.constexpr, LISTED: tl.constexpr, NOBODY: tl.constexpr, BLOCK: tl.constexpr,
                PARTS: tl.constexpr):  # fmt: skip
    """Zeros to the row that `which` of the blanks names: a listed row, or row `which` if it has no owner. Gives it, or -1."""
    if LISTED:
        row = tl.load(blanks + which).to(tl.int64)
    else:
        row = tl.where(tl.load(blanks + which) == NOBODY, which, -1).to(tl.int64)
    zeros = tl.zeros((BLOCK,), dtype=result.dtype.element_ty)
    columns = tl.arange(0, BLOCK)
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        tl.store(result + row * WIDTH + begin + columns, zeros, mask=begin + columns < width_of(row, WIDTH))
    return row


@triton.jit
def _scatter(rows, positions, blanks, result, tokens, WIDTH: tl.constexpr, SLOTS: tl.constexpr, LISTED: tl.constexpr,
             NOBODY: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STORE: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    if token >= tokens:
        write_blank(blanks, result, token - tokens, WIDTH, LISTED, NOBODY, BLOCK, PARTS)
        return
    columns = tl.arange(0, BLOCK)
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        inside = begin + columns < WIDTH
        values = tl.load(rows + token * WIDTH + begin + columns, mask=inside)
        for slot in tl.static_range(SLOTS):
            place = tl.load(positions + token * SLOTS + slot).to(tl.int64)
            tl.store(
                result + place * WIDTH + begin + columns,
                values,
                mask=begin + columns < width_of(place, WIDTH),
                cache_modifier=STORE,
            )


@triton.jit
def _scatter_backward(grad, positions, result, WIDTH: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
                      PARTS: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    dtype = result.dtype.element_ty
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        inside = begin + columns < WIDTH
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for slot in tl.static_range(SLOTS):
            place = tl.load(positions + token * SLOTS + slot).to(tl.int64)
            taken = begin + columns < width_of(place, WIDTH)
            added = tl.load(grad + place * WIDTH + begin + columns, mask=taken, other=0.0)
            total = (total + added.to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(result + token * WIDTH + begin + columns, total.to(dtype), mask=inside)

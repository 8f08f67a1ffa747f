"""Expert-major rows to weighted sums of the tokens, and the gradients, in Triton. Class *exact*: the bits of `reference.py`.

A program owns columns of one token. Forward, it adds the token's rows in slot order by FMA. Backward, it holds all slots at once,
since a weight's gradient sums over the columns: lanes of `TREE` columns, whose tree is written as sums of two, so that no layout
of threads can change its order.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specalign.routing.blanks import NOBODY, Blanks
from specalign.routing.launches import Launch, launch_for
from specalign.routing.reference import TREE
from specalign.routing.scatter_kernels import width_of, write_blank

_WARPS: Final = 4
_STEPS: Final = TREE.bit_length() - 1


def gather_triton(rows: Tensor, positions: Tensor, weights: Tensor, launch: Launch | None = None) -> Tensor:
    """`reference.gather_reference` as a kernel: contiguous arguments, checked before."""
    result = rows.new_empty(len(positions), rows.shape[1])
    launch = launch or launch_for("gather", rows.shape[1])
    if result.numel():
        _gather[(len(positions), launch.parts)](
            rows, positions, weights, result, rows.shape[1], positions.shape[1], launch.block, launch.parts,
            num_warps=launch.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return result


def gather_backward_triton(
    grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, blanks: Blanks
) -> tuple[Tensor, Tensor]:
    """`reference.gather_backward_reference` as a kernel."""
    routes = torch.empty_like(rows)
    dots = torch.zeros(positions.shape, dtype=torch.float32, device=rows.device)
    programs = len(positions) + len(blanks.rows)
    if routes.numel() and programs:
        _gather_backward[(programs,)](
            grad, rows, positions, weights, blanks.rows, routes, dots, len(positions), rows.shape[1], positions.shape[1],
            triton.next_power_of_2(max(1, positions.shape[1])), blanks.listed, NOBODY, TREE, _STEPS,
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return routes, dots


@triton.jit
def _gather(rows, positions, weights, result, WIDTH: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
            PARTS: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    for begin in range(tl.program_id(1) * BLOCK, WIDTH, PARTS * BLOCK):
        inside = begin + columns < WIDTH
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for slot in tl.static_range(SLOTS):
            place = tl.load(positions + token * SLOTS + slot).to(tl.int64)
            weight = tl.load(weights + token * SLOTS + slot)
            taken = begin + columns < width_of(place, WIDTH)
            values = tl.load(rows + place * WIDTH + begin + columns, mask=taken, other=0.0).to(tl.float32)
            total = tl.where(place >= 0, tl.fma(values, weight, total), total)
        tl.store(result + token * WIDTH + begin + columns, total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _gather_backward(grad, rows, positions, weights, blanks, routes, dots, tokens, WIDTH: tl.constexpr, SLOTS: tl.constexpr,
                     SLOTS_2: tl.constexpr, LISTED: tl.constexpr, NOBODY: tl.constexpr, TREE: tl.constexpr,
                     STEPS: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    if token >= tokens:
        write_blank(blanks, routes, token - tokens, WIDTH, LISTED, NOBODY, TREE, 1)
        return
    slots = tl.arange(0, SLOTS_2)
    places = tl.load(positions + token * SLOTS + slots, mask=slots < SLOTS, other=-1).to(tl.int64)
    factors = tl.load(weights + token * SLOTS + slots, mask=slots < SLOTS, other=0.0)
    lanes = tl.zeros((SLOTS_2, TREE), dtype=tl.float32)
    for begin in range(0, WIDTH, TREE):
        lanes = _columns_backward(grad + token * WIDTH, rows, routes, places, factors, lanes, begin, WIDTH, SLOTS_2, TREE)
    for step in tl.static_range(STEPS):
        lanes = tl.sum(tl.reshape(lanes, (SLOTS_2, TREE >> (step + 1), 2)), axis=2)
    total = tl.where(places >= 0, tl.reshape(lanes, (SLOTS_2,)), 0.0)
    tl.store(dots + token * SLOTS + slots, total, mask=slots < SLOTS)


@triton.jit
def _columns_backward(grad, rows, routes, places, factors, lanes, begin, WIDTH: tl.constexpr, SLOTS_2: tl.constexpr,
                      TREE: tl.constexpr):  # fmt: skip
    """The rows' gradients of `TREE` columns, and the lanes with these columns added."""
    columns = begin + tl.arange(0, TREE)
    wanted = (columns < WIDTH)[None, :] & (places >= 0)[:, None]
    offsets = places[:, None] * WIDTH + columns[None, :]
    values = tl.load(grad + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)[None, :]
    route = tl.load(rows + offsets, mask=wanted, other=0.0).to(tl.float32)
    tl.store(routes + offsets, (values * factors[:, None]).to(routes.dtype.element_ty), mask=wanted)
    return tl.fma(tl.broadcast_to(values, (SLOTS_2, TREE)), route, lanes)

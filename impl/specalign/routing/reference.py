"""What each kernel of this room must give, in plain torch: the same arguments, the same bits on CPU and GPU. Class *exact*.

`positions` `[T, k]` says to which expert-major row the route of a token and slot goes; -1: to none. Nothing is checked here.

Where a sum is formed, it is formed in slot order, with the roundings that are written down: no other order or rounding has the
same bits. `torch.addcmul(acc, a, w)` is a fused multiply-add in FP32 (one rounding); the kernels use `tl.fma`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

TREE: Final = 1024
"""Lanes of the tree that sums a row; fixed, since it is a part of the bits."""


def scatter_reference(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    """Token rows `[T, H]` to expert-major rows `[num_rows, H]`: a copy a route, and zeros in the padding rows."""
    result = rows.new_empty(num_rows, rows.shape[1])
    result[padding_rows] = 0
    taken = positions >= 0
    result[positions[taken].long()] = rows[taken.nonzero()[:, 0]]
    return result


def scatter_backward_reference(grad: Tensor, positions: Tensor) -> Tensor:
    """Gradient `[T, H]` of the token rows from that of the expert-major rows: a sum in slot order.

    The partial sum is rounded to the rows' dtype after every slot, as a loop of that dtype does it, empty slots included (they
    add +0, which makes +0 of -0). FP32 rows have nothing to round to.
    """
    result = grad.new_zeros(len(positions), grad.shape[1])
    for slot in range(positions.shape[1]):
        result = (result.float() + _rows_or_zero(grad, positions[:, slot])).to(grad.dtype)
    return result


def gather_reference(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Expert-major rows to token rows `[T, H]`: FP32 sum of `weights` `[T, k]` times rows, in slot order by FMA, one rounding.

    An empty slot leaves the sum as it is.
    """
    total = torch.zeros(len(positions), rows.shape[1], dtype=torch.float32, device=rows.device)
    for slot in range(positions.shape[1]):
        place, weight = positions[:, slot], weights[:, slot, None]
        added = torch.addcmul(total, _rows_or_zero(rows, place), weight.expand_as(total).contiguous())
        total = torch.where(place[:, None] >= 0, added, total)
    return total.to(rows.dtype)


def gather_backward_reference(
    grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of `gather_reference`: of the rows, in their dtype, and of the weights, FP32 `[T, k]`.

    A row's gradient is one FP32 product, rounded once; padding rows get zeros. A weight's is a dot product over H: lane l of
    `TREE` takes columns l, l + TREE, … by FMA in this order, then neighbours are added until one is left. Empty slots get 0.
    """
    routes = torch.empty_like(rows)
    routes[padding_rows] = 0
    dots = torch.zeros(positions.shape, dtype=torch.float32, device=rows.device)
    for slot in range(positions.shape[1]):
        place = positions[:, slot]
        taken = place >= 0
        routes[place[taken].long()] = (grad[taken].float() * weights[taken, slot, None]).to(rows.dtype)
        dots[taken, slot] = _tree_dot(grad[taken].float(), rows[place[taken].long()].float())
    return routes, dots


def compact_reference(positions: Tensor, count: int) -> Tensor:
    """The routes that exist, `[count, 2]` int64 (token, slot), row by row."""
    return (positions >= 0).nonzero().view(count, 2)


def _rows_or_zero(rows: Tensor, place: Tensor) -> Tensor:
    """FP32 `rows[place]`, and +0 where there is none."""
    if not len(rows):
        return rows.new_zeros(len(place), rows.shape[1], dtype=torch.float32)
    return torch.where(place[:, None] >= 0, rows[place.clamp(min=0).long()].float(), 0.0)


def _tree_dot(first: Tensor, second: Tensor) -> Tensor:
    """FP32 dot products `[N]` of rows `[N, H]`, in the order of `gather_backward_reference`."""
    lanes = first.new_zeros(len(first), TREE)
    first, second = (torch.nn.functional.pad(side, (0, -side.shape[1] % TREE)) for side in (first, second))
    for begin in range(0, first.shape[1], TREE):
        lanes = torch.addcmul(lanes, first[:, begin : begin + TREE], second[:, begin : begin + TREE])
    while lanes.shape[1] > 1:
        lanes = lanes[:, ::2] + lanes[:, 1::2]
    return lanes[:, 0]

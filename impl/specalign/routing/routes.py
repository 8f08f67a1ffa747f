"""Scatter and gather of routes by raw positions: checked as asked for, then run by the operators of `ops.py`.

`positions` `[T, k]`, int32 or int64, names for each token and slot the expert-major row that its route goes to; -1: none. With a
`ReceiveLayout`, whose positions are right by construction, use `Permute` and `Combine`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specalign.routing import ops
from specalign.routing.arguments import (
    check_device,
    check_experts,
    check_groups,
    check_mode,
    check_number,
    check_padding_rows,
    check_positions,
    check_rows,
    check_weights,
)
from specalign.routing.blanks import NOBODY, Blanks
from specalign.routing.checks import Check, check_reference, settle
from specalign.routing.errors import RoutingError
from specalign.routing.faults import NO_FAULT, Checked

if TYPE_CHECKING:
    from specalign.routing.layout import ReceiveLayout


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """What the rows must hold, for a check of more than range and owner.

    Attributes:
        ids: int32 or int64 `[T, k]`, the expert of each route.
        counts: int64 `[E]`, rows of each expert.
        alignment: each expert's rows begin at a multiple of it.
    """

    ids: Tensor
    counts: Tensor
    alignment: int = 1

    def offsets(self) -> Tensor:
        """int64 `[E]`: the first row of each expert."""
        # A count below 0 is a fault that the check finds; it must not move the rows of others to below row 0 first.
        padded = (self.counts.clamp(min=0) + self.alignment - 1) // self.alignment * self.alignment
        return padded.cumsum(0) - padded


def scatter_routes(
    rows: Tensor,
    positions: Tensor,
    num_rows: int,
    *,
    padding_rows: Tensor | None = None,
    experts: Experts | None = None,
    check: Check = "sync",
) -> Tensor:
    """Token rows to expert-major rows; rows that no route goes to are zeros. Differentiable.

    Args:
        rows: `[T, H]`, bf16, fp16 or fp32.
        positions: `[T, k]`.
        num_rows: of the result `[num_rows, H]`.
        padding_rows: int64, the rows that no route goes to, where they are known; None finds them.
        experts: what the rows must hold, where that is to be checked too.
        check: see `checks.py`. With "off", wrong positions write where they please; with "deferred", they give zeros.

    Raises:
        RoutingError: shapes, dtypes or devices; or a check found a fault.
    """
    check_rows("rows", rows)
    check_positions(positions, rows, tokens=len(rows))
    place, blanks = _checked(rows, positions, num_rows, padding_rows, experts, check)
    result: Tensor = ops.scatter_op(rows.contiguous(), place, blanks.rows, blanks.listed, num_rows)
    return result


def scatter_quantize(
    rows: Tensor,
    positions: Tensor,
    num_rows: int,
    *,
    mn_major: bool = False,
    padding_rows: Tensor | None = None,
    experts: Experts | None = None,
    check: Check = "sync",
) -> tuple[Tensor, Tensor]:
    """`scatter_routes`, then 1x128 FP8 quantization as in `quantize.py`, in one pass. No gradient.

    Returns:
        E4M3 values `[num_rows, H]` and FP32 scales `[num_rows, H / 128]`; with `mn_major`, the latter's rows have stride 1.
    """
    check_rows("rows", rows)
    check_groups(rows)
    check_positions(positions, rows, tokens=len(rows))
    place, blanks = _checked(rows, positions, num_rows, padding_rows, experts, check)
    result: tuple[Tensor, Tensor] = ops.scatter_quantize_op(
        rows.detach().contiguous(), place, blanks.rows, blanks.listed, num_rows, mn_major
    )
    return result


def gather_routes(
    rows: Tensor,
    positions: Tensor,
    weights: Tensor,
    *,
    padding_rows: Tensor | None = None,
    experts: Experts | None = None,
    check: Check = "sync",
) -> Tensor:
    """Expert-major rows to token rows `[T, H]`: sums of rows times weights in slot order. Differentiable in rows and weights.

    Args:
        rows: `[num_rows, H]`, bf16, fp16 or fp32.
        positions: `[T, k]`.
        weights: FP32 `[T, k]`.
        padding_rows, experts, check: as in `scatter_routes`; two routes of one row are a fault: its gradient has one writer.

    Raises:
        RoutingError: shapes, dtypes or devices; or a check found a fault.
    """
    check_rows("rows", rows)
    check_positions(positions, rows)
    check_weights(weights, positions)
    place, blanks = _checked(rows, positions, len(rows), padding_rows, experts, check)
    result: Tensor = ops.gather_op(rows.contiguous(), place, weights.contiguous(), blanks.rows, blanks.listed)
    return result


def compact_route_positions(positions: Tensor, count: int, *, check: Check = "sync") -> Tensor:
    """The routes that exist, int64 `[count, 2]` (token, slot), row by row, as `(positions >= 0).nonzero()` has them.

    Raises:
        RoutingError: `count` is not their number; nothing is written beyond it.
    """
    check_mode(check)
    check_positions(positions, positions)
    check_number("count", count)
    if check != "off":
        total = (positions >= 0).sum()
        settle(torch.where(total == count, NO_FAULT, total), _MiscountedRoutes(count), check)
    result: Tensor = ops.compact_op(positions.contiguous(), count)
    return result


@dataclasses.dataclass(frozen=True, slots=True)
class _MiscountedRoutes:
    count: int

    def __call__(self, total: int) -> RoutingError:
        return RoutingError(
            f"{total} routes exist, and {self.count} were counted: give {total}, or look where the count comes from"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Permute:
    """Token rows to the expert-major rows of a layout; rows of padding are zeros. Differentiable, checks nothing again.

    Attributes:
        layout: whose positions are used.
    """

    layout: ReceiveLayout

    def __call__(self, rows: Tensor) -> Tensor:
        """`[T, H]` to `[num_rows, H]`; see `scatter_routes`."""
        layout = self.layout
        check_rows("rows", rows, number=len(layout.positions))
        check_device("rows", rows, layout.positions)
        result: Tensor = ops.scatter_op(
            rows.contiguous(), layout.positions.contiguous(), layout.padding_rows, True, layout.num_rows
        )
        return result

    def quantize(self, rows: Tensor, *, mn_major: bool = False) -> tuple[Tensor, Tensor]:
        """The same, quantized to FP8 on the way; see `scatter_quantize`."""
        layout = self.layout
        check_rows("rows", rows, number=len(layout.positions))
        check_groups(rows)
        check_device("rows", rows, layout.positions)
        place = rows.detach().contiguous()
        result: tuple[Tensor, Tensor] = ops.scatter_quantize_op(
            place, layout.positions, layout.padding_rows, True, layout.num_rows, mn_major
        )
        return result


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Combine:
    """Expert-major rows of a layout to sums of the tokens, in slot order. Differentiable, checks nothing again.

    Attributes:
        layout: whose positions, and unless others are given, weights are used.
    """

    layout: ReceiveLayout

    def __call__(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """`[num_rows, H]` to `[T, H]`; see `gather_routes`."""
        layout = self.layout
        weights = layout.weights if weights is None else weights
        check_rows("rows", rows, number=layout.num_rows)
        check_device("rows", rows, layout.positions)
        check_weights(weights, layout.positions)
        result: Tensor = ops.gather_op(
            rows.contiguous(), layout.positions.contiguous(), weights.contiguous(), layout.padding_rows, True
        )
        return result


def check_route_positions(positions: Tensor, num_rows: int, *, experts: Experts | None = None, check: Check = "sync") -> Tensor:
    """Check positions by themselves.

    Returns:
        int32 `[num_rows]`: the route that owns each row, token * k + slot; `blanks.NOBODY` where there is none.

    Raises:
        RoutingError: what is wrong with the first bad token and slot.
    """
    check_mode(check)
    check_positions(positions, positions)
    check_number("num_rows", num_rows)
    return _owners(positions.contiguous(), num_rows, experts, check)[1]


def _checked(
    rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor | None, experts: Experts | None, check: Check
) -> tuple[Tensor, Blanks]:
    """Positions that a kernel may follow, and the rows that none of them names."""
    check_mode(check)
    check_number("num_rows", num_rows)
    place = positions.contiguous()
    if padding_rows is not None:
        check_padding_rows(padding_rows, rows)
        if check == "off":
            return place, Blanks(padding_rows.contiguous(), listed=True)
    fault, owners = _owners(place, num_rows, experts, check)
    if check == "deferred":
        # The fault is raised later, and the kernel runs now: it would write where the positions please.
        faulty = fault != NO_FAULT
        place, owners = torch.where(faulty, -1, place), torch.where(faulty, NOBODY, owners)
    # The owners tell which rows are empty, whatever was said: a list is used only where nothing was checked.
    return place, Blanks(owners, listed=False)


def _owners(positions: Tensor, num_rows: int, experts: Experts | None, check: Check) -> tuple[Tensor, Tensor]:
    """The fault, and the owner of each row."""
    checked = Checked(positions, num_rows)
    if experts is not None:
        check_experts(experts.ids, experts.counts, experts.alignment, positions)
        ids, counts = experts.ids.contiguous(), experts.counts.contiguous()
        checked = Checked(positions, num_rows, ids, counts, experts.offsets(), experts.alignment)
    kernels = ops.kernels_of("check", positions)
    fault, owners = (check_reference if kernels is None else kernels.check_triton)(checked)
    if check != "off":
        settle(fault, checked.describe, check)
    return fault, owners

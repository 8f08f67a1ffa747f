"""The receive layout: which row of the expert-major buffer each route goes to, worked out once and checked once.

A route is one valid slot of `expert_ids[T, k]`. Routes are numbered row-major, token by token and slot by slot, and sorted by
expert with a stable sort, so that the rows of one expert stand in route order. Each expert's rows begin at a multiple of
`alignment` and are filled up with padding rows to the next one; an expert without routes gets no rows at all. With alignment 128
the valid rows are those of alignment 1, in the same order, with padding between (the tiles of a grouped GEMM want that).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError

Alignment: TypeAlias = Literal[1, 128]

NO_ROW = -1
_INT32_MAX = torch.iinfo(torch.int32).max


@dataclasses.dataclass(frozen=True, slots=True, eq=False, init=False)
class ReceiveLayout:
    """Where the routes of T tokens with k slots go among E local experts. All tensors are on the device of the ids.

    Nothing in it may be written to: `Permute` and `Combine` trust it, and do not look again.

    Attributes:
        num_experts: E, the experts on this rank.
        alignment: 1 or 128.
        ids: int64 `[T, k]`: the expert of each slot, −1 where there is none.
        weights: fp32 `[T, k]`: the given bits on valid slots, +0 elsewhere. Gradients flow back to the weights that were given.
        positions: int64 `[T, k]`: the row of each slot in the expert-major buffer, −1 where there is none.
        num_rows: rows of that buffer, padding included.
        counts: int64 `[E]`: routes of each expert.
        offsets: int64 `[E + 1]`: the first row of each expert; the last entry is `num_rows`.
        m_indices: int32 `[num_rows]`: the expert of each row; a padding row has its expert's id.
        routes: int64 `[R, 2]`: (token, slot) of each valid route, row-major.
        padding_rows: int64 `[P]`: the rows without a route, ascending.
        all_valid: every slot has an expert (R = T·k).
    """

    num_experts: int
    alignment: int
    ids: Tensor
    weights: Tensor
    positions: Tensor
    num_rows: int
    counts: Tensor
    offsets: Tensor
    m_indices: Tensor
    routes: Tensor
    padding_rows: Tensor
    all_valid: bool

    def __init__(self, expert_ids: Tensor, weights: Tensor, *, num_experts: int, alignment: Alignment = 1) -> None:
        """Work the layout out. Waits for the device once: the number of rows must be known here.

        Args:
            expert_ids: int32 or int64 `[T, k]`, any strides. What is not in 0 … E − 1 (−1, or the INT64_MAX of an empty receive
                slot) is no route. The same expert twice for a token is two routes.
            weights: fp32 `[T, k]` on the same device; only those of valid slots are read.
            num_experts: E ≥ 1.
            alignment: 1 or 128 rows.

        Raises:
            RoutingError: a shape, dtype or device that does not fit; the first non-finite weight of a valid slot.
        """
        _check_arguments(expert_ids, weights, num_experts, alignment)
        valid = (expert_ids >= 0) & (expert_ids < num_experts)
        ids = torch.where(valid, expert_ids, NO_ROW).to(torch.int64)
        plan = _plan(ids, num_experts, alignment)
        num_routes, num_rows = _read_sizes(valid, weights, plan)
        m_indices = _experts_of_rows(plan, num_rows)
        fields = {
            "num_experts": num_experts,
            "alignment": int(alignment),
            "ids": ids,
            "weights": torch.where(valid, weights, 0.0),
            "positions": plan.positions,
            "num_rows": num_rows,
            "counts": plan.counts,
            "offsets": plan.offsets,
            "m_indices": m_indices.to(torch.int32),
            "routes": _routes(valid, num_routes),
            "padding_rows": _padding_rows(plan, m_indices, num_rows - num_routes),
            "all_valid": num_routes == ids.numel(),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    positions: Tensor
    counts: Tensor
    offsets: Tensor


def _plan(ids: Tensor, num_experts: int, alignment: int) -> _Plan:
    """Counts are read off the sorted ids: no atomics, and nothing whose size the host does not know."""
    keys = torch.where(ids >= 0, ids, num_experts).flatten()
    ordered, route = keys.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(num_experts + 1, device=ids.device))
    counts = starts.diff()
    offsets = torch.zeros_like(starts)
    offsets[1:] = ((counts + alignment - 1) // alignment * alignment).cumsum(0)
    row = offsets[ordered] + torch.arange(len(ordered), device=ids.device) - starts[ordered]
    row = torch.where(ordered < num_experts, row, NO_ROW)
    return _Plan(row[route.argsort()].view(ids.shape), counts, offsets)


def _read_sizes(valid: Tensor, weights: Tensor, plan: _Plan) -> tuple[int, int]:
    """Routes and rows, and whether the weights are numbers: the one wait for the device."""
    wrong = valid & ~weights.isfinite()
    num_routes, num_rows, num_wrong = torch.stack([plan.counts.sum(), plan.offsets[-1], wrong.sum()]).tolist()
    if num_wrong:
        token, slot = wrong.nonzero()[0].tolist()
        raise RoutingError(
            f"weights[{token}, {slot}] = {weights[token, slot].item()} (token {token}, slot {slot}; {num_wrong} in all): the"
            " weight of a route is a finite number. Look at the router's scores of this token"
        )
    return num_routes, num_rows


def _routes(valid: Tensor, num_routes: int) -> Tensor:
    """Row-major nonzero, its length known beforehand."""
    if not num_routes:
        return torch.zeros(0, 2, dtype=torch.int64, device=valid.device)
    flat = (~valid).flatten().to(torch.uint8).sort(stable=True).indices[:num_routes]
    slots = valid.shape[1]
    return torch.stack([flat // slots, flat % slots], dim=1)


def _experts_of_rows(plan: _Plan, num_rows: int) -> Tensor:
    """How many experts end at or before each row."""
    return torch.searchsorted(plan.offsets[1:], torch.arange(num_rows, device=plan.offsets.device), right=True)


def _padding_rows(plan: _Plan, m_indices: Tensor, num_padding: int) -> Tensor:
    within = torch.arange(len(m_indices), device=m_indices.device) - plan.offsets[m_indices]
    used = within < plan.counts[m_indices]
    return used.to(torch.uint8).sort(stable=True).indices[:num_padding]


def _check_arguments(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> None:
    if expert_ids.ndim != 2 or expert_ids.dtype not in (torch.int32, torch.int64):
        raise RoutingError(f"expert_ids are {_kind(expert_ids)}: expected int32 or int64 [tokens, slots]")
    if weights.shape != expert_ids.shape or weights.dtype != torch.float32:
        raise RoutingError(f"weights are {_kind(weights)}: expected float32 {list(expert_ids.shape)}, one for each expert id")
    if weights.device != expert_ids.device:
        raise RoutingError(f"weights are on {weights.device}, expert_ids on {expert_ids.device}: put both on one device")
    if isinstance(num_experts, bool) or not isinstance(num_experts, int) or not 1 <= num_experts <= _INT32_MAX:
        raise RoutingError(f"num_experts = {num_experts!r}: expected a whole number from 1 to {_INT32_MAX}")
    if alignment not in get_args(Alignment):
        raise RoutingError(f"alignment = {alignment!r}: expected one of {list(get_args(Alignment))}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

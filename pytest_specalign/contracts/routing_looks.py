"""What the known faults of routing make of their inputs: for each one the faulty code in little, in plain torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pytest_specalign.contracts.routing_cases import Inputs, layout_of
from pytest_specalign.contracts.routing_hooks import HOOKS, Output, What, same_bits
from specalign.routing.reference import gather_reference, scatter_backward_reference
from specalign.routing.topk import ordered_topk, score_keys

Step: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(sum so far, row, weight) to the next sum."""

_LAST = torch.iinfo(torch.int64).max


def fused(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    return torch.addcmul(total, row, weight.expand_as(row).contiguous())


def multiplied_then_added(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    return total + row * weight


def _slots(i: Inputs, rows: Tensor, step: Step, total: Tensor) -> Tensor:
    for slot in range(i.positions.shape[1]):
        place = i.positions[:, slot]
        row = rows[place.clamp(min=0)] if len(rows) else rows.new_zeros(len(place), rows.shape[1])
        added = step(total, row, i.weights[:, slot, None].to(total.dtype))
        total = torch.where(place[:, None] >= 0, added, total)
    return total


def _summed(i: Inputs, rows: Tensor, step: Step, dtype: torch.dtype = torch.float32) -> Output:
    total = torch.zeros(len(i.positions), rows.shape[1], dtype=dtype)
    return (_slots(i, rows.to(dtype), step, total).to(i.expert_rows.dtype),)


def by_steps(i: Inputs) -> Output:
    return _summed(i, i.expert_rows, multiplied_then_added)


def in_float64(i: Inputs) -> Output:
    return _summed(i, i.expert_rows, multiplied_then_added, torch.float64)


def rounded_every_slot(i: Inputs) -> Output:
    dtype = i.expert_rows.dtype
    return _summed(i, i.expert_rows, lambda total, row, weight: fused(total, row, weight).to(dtype).float())


def weighted_first(i: Inputs) -> Output:
    """Each row times its weight, rounded to the dtype, then summed in FP32."""
    dtype = i.expert_rows.dtype
    return _summed(i, i.expert_rows, lambda total, row, weight: total + (row * weight).to(dtype).float())


def weights_rounded(i: Inputs) -> Output:
    rounded = i.weights.to(i.expert_rows.dtype).float()
    return (gather_reference(i.expert_rows, i.positions, rounded),)


def empty_slots_add_zero(i: Inputs) -> Output:
    total = torch.zeros(len(i.positions), i.expert_rows.shape[1])
    for slot in range(i.positions.shape[1]):
        one = dataclasses.replace(i, positions=i.positions[:, slot : slot + 1], weights=i.weights[:, slot : slot + 1])
        total = _slots(one, i.expert_rows.float(), fused, total)
        total = torch.where(one.positions >= 0, total, total + 0.0)
    return (total.to(i.expert_rows.dtype),)


def permuted(i: Inputs, order: Tensor) -> Inputs:
    """The same routes with other slots: `order` `[T, k]` says which slot comes first, second, …"""
    return dataclasses.replace(i, positions=i.positions.gather(1, order), weights=i.weights.gather(1, order))


def row_order(i: Inputs) -> Tensor:
    return torch.where(i.positions >= 0, i.positions, _LAST).sort(dim=1, stable=True).indices


def weight_order(i: Inputs) -> Tensor:
    return i.weights.sort(dim=1, stable=True, descending=True).indices


def reverse_order(i: Inputs) -> Tensor:
    return torch.arange(i.positions.shape[1]).flip(0).expand_as(i.positions)


def ordered(what: What, order: Callable[[Inputs], Tensor]) -> Callable[[Inputs], Output]:
    return lambda i: HOOKS[what].right(permuted(i, order(i)), "sorted")


def in_some_order(what: What) -> Callable[[Inputs, Output, Output], bool]:
    """Whether each token's sum is that of its routes in one order or another. Up to four slots."""

    def fits(i: Inputs, got: Output, right: Output) -> bool:
        slots = i.positions.shape[1]
        if not 1 < slots <= 4 or got[0].shape != right[0].shape or got[0].dtype != right[0].dtype:
            return False
        explained = torch.zeros(len(i.positions), dtype=torch.bool)
        for order in itertools.permutations(range(slots)):
            sums = HOOKS[what].right(permuted(i, torch.tensor(order).expand_as(i.positions)), "sorted")
            explained |= (sums[0] == got[0]).all(1)
        return bool(explained.all())

    return fits


def rounded_at_the_end(i: Inputs) -> Output:
    ones = dataclasses.replace(i, weights=torch.ones_like(i.weights))
    return _summed(ones, i.expert_rows, multiplied_then_added)


def begun_with_the_first(i: Inputs) -> Output:
    """The first row is taken as it is, so its -0 stays; empty slots are left out."""
    total = scatter_backward_reference(i.expert_rows, i.positions)
    dense = i.positions.gather(1, (i.positions < 0).to(torch.int8).sort(dim=1, stable=True).indices)
    if not i.positions.shape[1] or not len(i.expert_rows):
        return (total,)
    alone = (dense >= 0).sum(1, keepdim=True) == 1
    return (torch.where(alone, i.expert_rows[dense[:, 0].clamp(min=0)], total),)


def padding_left(number: int) -> Callable[[Inputs, Output, Output], bool]:
    """Only padding rows of tensor `number` differ, and they are not zeros."""

    def fits(i: Inputs, got: Output, right: Output) -> bool:
        if any(one.shape != other.shape or one.dtype != other.dtype for one, other in zip(got, right, strict=True)):
            return False
        filled = [part.clone() for part in got]
        filled[number][i.padding_rows] = 0
        return same_bits(tuple(filled), right)

    return fits


def rows_in_route_order(i: Inputs) -> Output:
    """Rows stand token by token, as `repeat_interleave` puts them, whatever the positions are."""
    result = torch.zeros(i.num_rows, i.token_rows.shape[1], dtype=i.token_rows.dtype)
    tokens = (i.positions >= 0).nonzero()[:, 0]
    result[: len(tokens)] = i.token_rows[tokens]
    return (result,)


def with_rounded_weights(i: Inputs) -> Output:
    rounded = dataclasses.replace(i, weights=i.weights.to(i.expert_rows.dtype).float())
    return (HOOKS["gather_backward"].right(rounded, "sorted")[0], HOOKS["gather_backward"].right(i, "sorted")[1])


def unweighted(i: Inputs) -> Output:
    ones = dataclasses.replace(i, weights=torch.ones_like(i.weights))
    return HOOKS["gather_backward"].right(ones, "sorted")


def dots(how: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Inputs], Output]:
    """The gradient of the weights by another dot product; that of the rows is right."""

    def gives(i: Inputs) -> Output:
        routes, right = HOOKS["gather_backward"].right(i, "sorted")
        found, taken = torch.zeros_like(right), i.positions >= 0
        tokens = taken.nonzero()[:, 0]
        found[taken] = how(i.token_rows[tokens], i.expert_rows[i.positions[taken]]).float()
        return routes, found

    return gives


def ranked(order: str, i: Inputs) -> Output:
    return HOOKS["topk"].right(i, "engine" if order == "engine" else "sorted")


def highest_index_wins(i: Inputs) -> Output:
    k, last = min(i.case.slots, i.case.experts), i.case.experts - 1
    return (last - ordered_topk(i.scores.flip(1), k).ids,)


def signed_zeros(i: Inputs) -> Output:
    return (ordered_topk(i.scores, min(i.case.slots, i.case.experts), zeros="signed").ids,)


def magnitudes(i: Inputs) -> Output:
    """By the bits of the scores without their sign."""
    return (ordered_topk(score_keys(i.scores).abs().float(), min(i.case.slots, i.case.experts)).ids,)


def laid_out(ids: Callable[[Inputs], Tensor], alignment: int | None = None) -> Callable[[Inputs], Output]:
    """The layout of other ids, or with another alignment."""

    def gives(i: Inputs) -> Output:
        chosen, case = ids(i), dataclasses.replace(i.case, alignment=alignment or i.case.alignment)
        layout = layout_of(case, chosen, torch.zeros(chosen.shape))
        return layout.positions, layout.m_indices.long()

    return gives


def slot_major(i: Inputs) -> Output:
    """Routes numbered slot by slot."""
    positions, m_indices = laid_out(lambda given: given.ids.T)(i)
    return positions.T, m_indices


def from_the_last_route(i: Inputs) -> Output:
    """Rows of one expert in reverse: what a sort that is not stable may give."""
    positions, m_indices = laid_out(lambda given: given.ids.flip(0, 1))(i)
    return positions.flip(0, 1), m_indices

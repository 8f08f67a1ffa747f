"""Broken routing, each the right one but for the fault."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.faults import routing_right as right


def atomics() -> Any:
    """Whichever slot comes first: another one in every call."""
    calls = itertools.count()

    def gather(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
        slots, start = positions.shape[1], next(calls)
        turned = [(start + slot) % slots for slot in range(slots)]
        return right.weighted_sum(rows, positions, weights, order=lambda token: turned).to(rows.dtype)

    return gather


def by_row(positions: Tensor) -> Any:
    return lambda token: positions[token].sort(stable=True).indices.tolist()


def scatter_add(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Row by row of the expert-major buffer, as a loop over it adds them up."""
    return right.weighted_sum(rows, positions, weights, order=by_row(positions)).to(rows.dtype)


def rotated(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    slots = list(range(positions.shape[1]))
    return right.weighted_sum(rows, positions, weights, order=lambda token: slots[1:] + slots[:1]).to(rows.dtype)


def backwards(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    return right.weighted_sum(rows, positions, weights, order=lambda token: range(positions.shape[1])[::-1]).to(rows.dtype)


def by_weight(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    order = weights.sort(dim=1, descending=True, stable=True).indices.tolist()
    return right.weighted_sum(rows, positions, weights, order=lambda token: order[token]).to(rows.dtype)


def scatter_add_backward(grad: Tensor, positions: Tensor) -> Tensor:
    return right.rounded_sum(grad, positions, order=by_row(positions))


def one_rounding(grad: Tensor, positions: Tensor) -> Tensor:
    return right.weighted_sum(grad, positions, torch.ones(positions.shape)).to(grad.dtype)


def first_as_it_is(grad: Tensor, positions: Tensor) -> Tensor:
    result = right.scatter_backward(grad, positions)
    for token, row in enumerate(positions):
        if (row >= 0).sum() == 1:
            result[token] = grad[row.max()]
    return result


def multiply_then_add(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    return right.weighted_sum(rows, positions, weights, lambda total, row, weight: total + row * weight).to(rows.dtype)


def float64(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    result = torch.zeros(len(positions), rows.shape[1], dtype=torch.float64)
    for token, slot in (positions >= 0).nonzero().tolist():
        result[token] += rows[positions[token, slot]].double() * weights[token, slot].double()
    return result.to(rows.dtype)


def rounded_each_time(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    def step(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
        return right.fma(total, row, weight).to(rows.dtype).float()

    return right.weighted_sum(rows, positions, weights, step).to(rows.dtype)


def weight_before(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """The experts weight their rows, and what is combined is bf16."""
    return right.weighted_sum(rows, positions, weights, lambda total, row, w: total + (row * w).to(rows.dtype).float()).to(
        rows.dtype
    )


def narrow_weights(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    return right.gather(rows, positions, weights.to(rows.dtype).float())


def zeros_added(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros(len(positions), rows.shape[1])
    for token, row in enumerate(positions.tolist()):
        for slot, place in enumerate(row):
            total[token] = (
                right.fma(total[token], rows[place].float(), weights[token, slot]) if place >= 0 else total[token] + 0.0
            )
    return total.to(rows.dtype)


def short_offsets(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """Offsets in the narrowest type that the test's buffer overflows: int16 here, where a GPU's buffer overflows int32."""
    width, flat = rows.shape[1], rows.flatten()
    offsets = (positions.flatten() * width).to(torch.int16).long()
    picked = flat[offsets[:, None] + torch.arange(width)]
    return right.gather(picked, torch.arange(len(picked))[:, None], weights)


def unchecked_scatter(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    """The last route of a row wins."""
    inside = torch.where(positions < num_rows, positions, -1)
    result = right.copied(rows, inside, num_rows)
    result[padding_rows] = 0
    return result


def padding_left(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    return right.copied(rows, positions, num_rows)


def token_by_token(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    result = torch.zeros(num_rows, rows.shape[1], dtype=rows.dtype)
    repeated = rows.repeat_interleave((positions >= 0).sum(1), dim=0)
    result[: len(repeated)] = repeated
    return result


def rows_doubled_in_place(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    result = right.scatter(rows, positions, num_rows, padding_rows)
    rows.add_(1)
    return result


def gradient_padding_left(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor) -> Any:
    return right.products(grad, rows, positions, weights, right.dot)


def gradient_unweighted(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor) -> Any:
    return right.gather_backward(grad, rows, positions, torch.ones_like(weights), padding_rows)


def gradient_narrow(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor) -> Any:
    return right.gather_backward(grad, rows, positions, weights.to(rows.dtype).float(), padding_rows)


def dots_by(dot: Any) -> Any:
    def gather_backward(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor) -> Any:
        routes, dots = right.products(grad, rows, positions, weights, dot)
        routes[padding_rows] = 0
        return routes, dots

    return gather_backward


narrow_dots = dots_by(lambda grad, row: (grad * row).float().sum())
torch_dots = dots_by(lambda grad, row: (grad.float() * row.float())[None].sum(1)[0])


def highest_wins(scores: Tensor, k: int) -> Tensor:
    rows = scores.tolist()
    return right.ids_of([sorted(range(len(row)), key=lambda e: (-row[e], -e))[:k] for row in rows], k)


def by_bits(scores: Tensor, k: int) -> Tensor:
    """-0 below +0."""
    ranks = torch.where(scores < 0, scores, scores + 1).masked_fill(scores.signbit() & (scores == 0), 0.5)
    return right.topk(ranks, k)


def by_magnitude(scores: Tensor, k: int) -> Tensor:
    return right.topk(scores.abs(), k)


def nan_ranked(scores: Tensor, k: int) -> Tensor:
    return right.topk(scores.nan_to_num(nan=-1e30), k)


def unstable(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> Any:
    return right.laid_out(expert_ids, num_experts, alignment, (expert_ids >= 0).nonzero().tolist()[::-1])


def slot_by_slot(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> Any:
    routes = [[token, slot] for slot, token in (expert_ids >= 0).T.nonzero().tolist()]
    return right.laid_out(expert_ids, num_experts, alignment, routes)


def wrapped(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> Any:
    return right.layout(expert_ids % num_experts, weights, num_experts, alignment)


def unaligned(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> Any:
    return right.layout(expert_ids, weights, num_experts, 1)


def shifted_replay(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    """The cursor of the recomputations moves before it is used."""
    right.replay(microbatches, calls, num_experts)
    forwards = iter(microbatches)
    later = iter([*microbatches[1:], microbatches[0]])
    return [next(forwards if call == "forward" else later) for call in calls]


def one_cursor(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    right.replay(microbatches, calls, num_experts)
    return [microbatches[at % len(microbatches)] for at in range(len(calls))]


def overwritten(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    right.replay(microbatches, calls, num_experts)
    return [microbatches[-1]] * len(calls)


def newest_first(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    right.replay(microbatches, calls, num_experts)
    forwards, waiting, found = iter(microbatches), [], []
    for call in calls:
        if call == "forward":
            waiting.append(next(forwards))
        found.append(waiting[-1] if call == "forward" else waiting.pop())
    return found


def left_over(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    return right.replay(microbatches[: calls.count("forward")], calls, num_experts)


def live_when_exhausted(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    extra = calls.count("forward") - len(microbatches)
    return right.replay([*microbatches, *[microbatches[0].flip(1)] * max(extra, 0)], calls, num_experts)

"""Right routing, written by hand: nothing here calls the library or the contract's own reference, and the FMA is made of float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def fma(total: Tensor, row: Tensor, weight: Tensor) -> Tensor:
    """One rounding to FP32. The product is exact in float64; its sum is rounded to odd, so that the rounding to FP32 is the only one."""
    product, other = row.double() * weight.double(), total.double()
    summed = product + other
    back = summed - product
    error = (product - (summed - back)) + (other - back)
    even = summed.view(torch.int64) % 2 == 0
    towards = torch.where(error > 0, torch.inf, -torch.inf).to(torch.float64)
    return torch.where((error != 0) & even, torch.nextafter(summed, towards), summed).float()


def row_of(rows: Tensor, position: Tensor) -> Tensor:
    return rows[position].float()


def weighted_sum(rows: Tensor, positions: Tensor, weights: Tensor, step: Step = fma, order: Any = None) -> Tensor:
    """FP32 `[T, H]`, slot by slot; `order(token)` gives the slots of a token in another order."""
    result = torch.zeros(len(positions), rows.shape[1])
    for token in range(len(positions)):
        total = torch.zeros(rows.shape[1])
        for slot in order(token) if order else range(positions.shape[1]):
            if positions[token, slot] >= 0:
                total = step(total, row_of(rows, positions[token, slot]), weights[token, slot])
        result[token] = total
    return result


def gather(rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    refuse_range(positions, len(rows))
    return weighted_sum(rows, positions, weights).to(rows.dtype)


def refuse_range(positions: Tensor, num_rows: int) -> None:
    if bool((positions >= num_rows).any()):
        raise ValueError("a position is no row")


def refuse_duplicates(positions: Tensor) -> None:
    taken = positions[positions >= 0]
    if len(taken.unique()) != len(taken):
        raise ValueError("two routes go to one row")


def copied(rows: Tensor, positions: Tensor, num_rows: int) -> Tensor:
    result = torch.empty(num_rows, rows.shape[1], dtype=rows.dtype)
    for token, slot in (positions >= 0).nonzero().tolist():
        result[positions[token, slot]] = rows[token]
    return result


def scatter(rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
    refuse_range(positions, num_rows)
    refuse_duplicates(positions)
    result = copied(rows, positions, num_rows)
    result[padding_rows] = 0
    return result


def scatter_backward(grad: Tensor, positions: Tensor) -> Tensor:
    return rounded_sum(grad, positions)


def rounded_sum(grad: Tensor, positions: Tensor, order: Any = None) -> Tensor:
    result = torch.zeros(len(positions), grad.shape[1], dtype=grad.dtype)
    for token in range(len(positions)):
        for slot in order(token) if order else range(positions.shape[1]):
            place = positions[token, slot]
            added = row_of(grad, place) if place >= 0 else 0.0
            result[token] = (result[token].float() + added).to(grad.dtype)
    return result


def dot(first: Tensor, second: Tensor) -> Tensor:
    lanes = torch.zeros(1024)
    for begin in range(0, len(first), 1024):
        one, other = first[begin : begin + 1024], second[begin : begin + 1024]
        lanes[: len(one)] = fma(lanes[: len(one)], one.float(), other.float())
    while len(lanes) > 1:
        lanes = lanes[0::2] + lanes[1::2]
    return lanes[0]


def gather_backward(
    grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor
) -> tuple[Tensor, Tensor]:
    routes, dots = products(grad, rows, positions, weights, dot)
    routes[padding_rows] = 0
    return routes, dots


def products(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, dot: Any) -> tuple[Tensor, Tensor]:
    routes, dots = torch.empty_like(rows), torch.zeros(positions.shape)
    for token, slot in (positions >= 0).nonzero().tolist():
        place = positions[token, slot]
        routes[place] = (grad[token].float() * weights[token, slot]).to(rows.dtype)
        dots[token, slot] = dot(grad[token], rows[place])
    return routes, dots


def topk(scores: Tensor, k: int) -> Tensor:
    if scores.isnan().any():
        raise ValueError("a NaN has no place")
    return ids_of([best(row, k) for row in scores.tolist()], k)


def ids_of(rows: list[list[int]], k: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), k)


def best(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda expert: (-row[expert], expert))[:k]


def engine_topk(scores: Tensor, k: int) -> Tensor:
    return ids_of([in_engine_order(row, best(row, k)) for row in scores.tolist()], k)


def in_engine_order(row: list[float], chosen: list[int]) -> list[int]:
    least = min((row[expert] for expert in chosen), default=0.0)
    return sorted(chosen, key=lambda expert: (row[expert] == least, expert))


def layout(expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> tuple[Tensor, Tensor]:
    return laid_out(expert_ids, num_experts, alignment, (expert_ids >= 0).nonzero().tolist())


def laid_out(ids: Tensor, num_experts: int, alignment: int, routes: list[list[int]]) -> tuple[Tensor, Tensor]:
    positions, owners = torch.full(ids.shape, -1), []
    for expert in range(num_experts):
        for token, slot in (route for route in routes if ids[tuple(route)] == expert):
            positions[token, slot] = len(owners)
            owners.append(expert)
        owners += [expert] * (-len(owners) % alignment)
    return positions, torch.tensor(owners, dtype=torch.int32)


def replay(microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> list[Tensor]:
    forwards, recomputations = iter(microbatches), iter(microbatches)
    found = [next(forwards if call == "forward" else recomputations, None) for call in calls]
    served = [ids for ids in found if ids is not None]
    if len(served) != len(calls) or next(forwards, None) is not None:
        raise ValueError("as many forwards as there are microbatches")
    return served

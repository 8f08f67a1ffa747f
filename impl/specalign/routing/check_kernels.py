"""The checks of raw positions in Triton, in two launches: each row is claimed by its first route, then each route is looked at.

Class *exact*: the fault and the owners of `checks.check_reference`. Claiming is the one place with atomics: the minimum of
integers, which does not depend on who comes first.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specalign.routing.blanks import NOBODY
from specalign.routing.faults import NO_FAULT, NO_ROOM, OTHER_EXPERT, OUT_OF_ORDER, OUT_OF_RANGE, TAKEN, TOO_FEW, Checked

_BLOCK: Final = 512


def check_triton(checked: Checked) -> tuple[Tensor, Tensor]:
    """`checks.check_reference` as kernels: contiguous positions and expert ids."""
    positions, experts = checked.positions, checked.expert_ids
    routes = positions.numel()
    owner = torch.full((checked.num_rows,), NOBODY, dtype=torch.int32, device=positions.device)
    fault = torch.full((), NO_FAULT, dtype=torch.int64, device=positions.device)
    if routes and checked.num_rows:
        _claim[(triton.cdiv(routes, _BLOCK),)](positions, owner, routes, checked.num_rows, _BLOCK)
    with_experts = experts is not None
    number = len(checked.counts) if checked.counts is not None else 0
    if routes + number:
        _judge[(triton.cdiv(routes + number, _BLOCK),)](
            positions, experts if with_experts else positions, checked.counts if with_experts else positions,
            checked.offsets if with_experts else positions, owner, fault, routes, number, checked.num_rows, with_experts, NOBODY,
            NO_FAULT, OUT_OF_RANGE, TAKEN, OTHER_EXPERT, OUT_OF_ORDER, TOO_FEW, NO_ROOM, checked.alignment, _BLOCK,
        )  # fmt: skip
    return fault, owner


@triton.jit
def _claim(positions, owner, routes, num_rows, BLOCK: tl.constexpr):
    route = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(positions + route, mask=route < routes, other=-1)
    tl.atomic_min(owner + row, route, mask=(row >= 0) & (row < num_rows), sem="relaxed")


@triton.jit
def _judge(positions, experts, counts, offsets, owner, fault, routes, number, num_rows, WITH_EXPERTS: tl.constexpr,
           NOBODY: tl.constexpr, NO_FAULT: tl.constexpr, OUT_OF_RANGE: tl.constexpr, TAKEN: tl.constexpr,
           OTHER_EXPERT: tl.constexpr, OUT_OF_ORDER: tl.constexpr, TOO_FEW: tl.constexpr, NO_ROOM: tl.constexpr,
           ALIGNMENT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    route = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(positions + route, mask=route < routes, other=-1)
    inside = (row >= 0) & (row < num_rows)
    code = tl.zeros((BLOCK,), dtype=tl.int32)
    if WITH_EXPERTS:
        expert = tl.load(experts + route, mask=route < routes, other=-1)
        known = inside & (expert >= 0) & (expert < number)
        begin = tl.load(offsets + expert, mask=known, other=0)
        count = tl.load(counts + expert, mask=known, other=0)
        own = known & (row >= begin) & (row < begin + count)
        before = tl.load(owner + row - 1, mask=own & (row > begin), other=-1)
        code = tl.where(own, tl.where(before < route, 0, OUT_OF_ORDER), OTHER_EXPERT)
    code = tl.where(inside & (tl.load(owner + row, mask=inside, other=0) != route), TAKEN, code)
    code = tl.where(inside, code, tl.where(row != -1, OUT_OF_RANGE, 0))
    if WITH_EXPERTS:
        counted = (route >= routes) & (route < routes + number)
        of = tl.where(counted, route - routes, 0)
        have = tl.load(counts + of, mask=counted, other=0)
        first = tl.load(offsets + of, mask=counted, other=0)
        last, end = first + have - 1, first + tl.cdiv(have, ALIGNMENT) * ALIGNMENT
        empty = tl.load(owner + last, mask=counted & (have > 0) & (last < num_rows), other=NOBODY) == NOBODY
        room = tl.where((have < 0) | ((have > 0) & (end > num_rows)), NO_ROOM, 0)
        code = tl.where(counted, tl.where((have > 0) & empty, TOO_FEW, room), code)
    worst = tl.min(tl.where(code > 0, route.to(tl.int64) * 8 + code, NO_FAULT), axis=0)
    if worst != NO_FAULT:
        tl.atomic_min(fault, worst, sem="relaxed")

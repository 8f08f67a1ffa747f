"""The routes that exist, packed row by row, in Triton. Class *exact*."""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,unused-ignore"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 1024


def compact_triton(positions: Tensor, count: int) -> Tensor:
    """`reference.compact_reference` as a kernel; for a wrong count, nothing is written beyond it."""
    result = torch.zeros(count, 2, dtype=torch.int64, device=positions.device)  # of a count too high, no garbage is left
    if count and positions.numel():
        places = torch.cumsum((positions >= 0).view(-1), 0)  # integers: the same sum in any order
        _compact[(triton.cdiv(positions.numel(), _BLOCK),)](
            positions, places, result, positions.numel(), count, positions.shape[1], _BLOCK
        )
    return result


@triton.jit
def _compact(positions, places, result, routes, count, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    route = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = route < routes
    taken = tl.load(positions + route, mask=inside, other=-1) >= 0
    place = tl.load(places + route, mask=inside, other=0) - 1
    taken = taken & (place < count)
    tl.store(result + place * 2, route // SLOTS, mask=taken)
    tl.store(result + place * 2 + 1, route % SLOTS, mask=taken)

"""Raw positions are checked before a kernel trusts them: range, owner, and with experts given, order, counts and alignment.

`check="sync"` waits for the device and raises. `check="deferred"` waits for nothing: the fault is raised by the next
`raise_pending()`, and until then a faulty call has moved no row: its results are zeros. What is checked is kept until then, so
call it once a step. In the capture of a CUDA graph the check is a part of the graph, and `raise_pending()` tells of the latest
replay. `check="off"` trusts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from specalign.routing.blanks import NOBODY
from specalign.routing.errors import RoutingError
from specalign.routing.faults import NO_FAULT, NO_ROOM, OTHER_EXPERT, OUT_OF_ORDER, OUT_OF_RANGE, TAKEN, TOO_FEW, Checked

Check: TypeAlias = Literal["sync", "deferred", "off"]
CHECKS: Final = ("sync", "deferred", "off")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    fault: Tensor
    describe: Callable[[int], RoutingError]
    again: bool  # a graph writes it at each replay

    def read(self) -> int:
        """What was found. Waits for the device of this check, whichever stream it ran on."""
        if self.fault.is_cuda:
            torch.cuda.synchronize(self.fault.device)
        if not self.again:
            return int(self.fault)
        fault, complement = self.fault.tolist()
        return int(fault) if complement == ~fault else NO_FAULT  # memory of a graph that has not run yet


class PendingChecks:
    """Checks whose outcome nobody has waited for yet."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, fault: Tensor, describe: Callable[[int], RoutingError], *, again: bool) -> None:
        """One more: `fault` is an int64 on a device, `NO_FAULT` or what `describe` knows; `again`: a graph repeats it."""
        # What a graph is to write holds anything before its first replay, so it is written twice.
        self._pending.append(_Pending(torch.stack([fault, ~fault]) if again else fault, describe, again))

    def raise_first(self) -> None:
        """Wait for all of them, forget those that no graph repeats, and raise the first fault if there is one."""
        pending, self._pending = self._pending, [item for item in self._pending if item.again]
        for item in pending:
            raise_fault(item.read(), item.describe)

    def clear(self) -> None:
        """Forget all, those of graphs too: for when a graph is thrown away."""
        self._pending.clear()


PENDING: Final = PendingChecks()
"""Of this process."""


def raise_pending() -> None:
    """Raise what deferred checks have found since the last call.

    Raises:
        RoutingError: the first of them, in the order in which they were made.
    """
    PENDING.raise_first()


def raise_fault(fault: int, describe: Callable[[int], RoutingError]) -> None:
    """Raise what `fault` is, if it is one."""
    if fault != NO_FAULT:
        raise describe(fault)


def settle(fault: Tensor, describe: Callable[[int], RoutingError], check: Check) -> None:
    """Raise a fault now, or keep it for `raise_pending`.

    Raises:
        RoutingError: the fault; or "sync" was asked for in the capture of a CUDA graph, where nothing can be waited for.
    """
    capturing = fault.is_cuda and torch.cuda.is_current_stream_capturing()
    if check == "deferred":
        PENDING.add(fault, describe, again=capturing)
    elif capturing:
        raise RoutingError(
            'check="sync" waits for the device, which the capture of a CUDA graph forbids: check="deferred" or "off"'
        )
    else:
        raise_fault(int(fault), describe)


def check_reference(checked: Checked) -> tuple[Tensor, Tensor]:
    """The first fault, an int64, and the owner of each row, int32 `[num_rows]`, `NOBODY` where it has none; in plain torch."""
    flat = checked.positions.reshape(-1).long()
    index = torch.arange(len(flat), device=flat.device)
    inside = (flat >= 0) & (flat < checked.num_rows)
    owner = torch.full((checked.num_rows + 1,), NOBODY, dtype=torch.int64, device=flat.device)
    owner = owner.scatter_reduce(0, torch.where(inside, flat, checked.num_rows), index, "amin")
    owner[checked.num_rows] = NOBODY
    code = torch.zeros_like(flat)
    if checked.expert_ids is not None:
        code = _order_codes(checked, flat, index, owner)
    code = torch.where(inside & (owner[flat.clamp(0, checked.num_rows)] != index), TAKEN, code)
    code = torch.where(~inside, OUT_OF_RANGE * (flat != -1).long(), code)
    faults = torch.where(code > 0, index * 8 + code, NO_FAULT)
    if checked.expert_ids is not None:
        faults = torch.cat([faults, _count_faults(checked, owner, len(flat))])
    first = faults.min() if len(faults) else torch.tensor(NO_FAULT, device=flat.device)
    return first, owner[: checked.num_rows].int()


def _order_codes(checked: Checked, flat: Tensor, index: Tensor, owner: Tensor) -> Tensor:
    """Of each route with a row: whether the row is one of its expert's, and whether the row before holds the route before."""
    expert, counts, offsets = _experts(checked)
    known = (expert >= 0) & (expert < len(counts))
    held = expert.clamp(0, max(len(counts) - 1, 0))
    begin, count = (side[held] if len(counts) else torch.zeros_like(flat) for side in (offsets, counts))
    own = known & (flat >= begin) & (flat < begin + count)
    # An empty row before has the owner NOBODY, which is after every route.
    ordered = (flat == begin) | (owner[(flat - 1).clamp(0, checked.num_rows)] < index)
    return torch.where(own, torch.where(ordered, 0, OUT_OF_ORDER), OTHER_EXPERT)


def _count_faults(checked: Checked, owner: Tensor, routes: int) -> Tensor:
    """Of each expert: whether the last of its rows is taken (with all routes in order, the others then are too), and is there."""
    _, counts, offsets = _experts(checked)
    last = (offsets + counts - 1).clamp(0, checked.num_rows)
    missing = (counts > 0) & (owner[last] == NOBODY)
    end = offsets + (counts + checked.alignment - 1) // checked.alignment * checked.alignment
    code = torch.where(missing, TOO_FEW, torch.where((counts < 0) | (counts > 0) & (end > checked.num_rows), NO_ROOM, 0))
    place = routes + torch.arange(len(counts), device=owner.device)
    return torch.where(code > 0, place * 8 + code, NO_FAULT)


def _experts(checked: Checked) -> tuple[Tensor, Tensor, Tensor]:
    if checked.expert_ids is None or checked.counts is None or checked.offsets is None:
        raise RoutingError("order is checked with expert ids, counts and offsets together")
    return checked.expert_ids.reshape(-1).long(), checked.counts, checked.offsets

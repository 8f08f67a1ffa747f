"""What arrived against what the sender says it sent: expert, weight and a piece of the row of every route, bit for bit.

A receive layout is right about the ids it was given. Whether they belong to these rows is another question: tokens that arrive in
another order, or ids of the batch before, give a layout without any fault. So the sender also sends, for each of its routes, the
expert's id, the weight and the first values of the row, along the way that the route's output will take back; here they are
compared with what the layout and the received rows hold.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.layout import ReceiveLayout

FINGERPRINT_WIDTH = 16
"""Values of a row that a sender sends along: 32 bytes of bf16, the least that a bulk copy moves."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SentRoutes:
    """What the sender says of its R routes, in the receiver's row-major order (token, slot).

    Attributes:
        expert_ids: int32 or int64 `[R]`: the receiver's local expert.
        weights: fp32 `[R]`.
        fingerprints: `[R, f]`, f ≥ 1: the first f values of each route's row, in the rows' dtype.
    """

    expert_ids: Tensor
    weights: Tensor
    fingerprints: Tensor


def check_received(layout: ReceiveLayout, rows: Tensor, sent: SentRoutes) -> None:
    """Compare what was received with what was sent; waits for the device once if all is well.

    Args:
        layout: of the received ids and weights.
        rows: `[T, H]`: the received token rows, H ≥ f, in the fingerprints' dtype.
        sent: what the sender says.

    Raises:
        RoutingError: another number of routes (found first, and without the device); the first route, row-major, whose expert,
            weight or row is another, with both bit patterns; a shape, dtype or device that does not fit.
    """
    _check_count(layout, sent)
    _check_shapes(layout, rows, sent)
    token, slot = layout.routes.unbind(1)
    fields = (
        _Field("expert id", layout.ids[token, slot, None], sent.expert_ids.to(torch.int64)[:, None]),
        _Field("weight", layout.weights[token, slot, None], sent.weights[:, None]),
        _Field("row value", rows[token, : sent.fingerprints.shape[1]], sent.fingerprints),
    )
    wrong = torch.stack([field.differs().any(1) for field in fields], dim=1)
    if not wrong.any():
        return
    route, column = wrong.nonzero()[0].tolist()
    at, where = layout.routes[route].tolist(), f"number {route} of {len(layout.routes)}"
    raise RoutingError(
        f"route (token {at[0]}, slot {at[1]}), {where}: {fields[column].describe(route)}; {int(wrong.any(1).sum())} routes differ"
        " in all. Tokens arrived in another order, or ids and rows are of two batches"
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """One thing that both sides say of each route: `[R, w]` twice, in one dtype."""

    name: str
    received: Tensor
    sent: Tensor

    def differs(self) -> Tensor:
        return _bits(self.received) != _bits(self.sent)

    def describe(self, route: int) -> str:
        column = int(self.differs()[route].nonzero()[0])
        received, sent = (
            f"{_hex(_bits(side)[route, column])} ({side[route, column].item()})" for side in (self.received, self.sent)
        )
        return f"{self.name}{f' {column}' if self.sent.shape[1] > 1 else ''} is {received}, the sender says {sent}"


def _check_count(layout: ReceiveLayout, sent: SentRoutes) -> None:
    if sent.expert_ids.ndim != 1 or sent.weights.ndim != 1 or sent.fingerprints.ndim != 2:
        shapes = [list(tensor.shape) for tensor in (sent.expert_ids, sent.weights, sent.fingerprints)]
        raise RoutingError(f"expert_ids, weights and fingerprints of a sender are {shapes}: expected [R], [R] and [R, f]")
    here = len(layout.routes)
    for name, tensor in (("expert ids", sent.expert_ids), ("weights", sent.weights), ("fingerprints", sent.fingerprints)):
        if len(tensor) != here:
            found = f"{here} routes were received, {len(tensor)} {name} were sent"
            raise RoutingError(f"{found}: a route was lost, or an id is out of this rank's range")


def _check_shapes(layout: ReceiveLayout, rows: Tensor, sent: SentRoutes) -> None:
    tokens, width = layout.ids.shape[0], sent.fingerprints.shape[1]
    if rows.ndim != 2 or len(rows) != tokens or not 1 <= width <= rows.shape[1]:
        raise RoutingError(f"rows are {list(rows.shape)}, fingerprints {width} wide: expected [{tokens}, H] with 1 ≤ f ≤ H")
    if rows.dtype != sent.fingerprints.dtype:
        raise RoutingError(f"rows are {rows.dtype}, fingerprints {sent.fingerprints.dtype}: bits compare within one dtype only")
    if sent.expert_ids.dtype not in (torch.int32, torch.int64) or sent.weights.dtype != torch.float32:
        raise RoutingError(
            f"a sender's ids are {sent.expert_ids.dtype}, weights {sent.weights.dtype}: expected int32 or int64, float32"
        )
    places = {tensor.device for tensor in (layout.ids, rows, sent.expert_ids, sent.weights, sent.fingerprints)}
    if len(places) > 1:
        raise RoutingError(f"layout, rows and what was sent are on {sorted(map(str, places))}: put all on one device")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(_BITS[tensor.element_size()])


def _hex(value: Tensor) -> str:
    size = value.element_size()
    return f"{int(value) & ((1 << 8 * size) - 1):#0{2 * size + 2}x}"

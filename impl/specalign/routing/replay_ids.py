"""Expert ids that a replay keeps: checked once, in a storage of their own, and turned into an index for each use."""

from __future__ import annotations

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def own_ids(ids: Tensor, *, num_experts: int, topk: int, where: str, pin: bool) -> Tensor:
    """A checked copy that shares memory with nothing: `[T, k]` int32 on the CPU, page-locked with `pin`.

    A slice of an all-layer tensor would keep all of it alive, and a live tensor would change under the replay. It is a blocking
    copy.

    Args:
        ids: `[T, k]`, any integer dtype, any device.
        where: who asks, for the messages.

    Raises:
        RoutingError: another shape or dtype, an id outside [0, num_experts), or an expert twice in one row; names the first
            bad token and slot.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in INTEGERS:
        raise RoutingError(f"{where}: expert ids are an integer tensor [tokens, {topk}], got {_kind(ids)}")
    if ids.dim() != 2 or ids.shape[1] != topk:
        raise RoutingError(f"{where}: expert ids have the shape {list(ids.shape)}, not [tokens, {topk}]")
    host = ids.detach().to("cpu", torch.int64)  # a uint8 is compared with 256 as with 0
    check_range(host, num_experts, where)
    check_distinct(host, where)
    own = torch.empty(host.shape, dtype=torch.int32, pin_memory=pin)
    return own.copy_(host)


def check_range(ids: Tensor, num_experts: int, where: str, axes: tuple[str, ...] = ("token", "slot")) -> None:
    """Raises `RoutingError` with the first id in row-major order that is outside [0, num_experts); `axes` name its dimensions."""
    bad = (ids < 0) | (ids >= num_experts)
    if not bool(bad.any()):
        return
    place = bad.nonzero()[0].tolist()
    named = ", ".join(f"{axis} {at}" for axis, at in zip(axes, place, strict=True))
    raise RoutingError(
        f"{where}: {named} names expert {int(ids[tuple(place)])}, outside [0, {num_experts}); {int(bad.sum())} of {ids.numel()}"
        " ids are. Do the ids belong to this model, and were they read with the right dtype?"
    )


def check_distinct(ids: Tensor, where: str) -> None:
    """Raises `RoutingError` for the first row of `[T, k]` that names an expert twice: a router never does."""
    ordered = ids.sort(dim=1).values
    twice = ordered[:, 1:] == ordered[:, :-1]
    if not bool(twice.any()):
        return
    token = int(twice.any(dim=1).nonzero()[0])
    expert = int(ordered[token, 1:][twice[token]][0])
    slots = (ids[token] == expert).nonzero().flatten().tolist()
    raise RoutingError(
        f"{where}: token {token} names expert {expert} in slots {slots}; {int(twice.any(dim=1).sum())} of {len(ids)} tokens name"
        " one twice. A router never does: is it the row of a dense layer, or were the ids never filled in?"
    )


def index_of(ids: Tensor, device: torch.device, *, pinned: bool) -> Tensor:
    """`[T, k]` int64 on `device`. Older torch gathers by int64 only.

    It is a new tensor each time: a caller may write into it, and ids recorded in `inference_mode` may enter training.
    """
    return ids.to(device, non_blocking=pinned).to(torch.int64)


def mark(values: Tensor) -> Tensor:
    """An int64 scalar on the device of `values` that tells apart two tensors of other bits, or of the same in other places.

    A weighted sum of the raw bits, modulo 2^64: integers, so that no order of summing changes it, and no wait for a GPU.
    """
    with torch.no_grad():
        bits = values.detach().contiguous().view(BITS[values.element_size()]).flatten().to(torch.int64)
        weights = torch.arange(len(bits), dtype=torch.int64, device=bits.device) * -7046029254386353131 + 1442695040888963407
        return ((bits + 1) * (weights | 1)).sum()


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__

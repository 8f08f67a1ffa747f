"""Routing replay in Megatron's MoE routers. megatron-core is not imported: what is needed of it is there once the model is.

Read in megatron-core 0.16.1 and 0.19.2: `TopKRouter.routing` hands `self.router_replay` to `topk_routing_with_score_function`,
which calls its `get_replay_topk(scores, topk, num_groups, group_topk, default_compute_topk)`, but not if `moe_router_fusion` is
on, nor for load balancing by sinkhorn (or, in 0.19, by quantiles). Auxiliary losses choose experts of their own, live.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import nn

from specalign.routing.errors import RoutingError
from specalign.routing.replay import RoutingReplay
from specalign.routing.replay_group import ReplayGroup

BYPASSED = ("sinkhorn", "quantile_balancing")
"""Kinds of load balancing that choose experts without asking `router_replay`."""


@dataclass(frozen=True, slots=True)
class RouterPlace:
    """A router of a model.

    Attributes:
        name: its dotted name; with several chunks, the chunk's number stands before it.
        layer_number: Megatron's, from 1; None where it has none.
    """

    name: str
    layer_number: int | None
    num_experts: int
    topk: int


Factory = Callable[[RouterPlace], RoutingReplay]


class MegatronReplay(ReplayGroup):
    """The replays that `install` put into a model. As a context manager it removes them at the end.

    Attributes:
        places: the routers, in the order of `replays`.
    """

    def __init__(self, routers: Mapping[RouterPlace, Any], replays: Sequence[RoutingReplay]) -> None:
        super().__init__(replays)
        self.places = tuple(routers)
        self._held: list[tuple[Any, RoutingReplay, Any]] = []
        for (place, router), replay in zip(routers.items(), replays, strict=True):
            self._held.append((router, replay, router.router_replay))
            replay.installed_on, replay.layer_number = place.name, place.layer_number
            router.router_replay = replay

    def remove(self) -> None:
        """Give each router back what it had, and close the group. A second call does nothing.

        Raises:
            RoutingError: a pass is open, or something else was put into a router meanwhile: that one is left as it is.
        """
        try:
            self.close()
        finally:
            if all(replay.mode == "idle" for replay in self.replays):  # whatever a resource raises when it is closed
                self._give_back()

    def _give_back(self) -> None:
        held, self._held = self._held, []
        lost = []
        for router, replay, before in held:
            if router.router_replay is replay:
                router.router_replay = before
            else:
                lost.append(replay.installed_on)
            replay.installed_on = None
        if lost:
            raise RoutingError(f"{', '.join(map(str, lost))}: router_replay was replaced while a replay was installed on it")

    def __enter__(self) -> MegatronReplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            for replay in self.replays:
                replay.abandon()
        self.remove()


def install(
    model: nn.Module | Sequence[nn.Module],
    replays: Sequence[RoutingReplay] | Factory | None = None,
    *,
    routers: Sequence[str] = ("*",),
    allow_live_aux_loss: bool = False,
) -> MegatronReplay:
    """Put a replay into each MoE router of a Megatron model. Nothing is changed if anything is refused.

    Args:
        model: the model, or this rank's virtual-pipeline chunks, wrapped in DDP and Float16Module or not.
        replays: one for each router, in the model's order, or what makes one; by default a fresh `RoutingReplay` each.
        routers: patterns of the names that are meant (`fnmatch`), such as `["*decoder.*"]` where a multi-token prediction head
            has routers that the rollout has no ids for. The others stay live.
        allow_live_aux_loss: an auxiliary load-balancing loss counts the experts that its own live top-k chooses; by default a
            router that has one is refused.

    Raises:
        RoutingError: no MoE router (a pipeline stage may have none: install nothing there), a router that would bypass its
            replay, one that has a replay of ours, a pattern that names no router, or replays that do not fit.
    """
    found = dict(find_routers(model))
    if not found:
        raise RoutingError("the model has no MoE router (no TopKRouter): a dense model, or a pipeline stage without experts")
    chosen = _select(found, routers)
    for place, router in chosen.items():
        _refuse_bypass(place, router, allow_live_aux_loss=allow_live_aux_loss)
    return MegatronReplay(chosen, _fitting(list(chosen), replays))


def find_routers(model: nn.Module | Sequence[nn.Module]) -> Iterator[tuple[RouterPlace, nn.Module]]:
    """Megatron's routers, in the order in which the model has its modules."""
    chunks = [model] if isinstance(model, nn.Module) else list(model)
    for number, chunk in enumerate(chunks):
        for name, module in chunk.named_modules():
            if _is_router(module):
                full = name if len(chunks) == 1 else f"{number}.{name}"
                yield _place(full, module), module


def _is_router(module: nn.Module) -> bool:
    return _is_a(module, "TopKRouter")


def _is_a(module: nn.Module, name: str) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def _place(name: str, router: Any) -> RouterPlace:
    return RouterPlace(name, router.layer_number, int(router.config.num_moe_experts), int(router.topk))


def _select(found: Mapping[RouterPlace, nn.Module], patterns: Sequence[str]) -> dict[RouterPlace, nn.Module]:
    names = [place.name for place in found]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise RoutingError(f"no router is called {pattern!r}; there are {names}")
    chosen = {place: router for place, router in found.items() if any(fnmatch.fnmatchcase(place.name, one) for one in patterns)}
    if not chosen:
        raise RoutingError("routers=[] chooses none")
    return chosen


def _refuse_bypass(place: RouterPlace, router: Any, *, allow_live_aux_loss: bool) -> None:
    """Raises for what would make the router choose live beside its replay."""
    config = router.config
    if not hasattr(router, "router_replay"):
        raise RoutingError(f"{place.name}: this megatron-core's routers ask no router_replay: it needs 0.16 or newer")
    if isinstance(router.router_replay, RoutingReplay):
        raise RoutingError(f"{place.name} has a replay already ({router.router_replay.name}): remove() that one first")
    if getattr(config, "moe_router_fusion", False):
        raise RoutingError(f"{place.name}: moe_router_fusion=True chooses experts in a kernel that asks no replay: set it False")
    kind = getattr(router, "routing_type", None)
    if kind in BYPASSED:
        raise RoutingError(f"{place.name}: load balancing by {kind} chooses experts without asking the replay")
    if _is_a(router, "InferenceTopKRouter"):
        raise RoutingError(f"{place.name}: InferenceTopKRouter routes in compiled code. Use the training model's TopKRouter")
    if not allow_live_aux_loss and router.is_aux_loss_enabled():
        raise RoutingError(
            f"{place.name}: its auxiliary loss counts the experts of a live top-k, not the replayed ones: set"
            " moe_aux_loss_coeff=0, or pass allow_live_aux_loss=True if that is meant"
        )


def _fitting(places: Sequence[RouterPlace], replays: Sequence[RoutingReplay] | Factory | None) -> list[RoutingReplay]:
    if replays is None:
        replays = _fresh
    made = [replays(place) for place in places] if callable(replays) else list(replays)
    if len(made) != len(places):
        raise RoutingError(f"{len(made)} replays for {len(places)} routers: {[place.name for place in places]}")
    for place, replay in zip(places, made, strict=True):
        if replay.installed_on is not None:
            raise RoutingError(
                f"the replay {replay.name} is installed on {replay.installed_on} already: {place.name} needs its own"
            )
        if (replay.num_experts, replay.topk) != (place.num_experts, place.topk):
            raise RoutingError(
                f"{place.name} chooses {place.topk} of {place.num_experts} experts, its replay {replay.name} {replay.topk} of"
                f" {replay.num_experts}"
            )
    return made


def _fresh(place: RouterPlace) -> RoutingReplay:
    return RoutingReplay(place.name, num_experts=place.num_experts, topk=place.topk)

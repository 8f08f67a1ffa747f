"""Deterministic MoE routing on one device: ordered top-k, receive layout, scatter and gather, replay.

The names below are imported when they are first asked for: most need torch, which a replay's cursors and messages do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from specalign.routing.checks import raise_pending
    from specalign.routing.errors import RoutingError
    from specalign.routing.layout import ReceiveLayout
    from specalign.routing.layout_check import SentRoutes, check_received
    from specalign.routing.order_capture import capture_ids, capture_order
    from specalign.routing.replay import RoutingReplay
    from specalign.routing.replay_group import ReplayGroup
    from specalign.routing.replay_order import TokenOrder
    from specalign.routing.replay_rollout import RolloutRoutes
    from specalign.routing.routes import (
        Combine,
        Experts,
        Permute,
        check_route_positions,
        compact_route_positions,
        gather_routes,
        scatter_quantize,
        scatter_routes,
    )
    from specalign.routing.scoring import RoutingRule, route, route_scores
    from specalign.routing.topk import TopK, ordered_topk, tied

__all__ = [
    "Combine",
    "Experts",
    "Permute",
    "ReceiveLayout",
    "ReplayGroup",
    "RolloutRoutes",
    "RoutingError",
    "RoutingReplay",
    "RoutingRule",
    "SentRoutes",
    "TokenOrder",
    "TopK",
    "capture_ids",
    "capture_order",
    "check_received",
    "check_route_positions",
    "compact_route_positions",
    "gather_routes",
    "ordered_topk",
    "raise_pending",
    "route",
    "route_scores",
    "scatter_quantize",
    "scatter_routes",
    "tied",
]

_WHERE: Final = {
    "checks": ("raise_pending",),
    "errors": ("RoutingError",),
    "layout": ("ReceiveLayout",),
    "layout_check": ("SentRoutes", "check_received"),
    "order_capture": ("capture_ids", "capture_order"),
    "replay": ("RoutingReplay",),
    "replay_group": ("ReplayGroup",),
    "replay_order": ("TokenOrder",),
    "replay_rollout": ("RolloutRoutes",),
    "routes": (
        "Combine",
        "Experts",
        "Permute",
        "check_route_positions",
        "compact_route_positions",
        "gather_routes",
        "scatter_quantize",
        "scatter_routes",
    ),
    "scoring": ("RoutingRule", "route", "route_scores"),
    "topk": ("TopK", "ordered_topk", "tied"),
}
_ON_DEMAND: Final = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)

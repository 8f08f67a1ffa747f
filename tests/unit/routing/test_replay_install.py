"""`install` on stand-ins of Megatron's routers, where megatron-core is not: what the engine's own models cannot show on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from specalign.integrations.megatron_replay import install  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay import RoutingReplay  # noqa: E402
from tests.unit.routing.replays import EXPERTS, TOPK, choose, scores  # noqa: E402


class TopKRouter(nn.Module):
    """As in megatron-core."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_moe_experts=EXPERTS, moe_router_fusion=False)
        self.topk, self.layer_number, self.router_replay = TOPK, 3, None
        for name, value in settings.items():
            setattr(self, name, value)

    def is_aux_loss_enabled(self) -> bool:
        return False

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.router_replay.get_replay_topk(values, self.topk, None, None, choose)
        return found


class InferenceTopKRouter(TopKRouter):
    """As in megatron-core 0.19."""


class OlderTopKRouter(TopKRouter):
    """As before megatron-core 0.16."""

    def __init__(self) -> None:
        super().__init__()
        del self.router_replay


class Wrapped(nn.Module):
    """As DDP and Float16Module wrap."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_wrapped_models_router_is_found_recorded_and_replayed() -> None:
    router = TopKRouter(routing_type="none")
    with install(Wrapped(nn.Sequential(nn.Linear(2, 2), router))) as replays:
        assert [(place.name, place.layer_number) for place in replays.places] == [("module.1", 3)]
        with replays.recording(1):
            _, chosen = router(scores(0))
        with replays.replaying(1):
            _, again = router(scores(1))
    assert torch.equal(again, chosen)
    assert router.router_replay is None


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (TopKRouter(routing_type="quantile_balancing"), "0: load balancing by quantile_balancing chooses experts without asking"),
        (InferenceTopKRouter(), "0: InferenceTopKRouter routes in compiled code"),
        (OlderTopKRouter(), r"0: this megatron-core's routers ask no router_replay: it needs 0\.16"),
    ],
)
def test_routers_that_ask_no_replay_are_refused(router: TopKRouter, message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        install(nn.Sequential(router, TopKRouter()))


def test_an_exception_inside_the_block_removes_the_replays_whatever_pass_is_open() -> None:
    router = TopKRouter()

    def fail(one: RoutingReplay) -> None:
        one.begin("record", microbatches=1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), install(nn.Sequential(router)) as replays:
        fail(replays.replays[0])
    assert router.router_replay is None
    assert (replays.replays[0].mode, replays.replays[0].installed_on) == ("idle", None)

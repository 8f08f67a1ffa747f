"""Scoring and order capture on megatron-core's own router, on the CPU: one gloo rank.

The routing function runs unpatched. `TopKRouter` needs a CUDA device's name only, for its buffers, which is stood in for.
"""

# ruff: noqa: E402  # without megatron-core the module is skipped before it imports what needs it

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch import Tensor

from specalign.routing.order_capture import capture_order
from specalign.routing.scoring import RoutingRule, route
from specalign.routing.topk import ordered_topk, tied

EXPERTS, TOP_K, WIDTH = 16, 4, 12

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of megatron-core itself, about what is not installed beside it
]


@pytest.fixture(scope="module", autouse=True)
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One rank."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(moe_utils, "te_general_gemm", None, raising=False)
        store = tmp_path_factory.mktemp("gloo") / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        yield
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def router_of(seed: int = 0, **config: Any) -> Any:
    from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(seed)
    values: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": WIDTH,
        "num_attention_heads": 2,
        "num_moe_experts": EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_router_load_balancing_type": "none",
        "moe_router_score_function": "sigmoid",
        "moe_router_dtype": "fp32",
        "use_cpu_initialization": True,
        "add_bias_linear": False,
    }
    made = TopKRouter(TransformerConfig(**(values | config)), get_default_pg_collection())
    made.weight.data.normal_()
    return made.eval()


def tokens(seed: int = 3) -> Tensor:
    return torch.randn(20, 2, WIDTH, generator=torch.Generator().manual_seed(seed))


def same_bits(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> bool:
    (probs, chosen), (other_probs, other_chosen) = ours, theirs
    return torch.equal(probs.view(torch.int32), other_probs.view(torch.int32)) and torch.equal(chosen, other_chosen)


GROUPED = {"moe_router_num_groups": 4, "moe_router_group_topk": 2}


@pytest.mark.parametrize("grouped", [False, True], ids=["all experts", "groups"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_experts_and_weights_are_those_of_megatron(grouped: bool, biased: bool) -> None:
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

    generator = torch.Generator().manual_seed(1)
    logits, bias = torch.randn(300, EXPERTS, generator=generator), torch.randn(EXPERTS, generator=generator) - 0.5
    probs, chosen = topk_routing_with_score_function(
        logits,
        TOP_K,
        num_groups=4 if grouped else None,
        group_topk=2 if grouped else None,
        scaling_factor=2.5,
        score_function="sigmoid",
        expert_bias=bias if biased else None,
    )
    groups = {"groups": 4, "top_groups": 2, "best_in_group": TOP_K // 2} if grouped else {}
    made = route(logits, RoutingRule(top_k=TOP_K, scale=2.5, **groups), bias=bias if biased else None)
    ours = torch.zeros_like(probs).scatter(1, made.ids, made.weights)
    assert torch.equal(ours > 0, chosen)
    torch.testing.assert_close(ours, probs, rtol=(TOP_K + 1) * 2.0**-24, atol=0.0)


def test_softmax_weights_are_those_of_megatron() -> None:
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

    logits = torch.randn(100, EXPERTS, generator=torch.Generator().manual_seed(2))
    probs, _ = topk_routing_with_score_function(logits, TOP_K, use_pre_softmax=True, scaling_factor=1.5)
    made = route(logits, RoutingRule(top_k=TOP_K, score="softmax", renormalize=False, scale=1.5))
    assert torch.equal(torch.zeros_like(probs).scatter(1, made.ids, made.weights), probs)


@pytest.mark.parametrize("order", ["engine", "sorted"])
def test_the_order_of_a_router_is_caught(order: Any) -> None:
    router = router_of()
    with capture_order(router, order=order) as capture:
        probs, chosen = router(tokens())
        ids = capture.take()
    scores = torch.sigmoid(router.gating(tokens()).view(-1, EXPERTS))
    assert not tied(scores, TOP_K).any()
    assert torch.equal(ids, ordered_topk(scores, TOP_K, order=order).ids)
    assert torch.equal(torch.zeros_like(chosen).scatter(1, ids, True), chosen)
    assert torch.equal(chosen, router(tokens())[1])
    torch.testing.assert_close(probs, router(tokens())[0], rtol=(TOP_K + 1) * 2.0**-24, atol=0.0)


def test_sums_over_the_slots_follow_the_order_that_was_caught() -> None:
    """With eight slots the engine's order gives some weights other bits than the sorted one: the order is part of the bits."""
    router = router_of(moe_router_topk=8)
    found = []
    for order in ("engine", "sorted"):
        with capture_order(router, order=order) as capture:  # type: ignore[arg-type]
            found.append(router(tokens()))
            capture.take()
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize("config", [{}, GROUPED, {"moe_enable_routing_replay": True}], ids=["plain", "grouped", "replay"])
def test_a_router_that_was_not_installed_keeps_its_bits_before_and_after_import_and_install(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    router, installed = router_of(1, **config), router_of(2, **config)
    for name in [name for name in sys.modules if name.startswith("specalign.routing")]:
        monkeypatch.delitem(sys.modules, name)
    before, inside = router(tokens()), dict(router.__dict__)
    module = import_module("specalign.routing.order_capture")
    assert module.capture_order is not capture_order  # imported anew
    assert same_bits(router(tokens()), before)
    capture = module.capture_order(installed)
    assert same_bits(router(tokens()), before)
    installed(tokens())
    assert capture.take().shape == (40, TOP_K)
    assert same_bits(router(tokens()), before)
    capture.remove()
    assert same_bits(router(tokens()), before)
    assert router.__dict__ == inside


def test_grouped_routing_of_an_installed_router_keeps_its_bits() -> None:
    router = router_of(**GROUPED)
    before = router(tokens())
    with capture_order(router) as capture:
        assert same_bits(router(tokens()), before)
        ids = capture.take()
    assert torch.equal(torch.zeros_like(before[1]).scatter(1, ids, True), before[1])
    assert same_bits(router(tokens()), before)


def test_a_replay_of_megatron_decides_and_its_order_is_caught() -> None:
    from megatron.core.transformer.moe.router_replay import RouterReplayAction

    router = router_of(moe_enable_routing_replay=True)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(40)])
    router.router_replay.set_target_indices(ids)
    router.router_replay.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    before = router(tokens())
    with capture_order(router) as capture:
        assert same_bits(router(tokens()), before)
        assert torch.equal(capture.take(), ids)


def test_a_forward_that_fails_late_leaves_no_order_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    router = router_of()
    monkeypatch.setattr(router, "_apply_expert_bias", lambda *args, **kwargs: 1 / 0)  # after the top-k
    with capture_order(router) as capture:
        with pytest.raises(ZeroDivisionError):
            router(tokens())
        assert not capture.pending

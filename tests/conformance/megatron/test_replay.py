"""Replay in the routers of megatron-core's own GPTModel: the same bits on the same ids, other bits on other ids."""

# ruff: noqa: E402  # without megatron-core the module is skipped before it imports what needs it

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch import Tensor, nn

from specalign.integrations.megatron_replay import MegatronReplay, RouterPlace, install
from specalign.routing.errors import RoutingError
from specalign.routing.replay import RoutingReplay
from tests.conformance.megatron.moe import (
    BATCH,
    EXPERTS,
    LAYERS,
    LENGTH,
    TOPK,
    forward_backward,
    gpt,
    loss_of,
    one_rank,
    same_bits,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of megatron-core itself, about what is not installed beside it
]

SEEDS = range(3)
RECOMPUTED = {
    "no recomputation": ({}, 0),
    "full recomputation": ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, 1),
    "experts recomputed": ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, 1),
}
SCORED = {
    "softmax of the chosen": {},
    "softmax before": {"moe_router_pre_softmax": True},
    "sigmoid": {"moe_router_score_function": "sigmoid"},
    "sigmoid and bias": {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    "groups": {"moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_score_function": "sigmoid"},
}


@pytest.fixture(scope="module", autouse=True)
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("gloo")):
        yield


def routers(model: nn.Module) -> list[Any]:
    return [module for name, module in model.named_modules() if name.endswith(".router")]


def chosen_elsewhere(ids: Tensor) -> Tensor:
    """Other experts, as far away as they go."""
    return (ids + EXPERTS // 2) % EXPERTS


def test_what_routers_call_has_the_signature_and_the_results_of_megatrons_own_replay() -> None:
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    parameters = [list(inspect.signature(one.get_replay_topk).parameters) for one in (RoutingReplay, RouterReplay)]
    assert parameters[0] == parameters[1]
    theirs, ours = RouterReplay(), replay()
    RouterReplay.global_router_replay_instances.remove(theirs)
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(7, EXPERTS, generator=generator) for _ in range(2)]
    ids = scores[0].topk(TOPK, dim=1).indices
    theirs.set_target_indices(ids)
    theirs.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    ours.add(ids)
    ours.begin("replay", microbatches=1)
    for mine, other in zip(ours.get_replay_topk(scores[1], TOPK), theirs.get_replay_topk(scores[1], TOPK), strict=True):
        assert same_bits([mine], [other])


@pytest.mark.parametrize("ahead", [0, 1, 2], ids="{} forwards ahead".format)
@pytest.mark.parametrize(("config", "times"), RECOMPUTED.values(), ids=RECOMPUTED.keys())
def test_loss_and_gradients_are_those_of_the_model_without_replay_bit_for_bit(
    config: dict[str, Any], times: int, ahead: int
) -> None:
    plain = forward_backward(gpt(**config), SEEDS, ahead=ahead)
    model = gpt(**config)
    with install(model) as replays:
        with replays.recording(len(SEEDS), recomputations=times):
            recorded = forward_backward(model, SEEDS, ahead=ahead)
        with replays.replaying(len(SEEDS), recomputations=times):
            replayed = forward_backward(model, SEEDS, ahead=ahead)
    for losses, grads in (recorded, replayed):
        assert same_bits(losses, plain[0])
        assert same_bits(grads, plain[1])


@pytest.mark.parametrize("config", SCORED.values(), ids=SCORED.keys())
def test_every_way_of_scoring_replays_to_the_same_bits(config: dict[str, Any]) -> None:
    plain = forward_backward(gpt(**config), SEEDS, ahead=1)
    model = gpt(**config)
    with install(model) as replays:
        with replays.recording(len(SEEDS)):
            forward_backward(model, SEEDS, ahead=1)
        with replays.replaying(len(SEEDS)):
            replayed = forward_backward(model, SEEDS, ahead=1)
    assert same_bits(replayed[0], plain[0])
    assert same_bits(replayed[1], plain[1])


@pytest.mark.parametrize("without_graph", [torch.no_grad, torch.inference_mode])
def test_what_a_pass_without_gradients_recorded_is_replayed_in_training(without_graph: Any) -> None:
    model = gpt(**RECOMPUTED["full recomputation"][0])
    with install(model) as replays:
        with without_graph(), replays.recording(2):
            first = [loss_of(model, seed).clone() for seed in range(2)]
        with replays.replaying(2, recomputations=1):
            again, _ = forward_backward(model, range(2), ahead=1)
    assert same_bits(again, first)


def test_ids_of_one_pass_decide_the_experts_of_another_model() -> None:
    """Weights moved on: only with the old ids does the new model give what its own experts at the old ids give."""
    model = gpt()
    with install(model) as replays:
        with torch.no_grad(), replays.recording(1):
            loss_of(model, 0)
        old = [replay.recorded[0] for replay in replays.replays]
        with torch.no_grad():
            for router in routers(model):
                router.weight.neg_()
        with replays.live():
            live = loss_of(model, 0)
        seen: list[Tensor] = []
        handles = [router.register_forward_hook(lambda module, args, output: seen.append(output[1])) for router in routers(model)]
        with replays.replaying(1):
            replayed = loss_of(model, 0)
        for handle in handles:
            handle.remove()
    assert not same_bits([live.detach()], [replayed.detach()])
    assert len(seen) == LAYERS
    for mask, ids in zip(seen, old, strict=True):
        assert torch.equal(mask, torch.zeros(BATCH * LENGTH, EXPERTS, dtype=torch.bool).scatter(1, ids.long(), True))


@pytest.mark.parametrize("layer", range(LAYERS))
def test_other_ids_in_one_layer_give_another_loss(layer: int) -> None:
    model = gpt()
    with install(model) as replays:
        with replays.recording(1):
            first = loss_of(model, 0).detach()
        ids = [replay.recorded[0] for replay in replays.replays]
        ids[layer] = chosen_elsewhere(ids[layer])
        replays.clear()
        replays.load(ids)
        with replays.replaying(1):
            other = loss_of(model, 0).detach()
    assert not same_bits([first], [other])


def test_microbatches_whose_ids_are_swapped_give_other_losses() -> None:
    model = gpt()
    with install(model) as replays:
        with replays.recording(2):
            first = [loss_of(model, seed).detach() for seed in range(2)]
        ids = [[replay.recorded[at] for replay in replays.replays] for at in range(2)]
        replays.clear()
        for one in reversed(ids):
            replays.load(one)
        with replays.replaying(2):
            swapped = [loss_of(model, seed).detach() for seed in range(2)]
    assert all(not same_bits([one], [other]) for one, other in zip(first, swapped, strict=True))


def test_backwards_in_another_order_than_was_said_are_found() -> None:
    model = gpt(**RECOMPUTED["full recomputation"][0])
    with install(model) as replays:
        with replays.recording(2, recomputations=1):
            forward_backward(model, range(2), ahead=1)
        with pytest.raises(RoutingError, match=r"saw other scores .* of microbatch 1"), replays.replaying(2, recomputations=1):
            (loss_of(model, 0) + loss_of(model, 1)).backward()
        model.zero_grad()
        with replays.replaying(2, recomputations=1, backward_order="lifo"):
            (loss_of(model, 0) + loss_of(model, 1)).backward()


def test_install_names_the_routers_and_remove_gives_back_what_was_there() -> None:
    from megatron.core.transformer.moe.router_replay import RouterReplay

    registered = list(RouterReplay.global_router_replay_instances)
    for config in ({}, {"moe_enable_routing_replay": True}):
        model = gpt(**config)
        before = [router.router_replay for router in routers(model)]
        plain = loss_of(model, 0).detach()
        replays = install(model)
        assert [(place.name, place.layer_number, place.num_experts, place.topk) for place in replays.places] == [
            (f"decoder.layers.{layer}.mlp.router", layer + 1, EXPERTS, TOPK) for layer in range(LAYERS)
        ]
        assert [router.router_replay for router in routers(model)] == list(replays.replays)
        assert [replay.layer_number for replay in replays.replays] == [1, 2]
        with pytest.raises(RoutingError, match=r"decoder\.layers\.0\.mlp\.router: the router ran outside a pass"):
            loss_of(model, 0)
        replays.remove()
        replays.remove()
        assert [router.router_replay for router in routers(model)] == before
        assert same_bits([loss_of(model, 0).detach()], [plain])
    del RouterReplay.global_router_replay_instances[len(registered) :]


def test_virtual_pipeline_chunks_each_have_their_own_replays() -> None:
    chunks = nn.ModuleList([gpt(), gpt()])
    with install(list(chunks)) as replays:
        assert [place.name for place in replays.places] == [
            f"{chunk}.decoder.layers.{layer}.mlp.router" for chunk in (0, 1) for layer in (0, 1)
        ]
        with replays.recording(2):
            first = [loss_of(chunk, seed).detach() for seed in range(2) for chunk in chunks]
        with replays.replaying(2):  # the first chunk runs ahead
            again = [loss_of(chunks[chunk], seed).detach() for chunk, seed in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert same_bits([again[0], again[2], again[1], again[3]], first)


def test_an_orphan_is_named() -> None:
    """A decoder that is built and never called, as in models that build it twice, would take its ids and use none."""
    holder = nn.ModuleDict({"called": gpt(), "orphan": gpt()})
    with (
        install(holder) as replays,
        pytest.raises(RoutingError, match=r"2 of 4 routers .*\n  orphan\.decoder\.layers\.0\.mlp\.router: forward used 0 of 1"),
        replays.recording(1),
    ):
        loss_of(holder["called"], 0)
    with install(holder, routers=["called.*"]) as replays, replays.recording(1):
        loss_of(holder["called"], 0)


def test_given_replays_and_a_factory_are_used() -> None:
    def named(place: RouterPlace) -> RoutingReplay:
        return RoutingReplay(f"layer {place.layer_number}", num_experts=place.num_experts, topk=place.topk)

    model = gpt()
    with install(model, named) as replays:
        assert [replay.name for replay in replays.replays] == ["layer 1", "layer 2"]
        mine = list(replays.replays)
    with install(model, mine) as replays:
        assert list(replays.replays) == mine


def replay(**other: int) -> RoutingReplay:
    return RoutingReplay("mine", **{"num_experts": EXPERTS, "topk": TOPK, **other})


def changed(model: Any, **settings: object) -> Any:
    for name, value in settings.items():
        setattr(model.config, name, value)
    return model


def test_what_would_choose_live_or_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    twice, elsewhere = replay(), replay()
    with install(nn.ModuleList([gpt()]), lambda place: elsewhere if place.layer_number == 1 else replay()):
        for model, replays, options, message in [
            (changed(gpt(), moe_router_fusion=True), None, {}, r"decoder\.layers\.0\.mlp\.router: moe_router_fusion=True"),
            (gpt(experts=None), None, {}, "no MoE router"),
            (gpt(moe_router_load_balancing_type="sinkhorn"), None, {}, "load balancing by sinkhorn"),
            (gpt(moe_aux_loss_coeff=0.01), None, {}, "its auxiliary loss counts the experts of a live top-k"),
            (gpt(), [replay()], {}, "1 replays for 2 routers"),
            (gpt(), [replay(), replay(topk=1)], {}, r"layers\.1\.mlp\.router chooses 2 of 8 experts, its replay mine 1 of 8"),
            (gpt(), [replay(), replay(num_experts=9)], {}, "its replay mine 2 of 9"),
            (gpt(), [twice, twice], {}, "one replay is there twice"),
            (gpt(), [replay(), elsewhere], {}, r"the replay mine is installed on 0\.decoder\.layers\.0\.mlp\.router already"),
            (gpt(), None, {"routers": ["mtp.*"]}, r"no router is called 'mtp\.\*'; there are \['decoder"),
            (gpt(), None, {"routers": []}, r"routers=\[\] chooses none"),
        ]:
            with pytest.raises(RoutingError, match=message):
                install(model, replays, **options)  # type: ignore[arg-type]
            assert [router.router_replay for router in routers(model)] == [None] * len(routers(model)), message
    assert twice.installed_on is None
    with install(gpt(moe_aux_loss_coeff=0.01), allow_live_aux_loss=True) as replays:
        assert isinstance(replays, MegatronReplay)


def test_a_second_install_and_a_foreign_replacement_are_refused() -> None:
    model = gpt()
    with install(model) as replays:
        with pytest.raises(RoutingError, match=r"decoder\.layers\.0\.mlp\.router has a replay already"):
            install(model)
        with pytest.raises(RoutingError, match="while a pass"), replays.live():
            replays.remove()
    replays = install(model)
    routers(model)[1].router_replay = "theirs"
    with pytest.raises(RoutingError, match=r"decoder\.layers\.1\.mlp\.router: router_replay was replaced"):
        replays.remove()
    assert [router.router_replay for router in routers(model)] == [None, "theirs"]


def test_an_exception_in_the_model_leaves_it_installed_and_idle() -> None:
    model = gpt()
    with install(model) as replays:
        handle = model.output_layer.register_forward_pre_hook(lambda module, args: 1 / 0)
        with pytest.raises(ZeroDivisionError), replays.recording(1):
            loss_of(model, 0)
        handle.remove()
        assert [(one.mode, one.microbatches) for one in replays.replays] == [("idle", 0)] * LAYERS
        with replays.recording(1):
            loss_of(model, 0)
    assert [router.router_replay for router in routers(model)] == [None, None]

"""Orders and replays that are used wrongly on purpose: one error at once, never ids of something else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from specalign.integrations.megatron_replay import install  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.order_capture import capture_ids, capture_order  # noqa: E402
from specalign.routing.replay_ids import own_ids  # noqa: E402
from specalign.routing.replay_order import TokenOrder  # noqa: E402
from specalign.routing.scoring import RoutingRule, route, route_scores  # noqa: E402
from tests.unit.routing.replays import EXPERTS, TOPK, ids, replay, scores  # noqa: E402
from tests.unit.routing.replays import route as ask  # noqa: E402


@pytest.mark.parametrize("experts", [256, 300, 384])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_ids_of_a_narrow_dtype_are_compared_as_numbers(dtype: Any, experts: int) -> None:
    given = torch.tensor([[0, 100], [127, 5]], dtype=dtype)
    assert torch.equal(own_ids(given, num_experts=experts, topk=2, where="r", pin=False), given.int())


def test_a_narrow_id_out_of_range_is_still_refused() -> None:
    with pytest.raises(RoutingError, match=r"token 0, slot 1 names expert 200, outside \[0, 128\)"):
        own_ids(torch.tensor([[0, 200]], dtype=torch.uint8), num_experts=128, topk=2, where="r", pin=False)


class Mapped(nn.Module):
    """Returns what Megatron's router returns: weights and a map of experts."""

    router_replay = None

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, hidden > 0


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda result: result[1], r"torch\.bool \[2, 4\].*not a map of experts"),
        (lambda result: result[0].to(torch.complex64), "complex64"),
        (lambda result: [[0, 1]], "a list"),
    ],
)
def test_a_map_of_experts_is_not_taken_for_ids(read: Callable[[Any], Any], message: str) -> None:
    router = Mapped()
    with capture_ids(router, read) as capture:
        with pytest.raises(RoutingError, match=message):
            router(torch.randn(2, 4))
        assert not capture.pending


@pytest.mark.parametrize(("options", "message"), [({"order": "fifo"}, "order = 'fifo'"), ({"check": "on"}, "check = 'on'")])
def test_words_that_are_not_known_are_refused_when_the_capture_is_installed(options: Any, message: str) -> None:
    router = Mapped()
    with pytest.raises(RoutingError, match=message):
        capture_order(router, **options)
    assert "router_replay" not in router.__dict__


def test_a_padded_batch_is_cut_between_positions_only() -> None:
    order = TokenOrder.sequence_first([3, 3, 3, 3], 3)  # 12 rows split into 4, but positions would be parted
    with pytest.raises(RoutingError, match=r"12 rows, not a multiple of 16.*widen a padded batch to a multiple of 4"):
        order.zigzag(0, 2)
    with pytest.raises(
        RoutingError, match="12 rows, 4 for each position, do not split into 2: widen the batch to a multiple of 2"
    ):
        order.sliced(0, 2)
    wide = TokenOrder.sequence_first([3, 3, 3, 3], 4)
    assert [len(wide.zigzag(0, 2).source), len(wide.sliced(1, 2).source)] == [8, 8]


@pytest.mark.parametrize("then", [lambda o: o.zigzag(0, 2), lambda o: o.filled(4), lambda o: o.sliced(0, 2)])
def test_after_sequence_parallelism_nothing_is_cut_or_filled(then: Callable[[TokenOrder], TokenOrder]) -> None:
    with pytest.raises(RoutingError, match="last of all"):
        then(TokenOrder.packed([8, 8]).sliced(0, 2))


@pytest.mark.parametrize("multiple", [0, -4])
def test_a_multiple_is_at_least_one(multiple: int) -> None:
    for call in (lambda: TokenOrder.packed([3], multiple=multiple), lambda: TokenOrder.packed([3]).filled(multiple)):
        with pytest.raises(RoutingError, match=f"multiple = {multiple}: at least 1"):
            call()


def test_a_router_after_the_end_of_its_pass_is_told_that_there_is_none() -> None:
    one = replay()
    one.begin("record", microbatches=1)
    ask(one, scores(0))
    one.end()
    with pytest.raises(RoutingError, match="the router ran outside a pass"):
        ask(one, scores(1))


@pytest.mark.parametrize("options", [{"microbatches": 1.5}, {"microbatches": True}, {"microbatches": 1, "recomputations": 0.5}])
def test_counts_of_a_pass_are_whole_numbers(options: Any) -> None:
    one = replay()
    with pytest.raises(RoutingError, match="is no whole number"):
        one.begin("record", **options)
    assert one.mode == "idle"


def test_a_replay_is_copied_between_passes_only() -> None:
    one = replay()
    one.add(ids(0))
    one.begin("replay", microbatches=1)
    with pytest.raises(RoutingError, match="copied or pickled in a pass"):
        copy.deepcopy(one)
    ask(one, scores(0))
    one.end()
    assert torch.equal(copy.deepcopy(one).recorded[0], one.recorded[0])


class Changing:
    """Other ids at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def materialize(self, stage: Any) -> Tensor:
        self.calls += 1
        return ids(self.calls)


def test_lazy_ids_are_the_same_from_pass_to_pass() -> None:
    one = replay()
    one.add(Changing())
    one.begin("replay", microbatches=1)
    ask(one, scores(0))
    one.end()
    one.begin("replay", microbatches=1)
    with pytest.raises(RoutingError, match="microbatch 0: Changing gave other ids for replay forward than before"):
        ask(one, scores(0))
    one.abandon()
    one.clear()
    one.add(Changing())  # another microbatch 0


class TopKRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_moe_experts=EXPERTS, moe_router_fusion=False)
        self.topk, self.layer_number, self.router_replay = TOPK, 1, "what was there"

    def is_aux_loss_enabled(self) -> bool:
        return False


class Broken:
    def begin_pass(self, stage: Any) -> None: ...

    def close(self) -> None:
        raise OSError("the file is gone")


def test_routers_get_back_what_they_had_even_if_a_resource_does_not_close() -> None:
    router = TopKRouter()
    replays = install(router)
    replays.add_resource(Broken())
    replays.load([ids(0)])
    with pytest.raises(OSError, match="the file is gone"):
        replays.remove()
    assert router.router_replay == "what was there"
    assert replays.replays[0].installed_on is None
    replays.remove()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: route(scores(0).double(), RoutingRule(top_k=1)), "logits are float64"),
        (lambda: route(scores(0).long(), RoutingRule(top_k=1)), "logits are int64"),
        (lambda: route(scores(0), RoutingRule(top_k=1), check_nan="sink"), "check_nan = 'sink'"),  # type: ignore[arg-type]
        (lambda: route_scores(scores(0), RoutingRule(top_k=1), check_nan="sink"), "check_nan = 'sink'"),  # type: ignore[arg-type]
        (lambda: RoutingRule(top_k=1, scale=float("nan")), "scale = nan"),
        (lambda: RoutingRule(top_k=2.0), r"top_k = 2\.0"),  # type: ignore[arg-type]
        (lambda: RoutingRule(top_k=2, groups=2.0), r"groups = 2\.0"),  # type: ignore[arg-type]
        (lambda: RoutingRule(top_k=1, scale=float("inf")), "scale = inf"),
        (
            lambda: route(scores(0), RoutingRule(top_k=1), bias=torch.zeros(EXPERTS, device="meta")),
            "bias is on meta, scores on cpu",
        ),
    ],
)
def test_what_routing_cannot_mean_is_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        made()

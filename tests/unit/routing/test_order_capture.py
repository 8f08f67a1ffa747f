"""Capture of one router's order: once, on that router only, and nothing left behind. On small routers of torch alone."""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specalign.routing.errors import RoutingError
from specalign.routing.order_capture import OrderCapture, capture_ids, capture_order
from specalign.routing.topk import ordered_topk

TOKENS, WIDTH, EXPERTS, TOP_K = 12, 6, 8, 3


class Config:
    moe_router_fusion = False


class SeatedRouter(nn.Module):
    """A router that asks `router_replay` for its top-k as megatron-core's does, and returns a dense map."""

    def __init__(self, seed: int = 0, group_topk: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(seed)))
        self.group_topk, self.config, self.router_replay = group_topk, Config(), None
        self.fail, self.asks = False, 1

    def forward(self, hidden: Tensor) -> Tensor:
        scores = (hidden @ self.weight.T).sigmoid()
        groups = 2 if self.group_topk else None
        for _ in range(self.asks):
            if self.router_replay is None:
                values, ids = self.choose(scores, TOP_K, groups, self.group_topk)
            else:
                values, ids = self.router_replay.get_replay_topk(scores, TOP_K, groups, self.group_topk, self.choose)
        if self.fail:
            raise ZeroDivisionError
        return torch.zeros_like(scores).scatter(1, ids, values) if self.asks else scores

    def choose(
        self, scores: Tensor, topk: int, num_groups: int | None = None, group_topk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        if group_topk:
            scores = scores.masked_fill(torch.arange(EXPERTS) < EXPERTS // 2, -1.0)
        return scores.topk(topk, dim=1)


class PlainRouter(nn.Linear):
    """A router that returns its ids, as transformers' do."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        values, ids = super().forward(hidden).topk(TOP_K)
        return values, ids.int()


def hidden(seed: int = 1) -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().view(torch.int32)


@pytest.mark.parametrize("order", ["engine", "sorted"])
def test_the_order_is_the_one_asked_for_and_the_map_keeps_its_bits(order: Any) -> None:
    router = SeatedRouter()
    before = router(hidden())
    with capture_order(router, order=order) as capture:
        after = router(hidden())
        ids = capture.take()
    assert torch.equal(bits(before), bits(after))
    assert torch.equal(ids, ordered_topk((hidden() @ router.weight.T).sigmoid(), TOP_K, order=order).ids)


def test_an_order_is_handed_over_once() -> None:
    capture = capture_order(router := SeatedRouter())
    with pytest.raises(RoutingError, match="no order is pending on this SeatedRouter"):
        capture.take()
    router(hidden())
    assert capture.pending
    capture.take()
    assert not capture.pending
    with pytest.raises(RoutingError, match="it was taken before"):
        capture.take()


def test_a_forward_while_an_order_is_pending_is_refused_before_it_runs() -> None:
    capture = capture_order(router := SeatedRouter())
    router(hidden())
    router.weight = None  # type: ignore[assignment]  # whatever ran now would fail otherwise
    with pytest.raises(RoutingError, match="nobody took the order of its last forward"):
        router(hidden())
    assert capture.take().shape == (TOKENS, TOP_K)
    with pytest.raises(AttributeError):
        router(hidden())


def test_a_forward_that_fails_leaves_no_order_behind() -> None:
    capture = capture_order(router := SeatedRouter())
    router.fail = True
    with pytest.raises(ZeroDivisionError):
        router(hidden())
    assert not capture.pending
    router.fail = False
    router(hidden(2))
    assert torch.equal(capture.take(), ordered_topk((hidden(2) @ router.weight.T).sigmoid(), TOP_K, order="engine").ids)


def test_discard_forgets_an_order() -> None:
    capture = capture_order(router := SeatedRouter())
    router(hidden())
    capture.discard()
    router(hidden())
    assert capture.pending


@pytest.mark.parametrize(("asks", "message"), [(0, "no top-k came by"), (2, "nobody took the order")])
def test_a_forward_has_one_top_k(asks: int, message: str) -> None:
    capture = capture_order(router := SeatedRouter())
    router.asks = asks
    with pytest.raises(RoutingError, match=message):
        router(hidden())
    assert not capture.pending


def state(router: nn.Module) -> dict[str, Any]:
    return dict(router.__dict__)


@pytest.mark.parametrize("own_forward", [False, True], ids=["of its class", "of its own"])
def test_removing_restores_what_was_there(own_forward: bool) -> None:
    router = SeatedRouter()
    if own_forward:
        router.forward = router.forward  # type: ignore[method-assign]
    before = state(router)
    capture = capture_order(router)
    assert state(router) != before
    router(hidden())
    capture.remove()
    assert state(router) == before
    assert not capture.pending
    assert not capture.installed
    capture.remove()
    capture_order(router).remove()


def test_an_exception_in_the_block_restores_too() -> None:
    router = SeatedRouter()
    before = state(router)
    with pytest.raises(ZeroDivisionError), capture_order(router):
        raise ZeroDivisionError
    assert state(router) == before


def test_what_was_put_over_a_capture_must_go_first() -> None:
    router = SeatedRouter()
    capture = capture_order(router)
    over, router.forward = router.forward, lambda *args: None  # type: ignore[method-assign,assignment]
    with pytest.raises(RoutingError, match=r"SeatedRouter\.forward was replaced after this capture"):
        capture.remove()
    router.forward = over  # type: ignore[method-assign]
    capture.remove()


def test_another_router_is_untouched_bit_for_bit() -> None:
    installed, other = SeatedRouter(0), SeatedRouter(1)
    functions = {name: getattr(torch, name) for name in ("topk", "sort")} | {"method": Tensor.topk, "class": SeatedRouter.forward}
    before, inside = other(hidden()), state(other)
    with capture_order(installed) as capture:
        assert torch.equal(bits(other(hidden())), bits(before))
        assert state(other) == inside
        assert not capture.pending
        installed(hidden())
        assert torch.equal(bits(other(hidden())), bits(before))
        assert capture.take().shape == (TOKENS, TOP_K)
        now = {name: getattr(torch, name) for name in ("topk", "sort")} | {"method": Tensor.topk, "class": SeatedRouter.forward}
        assert now == functions


def test_importing_this_changes_no_router(monkeypatch: pytest.MonkeyPatch) -> None:
    router = SeatedRouter()
    for name in [name for name in sys.modules if name.startswith("specalign.routing")]:
        monkeypatch.delitem(sys.modules, name)
    before, inside = router(hidden()), state(router)
    assert import_module("specalign.routing.order_capture").capture_order is not capture_order  # imported anew
    assert torch.equal(bits(router(hidden())), bits(before))
    assert state(router) == inside


def test_grouped_routing_keeps_its_bits_and_its_order() -> None:
    router = SeatedRouter(group_topk=1)
    router.weight.data.zero_()  # all scores tie: whatever the top-k does with ties must stay
    before = router(hidden())
    scores = torch.full((TOKENS, EXPERTS), 0.5)
    with capture_order(router) as capture:
        assert torch.equal(bits(router(hidden())), bits(before))
        assert torch.equal(capture.take(), router.choose(scores, TOP_K, 2, 1)[1])


def test_a_replay_that_sat_there_still_decides() -> None:
    class Replay:
        seen = 0

        def get_replay_topk(self, scores: Tensor, topk: int, groups: Any, top_groups: Any, default: Any) -> tuple[Tensor, Tensor]:
            self.seen += 1
            ids = torch.arange(topk).flip(0).expand(len(scores), topk)
            return scores.gather(1, ids), ids

    router = SeatedRouter()
    router.router_replay = replay = Replay()  # type: ignore[assignment]
    before = router(hidden())
    with capture_order(router) as capture:
        assert torch.equal(bits(router(hidden())), bits(before))
        assert capture.take().tolist() == [[2, 1, 0]] * TOKENS
        assert router.router_replay.seen == 2  # type: ignore[attr-defined]  # its own attributes are still to be read there
    assert router.router_replay is replay


class TableRouter(SeatedRouter):
    """A router whose experts stand in a table."""

    def choose(
        self, scores: Tensor, topk: int, num_groups: int | None = None, group_topk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        ids = torch.arange(topk).expand(len(scores), topk)
        return scores.gather(1, ids), ids


def test_a_router_that_does_not_choose_by_score_is_refused() -> None:
    router = TableRouter()
    with capture_order(router) as capture:
        with pytest.raises(
            RoutingError, match=r"token 1 of this TableRouter: its own choice is \[0, 1, 2\], .* does not choose by score"
        ):
            router(hidden())
        assert not capture.pending
    with capture_order(router, check="off") as capture:
        router(hidden())
        assert capture.pending


def test_where_the_last_score_is_tied_the_lowest_experts_are_taken_whatever_the_router_would() -> None:
    router = TableRouter()
    router.choose = lambda scores, topk, *groups: SeatedRouter.choose(router, scores.flip(1), topk)  # type: ignore[method-assign]
    router.weight.data.zero_()
    with capture_order(router) as capture:
        router(hidden())
        assert capture.take().tolist() == [[0, 1, 2]] * TOKENS


def test_a_nan_stops_a_captured_router() -> None:
    router = SeatedRouter()
    with capture_order(router), pytest.raises(RoutingError, match=r"scores\[0, 0\] is nan"):
        router(hidden() * float("nan"))


def test_a_router_without_a_top_k_of_its_own_is_refused() -> None:
    router = SeatedRouter()
    router.choose = None  # type: ignore[assignment,method-assign]
    with capture_order(router), pytest.raises(RoutingError, match="gave no top-k of its own"):
        router(hidden())


def test_any_module_is_captured_by_its_result() -> None:
    router = PlainRouter(WIDTH, EXPERTS)
    values, ids = router(hidden())
    with capture_ids(router, lambda result: result[1]) as capture:
        found = router(hidden())
        taken = capture.take()
    assert torch.equal(found[0], values)
    assert found[1].dtype == torch.int32
    assert torch.equal(taken, ids.long())
    assert state(router).get("forward") is None


def test_what_is_read_must_be_ids() -> None:
    router = PlainRouter(WIDTH, EXPERTS)
    with capture_ids(router, lambda result: result[0]) as capture:
        with pytest.raises(RoutingError, match=r"ids of this PlainRouter are torch\.float32 \[12, 3\]"):
            router(hidden())
        assert not capture.pending


def test_a_taken_order_is_a_copy() -> None:
    class Reusing(PlainRouter):
        buffer = torch.zeros(TOKENS, TOP_K, dtype=torch.int64)

        def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
            values, ids = super().forward(hidden)
            return values, self.buffer.copy_(ids)

    router = Reusing(WIDTH, EXPERTS)
    with capture_ids(router, lambda result: result[1]) as capture:
        router(hidden())
        first = router.buffer.clone()
        router.buffer.zero_()
        assert torch.equal(capture.take(), first)


@pytest.mark.parametrize("around", ["forward", "choose"])
def test_a_router_with_a_capture_is_not_copied(around: str) -> None:
    router = SeatedRouter()
    capture = capture_ids(router, lambda result: result[1], around=around)
    with pytest.raises(RoutingError, match="was to be copied or pickled"):
        copy.deepcopy(router)
    capture.remove()
    copy.deepcopy(router)


def fused() -> SeatedRouter:
    router = SeatedRouter()
    router.config.moe_router_fusion = True
    return router


def twice() -> OrderCapture:
    router = SeatedRouter()
    capture_order(router)
    return capture_ids(router, lambda result: result)


@pytest.mark.parametrize(
    ("install", "message"),
    [
        (lambda: capture_order(nn.Linear(2, 2)), "Linear has no router_replay: use capture_ids"),
        (lambda: capture_order(fused()), "moe_router_fusion of this SeatedRouter is on"),
        (lambda: capture_order(SeatedRouter(), around="route"), "SeatedRouter has no method 'route'"),
        (twice, "has an order capture already"),
    ],
)
def test_what_cannot_be_captured_from_is_refused(install: Any, message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        install()

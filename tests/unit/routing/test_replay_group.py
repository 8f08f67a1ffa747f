"""ReplayGroup: the replays of a model together, and the sources that ids are fetched from when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay_group import ReplayGroup  # noqa: E402
from specalign.routing.replay_sources import Stage  # noqa: E402
from tests.unit.routing.replays import EXPERTS, Layer, ids, inputs, recomputed, replay, route, scores  # noqa: E402


@dataclass
class Source:
    """Lazy ids that keep nothing but who asked."""

    give: Callable[[int], Tensor]
    asked: list[Stage] = field(default_factory=list)

    def materialize(self, stage: Stage) -> Tensor:
        self.asked.append(stage)
        return self.give(len(self.asked))


@dataclass
class Resource:
    name: str
    log: list[str]
    fails: bool = False

    def begin_pass(self, stage: Stage) -> None:
        self.log.append(f"{self.name}: {stage.value}")

    def close(self) -> None:
        self.log.append(f"{self.name}: closed")
        if self.fails:
            raise OSError(self.name)


def test_a_router_that_never_runs_fails_the_pass_and_is_named() -> None:
    used, orphan = replay("used"), replay("orphan")
    group = ReplayGroup([used, orphan])
    with (
        pytest.raises(RoutingError, match=r"1 of 2 routers .*\n  orphan: forward used 0 of 1\. Its router never ran"),
        group.recording(1),
    ):
        route(used, scores(0))
    assert (used.microbatches, used.mode, orphan.mode) == (0, "idle", "idle")
    group.load([ids(0), ids(1)])
    with pytest.raises(RoutingError, match="orphan: forward used 0 of 1"), group.replaying(1):
        route(used, scores(0))
    assert (used.microbatches, orphan.microbatches) == (1, 1)


def test_the_first_sixteen_unused_routers_are_named_and_all_are_counted() -> None:
    group = ReplayGroup([replay(f"router {at}") for at in range(20)])
    group.load([ids(0)] * 20)
    with pytest.raises(RoutingError, match="20 of 20 routers") as caught, group.replaying(1):
        pass
    text = str(caught.value)
    assert (text.count("forward used 0 of 1"), "router 15:" in text, "router 16:" in text) == (16, True, False)
    assert text.endswith("and 4 more")


def test_a_microbatch_is_loaded_for_every_router_or_for_none() -> None:
    one, other = replay("one"), replay("other")
    group = ReplayGroup([one, other])
    for wrong, message in [
        ([ids(0)], "ids of 1 routers for 2"),
        ([ids(0), torch.full((5, 2), EXPERTS)], "other, microbatch 0: token 0, slot 0 names expert 8"),
        ([ids(0), ids(1, tokens=4)], "one microbatch, but one has ids of 5 tokens and other of 4"),
    ]:
        with pytest.raises(RoutingError, match=message):
            group.load(wrong)
        assert (one.microbatches, other.microbatches) == (0, 0)
    group.load([ids(0), ids(1)])
    assert torch.equal(other.recorded[0], ids(1).to(torch.int32))


def test_two_routers_cannot_share_a_replay_and_a_group_is_not_empty() -> None:
    one = replay()
    with pytest.raises(RoutingError, match="one replay is there twice"):
        ReplayGroup([one, one])
    with pytest.raises(RoutingError, match="at least one replay"):
        ReplayGroup([])


def test_a_pass_that_cannot_begin_for_one_router_begins_for_none() -> None:
    one, other = replay("one"), replay("other")
    one.add(ids(0))
    with pytest.raises(RoutingError, match="other: a replay of 1 microbatches, but 0"), ReplayGroup([one, other]).replaying(1):
        pass
    assert (one.mode, one.microbatches) == ("idle", 1)


def test_lazy_ids_are_fetched_for_each_use_with_the_stage_that_asks() -> None:
    one, source = replay(), Source(lambda asked: ids(3).to(torch.int16))
    group = ReplayGroup([one])
    group.load([source])
    assert source.asked == []
    layer = Layer(one)
    with group.replaying(1, recomputations=1):
        recomputed(layer, inputs(1)[0]).sum().backward()
    assert layer.seen == [ids(3).tolist()] * 2
    assert source.asked == [Stage.REPLAY_FORWARD, Stage.REPLAY_BACKWARD]


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda asked: torch.full((5, 2), -1), "token 0, slot 0 names expert -1"),
        (lambda asked: ids(0, tokens=4), r"ids of 4 tokens, scores of 5 \(-1\)"),
        (lambda asked: None, "got NoneType"),
        (
            lambda asked: ids(asked),
            "Source gave other ids for replay for recomputation than before",
        ),
    ],
)
def test_lazy_ids_are_checked_whenever_they_come(give: Callable[[int], Tensor], message: str) -> None:
    one = replay()
    group = ReplayGroup([one])
    group.load([Source(give)])
    with pytest.raises(RoutingError, match=f"router, microbatch 0: .*({message})"), group.replaying(1, recomputations=1):
        recomputed(Layer(one), inputs(1)[0]).sum().backward()
    assert one.mode == "idle"


def test_resources_are_begun_for_each_stage_of_a_pass_and_closed_once() -> None:
    one, log = replay(), list[str]()
    group = ReplayGroup([one], [Resource("a", log)])
    group.add_resource(Resource("b", log))
    with group.recording(1):
        route(one, scores(0))
    with group.live():
        route(one, scores(0))
    with pytest.raises(KeyError), group.replaying(1, recomputations=1):
        raise KeyError
    assert log == [
        "a: record",
        "b: record",
        "a: replay forward",
        "b: replay forward",
        "a: replay for recomputation",
        "b: replay for recomputation",
    ]
    log.clear()
    group.close()
    group.close()
    assert log == ["a: closed", "b: closed"]
    assert one.microbatches == 0


def test_a_resource_that_does_not_close_leaves_no_other_open() -> None:
    log = list[str]()
    group = ReplayGroup([replay()], [Resource("a", log, fails=True), Resource("b", log, fails=True), Resource("c", log)])
    with pytest.raises(OSError, match=r"^[ab]$"):
        group.clear()
    assert log == ["a: closed", "b: closed", "c: closed"]


def test_a_resource_that_does_not_begin_leaves_the_group_idle() -> None:
    class Broken(Resource):
        def begin_pass(self, stage: Stage) -> None:
            raise OSError("gone")

    one = replay()
    with pytest.raises(OSError, match="gone"), ReplayGroup([one], [Broken("a", [])]).recording(1):
        pass
    assert one.mode == "idle"


def test_a_closed_group_and_an_open_pass_are_left_alone() -> None:
    one = replay()
    group = ReplayGroup([one])
    with pytest.raises(RoutingError, match="cleared while a pass"), group.recording(1):
        group.close()
    group.close()
    for use in (lambda: group.load([ids(0)]), group.recording(1).__enter__, group.live().__enter__):
        with pytest.raises(RoutingError, match="this group is closed"):
            use()

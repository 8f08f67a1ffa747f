"""RoutingReplay: what is handed out, what is kept, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay import RoutingReplay  # noqa: E402
from specalign.routing.replay_group import ReplayGroup  # noqa: E402
from specalign.routing.replay_ids import mark, own_ids  # noqa: E402
from tests.unit.routing.replays import EXPERTS, TOKENS, TOPK, choose, ids, replay, route, scores  # noqa: E402


def test_a_replay_gives_the_recorded_ids_in_their_columns_and_the_live_scores_at_them() -> None:
    one = replay()
    group = ReplayGroup([one])
    with group.recording(2):
        recorded = [route(one, scores(seed)) for seed in range(2)]
    for (values, found), seed in zip(recorded, range(2), strict=True):
        assert torch.equal(values, choose(scores(seed), TOPK)[0])
        assert torch.equal(found, choose(scores(seed), TOPK)[1])
    for offset in (0, 70):  # once with the scores of the record, once with others; the cursors begin anew
        with group.replaying(2):
            for seed in range(2):
                values, found = route(one, scores(offset + seed))
                assert found.dtype == torch.int64
                assert torch.equal(found, recorded[seed][1])
                rows = torch.arange(TOKENS)[:, None]
                assert torch.equal(values, scores(offset + seed)[rows, recorded[seed][1]])


def test_the_gradient_reaches_the_scores_at_the_ids_and_no_others() -> None:
    one = replay()
    one.add(ids(3))
    live = scores(0).requires_grad_()
    with ReplayGroup([one]).replaying(1):
        values, found = route(one, live)
    upstream = scores(9)[:, :TOPK]
    (values * upstream).sum().backward()
    assert torch.equal(live.grad, torch.zeros(TOKENS, EXPERTS).scatter(1, found, upstream))


def test_what_is_kept_shares_memory_with_nothing() -> None:
    one = replay()
    group = ReplayGroup([one])
    with group.recording(1):
        _, live = route(one, scores(0))
        before = live.clone()
        live.zero_()
    (first,) = one.recorded
    assert torch.equal(first, before.to(torch.int32))
    first.zero_()
    with group.replaying(1):
        _, given = route(one, scores(0))
        given.zero_()
    assert torch.equal(one.recorded[0], before.to(torch.int32))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_a_slice_of_an_all_layer_tensor_is_copied_into_a_storage_of_its_own_size(dtype: torch.dtype) -> None:
    every = torch.stack([ids(seed) for seed in range(16)], dim=1).to(dtype)
    own = own_ids(every[:, 3], num_experts=EXPERTS, topk=TOPK, where="here", pin=False)
    assert (own.dtype, own.shape) == (torch.int32, (TOKENS, TOPK))
    assert own.is_contiguous()
    assert own.untyped_storage().nbytes() == TOKENS * TOPK * 4
    assert torch.equal(own, ids(3).to(torch.int32))
    one = replay()
    one.add(every[:, 3])
    every.zero_()
    assert torch.equal(one.recorded[0], ids(3).to(torch.int32))


def test_contiguous_int32_ids_are_copied_too() -> None:
    mine = ids(0).to(torch.int32)
    one = replay()
    one.add(mine)
    mine.zero_()
    assert torch.equal(one.recorded[0], ids(0).to(torch.int32))


def test_ids_recorded_in_inference_mode_enter_training() -> None:
    one = replay()
    group = ReplayGroup([one])
    with torch.inference_mode(), group.recording(1):
        _, found = route(one, scores(0))
    live = scores(1).requires_grad_()
    with group.replaying(1):
        values, again = route(one, live)
    values.sum().backward()
    assert torch.equal(again, found)
    assert live.grad is not None


def test_no_tokens_and_all_experts_are_routes_too() -> None:
    one = replay()
    group = ReplayGroup([one])
    with group.recording(1):
        route(one, scores(0, tokens=0))
    with group.replaying(1):
        values, found = route(one, scores(0, tokens=0))
    assert values.shape == found.shape == (0, TOPK)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.tensor([[0, 1], [7, 8]]), r"token 1, slot 1 names expert 8, outside \[0, 8\); 1 of 4 ids"),
        (torch.tensor([[0, 1], [-1, 2]]), r"token 1, slot 0 names expert -1, outside"),
        (torch.tensor([[0, (1 << 32) + 1]]), r"token 0, slot 1 names expert 4294967297, outside"),
        (torch.tensor([[0, 1], [3, 3], [4, 4]]), r"token 1 names expert 3 in slots \[0, 1\]; 2 of 3 tokens name one twice"),
        (torch.tensor([[0, 1, 2]]), r"shape \[1, 3\], not \[tokens, 2\]"),
        (torch.tensor([0, 1]), r"shape \[2\], not \[tokens, 2\]"),
        (torch.tensor([[0.0, 1.0]]), r"an integer tensor \[tokens, 2\], got torch.float32 \[1, 2\]"),
        (torch.tensor([[False, True]]), r"got torch.bool"),
        (None, r"got NoneType"),
    ],
)
def test_ids_that_cannot_be_right_are_refused_with_the_first_bad_place(wrong: torch.Tensor, message: str) -> None:
    one = replay()
    with pytest.raises(RoutingError, match=f"router, microbatch 0: .*{message}"):
        one.add(wrong)
    assert one.microbatches == 0


def test_a_router_that_chooses_an_expert_out_of_range_is_not_recorded() -> None:
    one = replay()
    one.begin("record", microbatches=1)
    with pytest.raises(RoutingError, match="names expert 8"):
        one.get_replay_topk(scores(0), TOPK, None, None, lambda *a, **k: (scores(0)[:, :2], torch.full((TOKENS, 2), EXPERTS)))
    assert one.microbatches == 0


def test_outside_a_pass_the_router_stops_and_a_live_pass_is_asked_for_by_name() -> None:
    one = replay()
    with pytest.raises(RoutingError, match="router: the router ran outside a pass"):
        route(one, scores(0))
    with ReplayGroup([one]).live():
        values, found = route(one, scores(0))
    assert torch.equal(values, choose(scores(0), TOPK)[0])
    assert torch.equal(found, choose(scores(0), TOPK)[1])
    assert one.microbatches == 0


def test_groups_are_handed_to_the_routers_own_choice() -> None:
    one, asked = replay(), []

    def grouped(values: torch.Tensor, topk: int, num_groups: int, group_topk: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((topk, num_groups, group_topk))
        return choose(values, topk)

    with ReplayGroup([one]).recording(1):
        one.get_replay_topk(scores(0), TOPK, 4, 2, grouped)
    assert asked == [(TOPK, 4, 2)]


def test_no_choice_to_fall_back_on_is_an_error_where_one_is_needed() -> None:
    one = replay()
    with pytest.raises(RoutingError, match="record needs default_compute_topk"), ReplayGroup([one]).recording(1):
        one.get_replay_topk(scores(0), TOPK)
    one.add(ids(0))
    with ReplayGroup([one]).replaying(1):
        assert torch.equal(one.get_replay_topk(scores(0), TOPK)[1], ids(0))


def test_a_replay_without_ids_or_with_another_number_of_microbatches_does_not_begin() -> None:
    one = replay()
    with pytest.raises(RoutingError, match="a replay of 1 microbatches, but 0 have ids"):
        one.begin("replay", microbatches=1)
    for seed in range(2):
        one.add(ids(seed))
    with pytest.raises(RoutingError, match="a replay of 3 microbatches, but 2 have ids"):
        one.begin("replay", microbatches=3)
    assert one.mode == "idle"


@pytest.mark.parametrize(
    ("live", "topk", "message"),
    [
        (scores(0, tokens=TOKENS + 1), TOPK, r"ids of 5 tokens, scores of 6 \(-1\)"),
        (scores(0)[:, :7], TOPK, r"scores \[5, 7\] and topk 2, this replay is for \[tokens, 8\] and 2"),
        (scores(0), 3, "topk 3"),
    ],
)
def test_scores_that_do_not_fit_are_refused_and_the_cursor_stays(live: torch.Tensor, topk: int, message: str) -> None:
    one = replay()
    one.add(ids(0))
    with ReplayGroup([one]).replaying(1):
        with pytest.raises(RoutingError, match=message):
            one.get_replay_topk(live, topk, None, None, choose)
        assert torch.equal(route(one, scores(0))[1], ids(0))


def test_an_exception_in_the_routers_own_choice_records_nothing() -> None:
    one = replay()

    def fails(*args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise KeyError("mine")

    with ReplayGroup([one]).recording(1):
        with pytest.raises(KeyError, match="mine"):
            one.get_replay_topk(scores(0), TOPK, None, None, fails)
        _, found = route(one, scores(0))
    assert torch.equal(one.recorded[0], found.to(torch.int32))


def test_more_forwards_than_microbatches_are_refused() -> None:
    one = replay()
    with ReplayGroup([one]).recording(1):
        route(one, scores(0))
        with pytest.raises(RoutingError, match="router: forward 2 of a pass of 1 microbatches"):
            route(one, scores(1))
    with ReplayGroup([one]).replaying(1):
        route(one, scores(0))
        with pytest.raises(RoutingError, match="router: forward 2 of a pass of 1 microbatches"):
            route(one, scores(1))


def test_assert_consumed_says_which_router_used_how_many_of_how_many() -> None:
    one = replay("layer 3's router")
    with pytest.raises(RoutingError, match="layer 3's router: no pass was begun"):
        one.assert_consumed()
    for seed in range(3):
        one.add(ids(seed))
    one.begin("replay", microbatches=3)
    with pytest.raises(RoutingError, match=r"layer 3's router: forward used 0 of 3\. Its router never ran"):
        one.assert_consumed()
    route(one, scores(0))
    with pytest.raises(RoutingError, match=r"layer 3's router: forward used 1 of 3$"):
        one.assert_consumed()
    with pytest.raises(RoutingError, match=r"layer 3's router: forward used 1 of 3$"):
        one.end()
    assert (one.mode, one.microbatches) == ("idle", 3)


def route_and_fail(one: RoutingReplay) -> None:
    route(one, scores(0))
    raise KeyError("mine")


def test_a_pass_that_raised_leaves_the_ids_as_they_were_before_it() -> None:
    one = replay()
    group = ReplayGroup([one])
    with pytest.raises(KeyError), group.recording(2):
        route_and_fail(one)
    assert (one.mode, one.microbatches) == ("idle", 0)
    for seed in range(2):
        one.add(ids(seed))
    with pytest.raises(KeyError), group.replaying(2):
        route_and_fail(one)
    assert (one.mode, one.microbatches) == ("idle", 2)
    with group.replaying(2):
        assert [torch.equal(route(one, scores(9))[1], ids(seed)) for seed in range(2)] == [True, True]


def test_a_pass_is_open_once_and_ids_change_between_passes_only() -> None:
    one = replay()
    one.add(ids(0))
    with pytest.raises(RoutingError, match=r"1 microbatches have ids already: clear\(\)"):
        one.begin("record", microbatches=1)
    with pytest.raises(RoutingError, match="a pass is one of"):
        one.begin("idle", microbatches=1)
    one.begin("replay", microbatches=1)
    with pytest.raises(RoutingError, match=r"a pass begins while a pass \(replay\) is open"):
        one.begin("replay", microbatches=1)
    with pytest.raises(RoutingError, match="ids are added while"):
        one.add(ids(1))
    with pytest.raises(RoutingError, match="ids are cleared while"):
        one.clear()
    one.abandon()
    one.clear()
    assert one.microbatches == 0


@pytest.mark.parametrize(
    "options", [{"microbatches": 0}, {"microbatches": 1, "recomputations": -1}, {"microbatches": 1, "backward_order": "x"}]
)
def test_a_pass_of_no_sense_is_refused(options: dict[str, object]) -> None:
    one = replay()
    with pytest.raises(RoutingError, match="router: "):
        one.begin("record", **options)  # type: ignore[arg-type]
    assert one.mode == "idle"


def test_replays_know_nothing_of_each_other() -> None:
    one, other = replay("one"), replay("other")
    one.add(ids(0))
    with ReplayGroup([one]).replaying(1):
        route(one, scores(0))
    assert (other.mode, other.microbatches) == ("idle", 0)


def test_marks_tell_apart_values_places_and_signs_of_zero() -> None:
    values = scores(0)
    others = [
        values.flip(0),
        values.flip(1),
        values + 1,
        torch.zeros(TOKENS, EXPERTS),
        -torch.zeros(TOKENS, EXPERTS),
        values.double(),
    ]
    assert len({int(mark(one)) for one in [values, *others]}) == len(others) + 1
    assert int(mark(values)) == int(mark(values.T.contiguous().T))

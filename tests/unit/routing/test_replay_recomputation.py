"""Two cursors: forwards run ahead of the recomputations inside backward, in every schedule."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay_group import ReplayGroup  # noqa: E402
from tests.unit.routing.replays import Layer, ids, inputs, recomputed, replay, scores  # noqa: E402

SCHEDULES = {
    "one at a time": "F0 B0 F1 B1 F2 B2 F3 B3",
    "1F1B, first stage of three": "F0 F1 F2 B0 F3 B1 B2 B3",
    "1F1B, last stage": "F0 B0 F1 B1 F2 B2 F3 B3",
    "all forwards first": "F0 F1 F2 F3 B0 B1 B2 B3",
    "forwards two ahead": "F0 F1 F2 B0 B1 F3 B2 B3",
}


def run(layer: Layer, schedule: str, *, reentrant: bool) -> list[list[list[int]]]:
    """What the layer saw, one entry a call, in the order of the schedule."""
    xs = inputs(4)
    outs: dict[int, Tensor] = {}
    for step in schedule.split():
        at = int(step[1])
        if step[0] == "F":
            outs[at] = recomputed(layer, xs[at], reentrant=reentrant)
        else:
            outs.pop(at).square().sum().backward()
    return layer.seen


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_every_call_gets_the_ids_of_its_own_microbatch(schedule: str, reentrant: bool) -> None:
    one = replay()
    for at in range(4):
        one.add(ids(at))
    layer = Layer(one)
    with ReplayGroup([one]).replaying(4, recomputations=1):
        seen = run(layer, schedule, reentrant=reentrant)
    assert seen == [ids(int(step[1])).tolist() for step in schedule.split()]


def test_the_gradients_with_recomputation_are_those_without_bit_for_bit() -> None:
    grads = []
    for wrapped in (False, True):
        one = replay()
        for at in range(4):
            one.add(ids(at))
        layer, xs = Layer(one), inputs(4)
        with ReplayGroup([one]).replaying(4, recomputations=int(wrapped)):
            outs = [recomputed(layer, x) if wrapped else layer(x) for x in xs]
            for out in outs:
                out.square().sum().backward()
        grads.append([layer.weight.grad, *(x.grad for x in xs)])
    assert all(torch.equal(plain.view(torch.int32), again.view(torch.int32)) for plain, again in zip(*grads, strict=True))


def test_a_recorded_pass_recomputes_with_what_it_recorded() -> None:
    one = replay()
    layer, xs = Layer(one), inputs(2)
    with ReplayGroup([one]).recording(2, recomputations=1):
        for out in [recomputed(layer, x) for x in xs]:
            out.sum().backward()
    assert one.microbatches == 2
    assert layer.seen == [one.recorded[at].tolist() for at in (0, 1, 0, 1)]


def test_virtual_pipeline_chunks_have_their_own_cursors() -> None:
    """Interleaved: both chunks' forwards of two microbatches run before the later chunk's first backward."""
    replays = [replay("chunk 0"), replay("chunk 1")]
    for number, one in enumerate(replays):
        for at in range(4):
            one.add(ids(10 * number + at))
    chunks = [Layer(one, seed) for seed, one in enumerate(replays)]
    xs, between, outs = inputs(4), {}, {}
    with ReplayGroup(replays).replaying(4, recomputations=1):
        for step in [
            "0F0",
            "0F1",
            "1F0",
            "1F1",
            "0F2",
            "1B0",
            "0F3",
            "1B1",
            "1F2",
            "0B0",
            "1F3",
            "0B1",
            "1B2",
            "1B3",
            "0B2",
            "0B3",
        ]:
            number, kind, at = int(step[0]), step[1], int(step[2])
            if kind == "F" and number == 0:
                between[at] = (recomputed(chunks[0], xs[at]),)
                between[at] = (between[at][0], between[at][0].detach().requires_grad_())
            elif kind == "F":
                outs[at] = recomputed(chunks[1], between[at][1])
            elif number == 1:
                outs[at].sum().backward()
            else:
                between[at][0].backward(between[at][1].grad)
    for number, chunk in enumerate(chunks):
        assert sorted(map(str, chunk.seen)) == sorted(str(ids(10 * number + at).tolist()) for at in (0, 1, 2, 3) * 2)


def test_nested_checkpoints_recompute_twice_and_the_count_is_named() -> None:
    one = replay()
    for at in range(2):
        one.add(ids(at))
    layer = Layer(one)

    def inner(x: Tensor) -> Tensor:
        return recomputed(layer, x, reentrant=True)

    def step() -> None:
        outs = [recomputed(inner, x, reentrant=True) for x in inputs(2)]  # type: ignore[arg-type]
        for out in outs:
            out.sum().backward()

    with ReplayGroup([one]).replaying(2, recomputations=2):
        step()
    assert layer.seen == [ids(at).tolist() for at in (0, 1, 0, 0, 1, 1)]
    with pytest.raises(RoutingError), ReplayGroup([one]).replaying(2, recomputations=1):
        step()


def summed(layer: Layer, xs: list[Tensor]) -> None:
    sum(recomputed(layer, x).sum() for x in xs).backward()  # type: ignore[union-attr]


def test_the_backward_of_a_summed_loss_comes_newest_first_and_the_wrong_order_is_found() -> None:
    one = replay()
    for at in range(3):
        one.add(ids(at))
    layer = Layer(one)
    with ReplayGroup([one]).replaying(3, recomputations=1, backward_order="lifo"):
        summed(layer, inputs(3))
    assert layer.seen == [ids(at).tolist() for at in (0, 1, 2, 2, 1, 0)]
    with (
        pytest.raises(RoutingError, match=r"microbatch 0: its recomputation saw other scores .* those of microbatch 2"),
        ReplayGroup([one]).replaying(3, recomputations=1),
    ):
        summed(layer, inputs(3))


def test_a_recomputation_of_other_bits_is_an_error_unless_it_is_accepted() -> None:
    one = replay()
    one.add(ids(0))
    layer = Layer(one)

    def drifts() -> Callable[[Tensor], Tensor]:
        calls = itertools.count()
        return lambda x: layer(x + next(calls))

    with (
        pytest.raises(RoutingError, match=r"other scores than its forward. What lies before the router"),
        ReplayGroup([one]).replaying(1, recomputations=1),
    ):
        recomputed(drifts(), inputs(1)[0]).sum().backward()  # type: ignore[arg-type]
    with ReplayGroup([one]).replaying(1, recomputations=1, compare_scores=False):
        recomputed(drifts(), inputs(1)[0]).sum().backward()  # type: ignore[arg-type]


def test_recomputation_that_was_not_expected_is_refused() -> None:
    one = replay()
    one.add(ids(0))
    with (
        pytest.raises(RoutingError, match="router: recomputation 1, but 1 forwards are recomputed 0 times each"),
        ReplayGroup([one]).replaying(1),
    ):
        recomputed(Layer(one), inputs(1)[0]).sum().backward()


def first_backward_only(layer: Layer, xs: list[Tensor]) -> None:
    outs = [recomputed(layer, x) for x in xs]
    outs[0].sum().backward()


def test_recomputation_that_did_not_come_is_named() -> None:
    one = replay()
    for at in range(2):
        one.add(ids(at))
    layer, xs = Layer(one), inputs(2)
    with (
        pytest.raises(RoutingError, match="router: recomputation used 1 of 2"),
        ReplayGroup([one]).replaying(2, recomputations=1),
    ):
        first_backward_only(layer, xs)
    with (
        pytest.raises(RoutingError, match="router: recomputation used 0 of 2"),
        ReplayGroup([one]).replaying(2, recomputations=1),
    ):
        torch.stack([layer(x) for x in xs]).sum().backward()  # without checkpoints there is nothing to recompute


def test_an_exception_inside_backward_leaves_the_replay_usable() -> None:
    one = replay()
    one.add(ids(0))
    layer = Layer(one)
    calls = itertools.count()

    def fails_in_backward(x: Tensor) -> Tensor:
        if next(calls):
            raise KeyError("recomputing")
        return layer(x)  # type: ignore[no-any-return]

    with pytest.raises(KeyError, match="recomputing"), ReplayGroup([one]).replaying(1, recomputations=1):
        recomputed(fails_in_backward, inputs(1)[0]).sum().backward()  # type: ignore[arg-type]
    assert one.mode == "idle"
    with ReplayGroup([one]).replaying(1, recomputations=1):
        recomputed(layer, inputs(1)[0]).sum().backward()


def test_scores_are_compared_only_where_they_are_recomputed() -> None:
    one = replay()
    one.add(ids(0))
    with ReplayGroup([one]).replaying(1):
        Layer(one)(scores(0))
    assert one._scores._forwards == {}

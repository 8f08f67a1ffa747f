"""Cursors over every schedule of four microbatches in which a backward follows its forward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specalign.routing.errors import RoutingError
from specalign.routing.replay_cursors import Cursors, Order

COUNT = 4


def schedules(forwards: int = COUNT, waiting: int = 0) -> Iterator[str]:
    """All 14 of them: F is the next forward, B a backward of one that waits for it."""
    if forwards == waiting == 0:
        yield ""
    if forwards:
        yield from ("F" + rest for rest in schedules(forwards - 1, waiting + 1))
    if waiting:
        yield from ("B" + rest for rest in schedules(forwards, waiting - 1))


def follow(schedule: str, order: Order, times: int) -> tuple[list[int], list[int]]:
    """The microbatch of each call, by a plain list of what waits; and by the cursors."""
    cursors, waiting, expected, found = Cursors("router", COUNT, times, order), list[int](), list[int](), list[int]()
    for step in schedule:
        if step == "F":
            waiting.append(len([at for at in expected if at < 0]))
            expected.append(-1 - waiting[-1])
            found.append(-1 - cursors.next_forward())
            cursors.forward_done()
            continue
        expected += [waiting.pop(0 if order == "fifo" else -1)] * times
        for _ in range(times):
            found.append(cursors.next_backward())
            cursors.backward_done()
    assert cursors.missing() == []
    return expected, found


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_every_schedule_is_followed(order: Order, times: int) -> None:
    every = list(schedules())
    assert len(every) == 14
    for schedule in every:
        expected, found = follow(schedule, order, times)
        assert found == expected, schedule


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_what_did_not_come_is_counted_wherever_a_schedule_stops(order: Order) -> None:
    for schedule in schedules():
        cursors = Cursors("router", COUNT, 1, order)
        for done, step in enumerate(schedule):
            forwards, backwards = schedule[:done].count("F"), schedule[:done].count("B")
            told = [f"forward used {forwards} of 4"] * (forwards < COUNT) + [f"recomputation used {backwards} of 4"]
            assert cursors.missing() == told
            (cursors.forward_done if step == "F" else cursors.backward_done)()
        with pytest.raises(RoutingError, match="router: forward 5 of a pass of 4 microbatches"):
            cursors.next_forward()
        with pytest.raises(RoutingError, match="router: recomputation 5, but 4 forwards are recomputed 1 times each"):
            cursors.next_backward()


def test_a_recomputation_before_its_forward_is_refused() -> None:
    with pytest.raises(RoutingError, match="router: recomputation 1, but 0 forwards"):
        Cursors("router", 1, 1, "fifo").next_backward()

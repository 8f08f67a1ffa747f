"""Schedules of forwards and recomputations for the hook `replay`, and what faulty replays hand out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch
from hypothesis import strategies as st
from torch import Tensor

from pytest_specalign.contracts.known_faults import Raised

Call: TypeAlias = Literal["forward", "recompute"]
Served: TypeAlias = tuple[int | None, ...] | Raised
"""The microbatch whose ids each call got, None for ids of none; or the exception."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayCase:
    """The calls of one pass.

    Attributes:
        microbatches: how many have ids.
        calls: what runs, in this order; the recomputation is that of the oldest forward not recomputed yet.
        tokens, slots, experts: of the ids.
    """

    microbatches: int = 2
    calls: tuple[Call, ...] = ("forward", "forward", "recompute", "recompute")
    tokens: int = 3
    slots: int = 2
    experts: int = 8

    def format(self) -> str:
        return f"{self.microbatches} microbatches; " + " ".join("F" if call == "forward" else "R" for call in self.calls)

    def ids(self) -> list[Tensor]:
        """int32 `[T, k]` of each microbatch, no two alike."""
        made = torch.arange(self.tokens)[:, None] + torch.arange(self.slots)[None]
        return [((made + 2 * at) % self.experts).int() for at in range(self.microbatches)]

    def expected(self) -> tuple[int, ...]:
        return _numbered(self, lambda at: at, lambda at: at)

    def served(self, found: Any) -> Served:
        """Which microbatch each tensor belongs to. Raises `TypeError` where they are not as many as calls."""
        if not isinstance(found, Sequence) or len(found) != len(self.calls):
            count = len(found) if isinstance(found, Sequence) else type(found).__name__
            raise TypeError(f"replay(microbatches, calls) returned {count}: expected the ids of each of {len(self.calls)} calls")
        known = [ids.tolist() for ids in self.ids()]
        lists = [ids.tolist() for ids in found]
        return tuple(known.index(ids) if ids in known else None for ids in lists)


def _numbered(case: ReplayCase, forward: Callable[[int], int], recompute: Callable[[int], int]) -> tuple[int, ...]:
    """The n-th forward gets microbatch forward(n), the n-th recomputation recompute(n)."""
    count = {"forward": 0, "recompute": 0}
    served = []
    for call in case.calls:
        served.append((forward if call == "forward" else recompute)(count[call]))
        count[call] += 1
    return tuple(served)


def _shifted(forward: int, recompute: int) -> Callable[[ReplayCase], tuple[int, ...]]:
    return lambda case: _numbered(
        case, lambda at: (at + forward) % case.microbatches, lambda at: (at + recompute) % case.microbatches
    )


def _one_cursor(case: ReplayCase) -> tuple[int, ...]:
    return tuple(at % case.microbatches for at in range(len(case.calls)))


def _last(case: ReplayCase) -> tuple[int, ...]:
    return _numbered(case, lambda at: case.microbatches - 1, lambda at: case.microbatches - 1)


def _newest(case: ReplayCase) -> tuple[int, ...]:
    """The recomputation is taken for that of the newest forward."""
    waiting: list[int] = []
    served: list[int] = []
    for call in case.calls:
        if call == "forward":
            waiting.append(sum(one == "forward" for one in case.calls[: len(served)]))
            served.append(waiting[-1])
        else:
            served.append(waiting.pop())
    return tuple(served)


_LOOKS: Final[tuple[tuple[str, Callable[[ReplayCase], tuple[int, ...]]], ...]] = (
    *(("cursor-off-by-one", _shifted(f, r)) for f, r in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1))),
    ("one-cursor-for-both", _one_cursor),
    ("last-microbatch-for-all", _last),
    ("newest-forward-recomputed", _newest),
)


def diagnose_replay(case: ReplayCase, got: Served, seen: Sequence[tuple[ReplayCase, Served]]) -> str | None:
    """The name of the fault that hands out this, and most of what was `seen`."""
    fitting = [(name, gives) for name, gives in _LOOKS if gives(case) == got and got != case.expected()]
    score = [sum(gives(one) == served for one, served in seen) for _, gives in fitting]
    return fitting[score.index(max(score))][0] if fitting else None


REPLAY_FAULTS: Final = (
    (
        "cursor-off-by-one",
        (),
        "a call gets the ids of the microbatch before or after its own",
        "Count forwards and recomputations from 0, each by a cursor of its own, and move it after the call.",
    ),
    (
        "one-cursor-for-both",
        (),
        "forwards and recomputations move one cursor, so they take each other's ids",
        "Keep two cursors.",
    ),
    (
        "last-microbatch-for-all",
        (),
        "one target is kept and each microbatch overwrites it, so all of them get the last one's ids",
        "Keep the ids of every microbatch.",
    ),
    (
        "newest-forward-recomputed",
        (),
        "a recomputation gets the ids of the newest forward, where pipeline schedules run backward for the oldest",
        "Recompute in the order of the forwards.",
    ),
    (
        "orphaned-replay",
        ("verl #7340", "verl #7805"),
        "ids are left over at the end and nobody notices: the router that they were for never asked",
        "Count what was used, and raise at the end of the pass unless all of it was.",
    ),
    (
        "replay-exhausted",
        (),
        "a call beyond the recorded ids is answered all the same, by ids used before or a live choice",
        "Raise where no ids are left.",
    ),
)
"""(name, references, summary, remedy)."""


def schedules(cls: Any) -> st.SearchStrategy[ReplayCase]:
    """Whole passes, with recomputations or without; examples shrink towards one microbatch."""
    return st.integers(1, 4).flatmap(lambda count: st.one_of(st.just(_plain(count)), _interleaved(count)))


def _forwards(count: int) -> tuple[Call, ...]:
    call: Call = "forward"
    return (call,) * count


def _plain(count: int) -> ReplayCase:
    return ReplayCase(count, _forwards(count))


def _interleaved(count: int) -> st.SearchStrategy[ReplayCase]:
    """How many forwards run before each recomputation."""
    leads = st.lists(st.integers(0, count), min_size=count, max_size=count)
    return leads.map(lambda lead: ReplayCase(count, _calls(count, lead)))


def _calls(count: int, leads: Sequence[int]) -> tuple[Call, ...]:
    calls: list[Call] = []
    for at, lead in enumerate(leads):
        done = calls.count("forward")
        calls += ["forward"] * (min(count, at + 1 + lead) - done)
        calls.append("recompute")
    return tuple(calls)


def schedule_examples(cls: Any) -> Sequence[ReplayCase]:
    return [ReplayCase(), ReplayCase(4, _calls(4, (2, 0, 1, 0))), _plain(3)]


def cut_short(cls: Any) -> st.SearchStrategy[ReplayCase]:
    """Passes that end before the last forward."""
    return st.integers(1, 4).map(lambda count: ReplayCase(count, _forwards(count - 1)))


def drawn_out(cls: Any) -> st.SearchStrategy[ReplayCase]:
    """Passes with one forward too many."""
    return st.integers(1, 4).map(lambda count: ReplayCase(count, _forwards(count + 1)))

"""The replays of one model, driven together. A plain object: there may be any number of groups, and none knows of another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.replay import Mode, RoutingReplay
from specalign.routing.replay_cursors import Order
from specalign.routing.replay_sources import LazyIds, LazyResource, Stage

SHOWN = 16
"""How many routers one error names."""


class ReplayGroup:
    """Replays in the order in which the model has its routers.

    Args:
        replays: one a router.
        resources: what lazy ids read from; begun before each pass, closed with `clear` and `close`.

    Raises:
        RoutingError: no replay, or one of them twice.
    """

    def __init__(self, replays: Iterable[RoutingReplay], resources: Iterable[LazyResource] = ()) -> None:
        self.replays = tuple(replays)
        self._resources = list(resources)
        self._closed = False
        if not self.replays:
            raise RoutingError("a group needs at least one replay")
        if len({id(replay) for replay in self.replays}) != len(self.replays):
            raise RoutingError("one replay is there twice: two routers would take turns at its cursors. Make one for each router")

    def add_resource(self, resource: LazyResource) -> None:
        """Begin and close `resource` with the passes of this group."""
        self._resources.append(resource)

    def load(self, ids: Sequence[Tensor | LazyIds]) -> None:
        """Give the next microbatch's ids: one `[T, k]` a router, in the order of `replays`. All of them are kept, or none.

        Raises:
            RoutingError: another number of them, different numbers of tokens, ids that cannot be right, or an open pass.
        """
        self._need_open()
        if len(ids) != len(self.replays):
            raise RoutingError(
                f"ids of {len(ids)} routers for {len(self.replays)}: give one tensor a router, in the order of replays"
            )
        kept = [replay.prepare(one) for replay, one in zip(self.replays, ids, strict=True)]
        self._check_tokens(kept)
        for replay, one in zip(self.replays, kept, strict=True):
            replay.add(one)

    @contextlib.contextmanager
    def recording(self, microbatches: int, **options: int | Order | bool) -> Iterator[ReplayGroup]:
        """A pass in which the routers choose and their ids are kept. Options are those of `RoutingReplay.begin`.

        At its end every forward and recomputation of every router must have come; if one did not, or the pass raised, what was
        recorded is dropped and the group is idle.
        """
        with self._passing("record", microbatches, options):
            yield self

    @contextlib.contextmanager
    def replaying(self, microbatches: int, **options: int | Order | bool) -> Iterator[ReplayGroup]:
        """A pass with the ids that are kept, from the first microbatch on; ended as `recording`, but ids are never dropped."""
        with self._passing("replay", microbatches, options):
            yield self

    @contextlib.contextmanager
    def live(self) -> Iterator[ReplayGroup]:
        """A pass in which the routers choose and nothing is kept or counted: a reference model, an evaluation."""
        with self._passing("live", 0, {}):
            yield self

    def assert_consumed(self) -> None:
        """Raises `RoutingError` unless each replay's pass was used up; names the first 16 that were not, and counts all."""
        problems = []
        for replay in self.replays:
            try:
                replay.assert_consumed()
            except RoutingError as problem:
                problems.append(str(problem))
        if problems:
            more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
            head = f"{len(problems)} of {len(self.replays)} routers did not use the ids of the pass as it was begun:"
            raise RoutingError("\n  ".join([head, *problems[:SHOWN], *more]))

    def clear(self) -> None:
        """Forget all ids and close the resources they came from. Raises `RoutingError` in a pass."""
        for replay in self.replays:
            replay.clear()
        self._close_resources()

    def close(self) -> None:
        """`clear`, and refuse any further use. A second call does nothing."""
        if not self._closed:
            self.clear()
            self._closed = True

    @contextlib.contextmanager
    def _passing(self, mode: Mode, microbatches: int, options: dict[str, int | Order | bool]) -> Iterator[None]:
        self._need_open()
        with contextlib.ExitStack() as undo:
            for replay in self.replays:
                replay.begin(mode, microbatches=microbatches, **options)  # type: ignore[arg-type]
                undo.callback(replay.abandon)
            for stage in _stages(mode, recomputed=bool(options.get("recomputations"))):
                for resource in self._resources:
                    resource.begin_pass(stage)
            yield
            if mode != "live":
                self.assert_consumed()
            undo.pop_all()
        for replay in self.replays:
            replay.end()

    def _check_tokens(self, kept: Sequence[Tensor | LazyIds]) -> None:
        counts = {replay.name: len(ids) for replay, ids in zip(self.replays, kept, strict=True) if isinstance(ids, Tensor)}
        first = next(iter(counts), "")
        other = next((name for name, count in counts.items() if count != counts[first]), None)
        if other is not None:
            raise RoutingError(f"one microbatch, but {first} has ids of {counts[first]} tokens and {other} of {counts[other]}")

    def _close_resources(self) -> None:
        resources, self._resources = self._resources, []
        with contextlib.ExitStack() as closing:  # each is closed, whatever the others raise
            for resource in reversed(resources):
                closing.callback(resource.close)

    def _need_open(self) -> None:
        if self._closed:
            raise RoutingError("this group is closed")


def _stages(mode: Mode, *, recomputed: bool) -> list[Stage]:
    if mode == "live":
        return []
    first = Stage.RECORD if mode == "record" else Stage.REPLAY_FORWARD
    return [first, Stage.REPLAY_BACKWARD] if recomputed else [first]

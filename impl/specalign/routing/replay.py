"""`RoutingReplay`: the experts that one router chose, kept and handed out again.

It has the `get_replay_topk` that megatron-core's routers call (0.16.1 and 0.19.2 alike), and none of the ways in which
megatron-core's own `RouterReplay` goes wrong in silence: there is no list of all replays in the process, each microbatch has its
ids, what is kept is a checked copy, what was used is counted, and where ids are missing the router stops instead of choosing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.replay_cursors import Cursors, Order
from specalign.routing.replay_ids import index_of, mark, own_ids
from specalign.routing.replay_scores import ScoreMarks
from specalign.routing.replay_sources import LazyIds, Stage

Mode = Literal["idle", "live", "record", "replay"]
PASSES = ("live", "record", "replay")
TopK = Callable[..., tuple[Tensor, Tensor]]


class RoutingReplay:
    """One router's replay. `ReplayGroup` drives those of a model together; `install` puts them into Megatron's routers.

    It is `idle` until a pass begins. A pass is `record` (the router chooses, its ids are kept), `replay` (the ids given are used,
    with the live scores gathered at them) or `live` (the router chooses, nothing is kept). In `record` and `replay` a call inside
    a running backward is an activation recomputation: it gets the ids of the forward that it repeats, by a cursor of its own.

    Args:
        name: what messages call the router.
        num_experts, topk: E and k. Scores are `[T, E]`, ids `[T, k]`.
        pin: keep the ids in page-locked memory; by default where CUDA is there.
    """

    def __init__(self, name: str, *, num_experts: int, topk: int, pin: bool | None = None) -> None:
        if not 1 <= topk <= num_experts:
            raise RoutingError(f"{name}: topk {topk} is outside [1, {num_experts}], the number of experts")
        self.name, self.num_experts, self.topk = name, num_experts, topk
        self.pin = torch.cuda.is_available() if pin is None else pin
        self.layer_number: int | None = None
        """Megatron's number of the layer, from 1; megatron-core 0.19 writes it here."""
        self.installed_on: str | None = None
        """The router that holds this replay. Written by who installs it."""
        self._mode: Mode = "idle"
        self._kept: list[Tensor | LazyIds] = []
        self._cursors: Cursors | None = None
        self._scores = ScoreMarks(name, compare=False)
        self._served: dict[int, int] = {}

    @property
    def mode(self) -> Mode:
        """What the router does with a call now."""
        return self._mode

    @property
    def microbatches(self) -> int:
        """How many microbatches have ids here."""
        return len(self._kept)

    @property
    def recorded(self) -> tuple[Tensor, ...]:
        """A copy of the ids of each microbatch, `[T, k]` int32 on the CPU; lazy ones are fetched."""
        return tuple(self._fetch(at, Stage.REPLAY_FORWARD).clone() for at in range(len(self._kept)))

    def prepare(self, ids: Tensor | LazyIds) -> Tensor | LazyIds:
        """What `add` would keep, kept nowhere yet. Raises `RoutingError` as `own_ids` does; lazy ids are checked when fetched."""
        if not isinstance(ids, Tensor) and isinstance(ids, LazyIds):
            return ids
        return self._own(ids, len(self._kept))

    def add(self, ids: Tensor | LazyIds) -> None:
        """Give the ids of the next microbatch, `[T, k]`. Raises `RoutingError` in a pass, and for ids that cannot be right."""
        self._need_idle("ids are added")
        self._kept.append(self.prepare(ids))

    def clear(self) -> None:
        """Forget all ids. Raises `RoutingError` in a pass."""
        self._need_idle("ids are cleared")
        self._kept.clear()
        self._served.clear()
        self._cursors = None

    def begin(
        self,
        mode: Mode,
        *,
        microbatches: int = 0,
        recomputations: int = 0,
        backward_order: Order = "fifo",
        compare_scores: bool = True,
    ) -> None:
        """Begin a pass, with both cursors at the first microbatch.

        Args:
            microbatches: how many forwards the pass has; for `live` it does not count.
            recomputations: how often each forward is recomputed inside backward (activation recomputation).
            backward_order: whose backward comes next, see `Cursors`.
            compare_scores: a recomputation must see the bits of the scores that its forward saw. This finds a wrong
                `backward_order`, which would hand out another microbatch's ids. On a GPU nothing waits: it is looked at in
                `assert_consumed`.

        Raises:
            RoutingError: a pass is open, `record` where ids are kept already, `replay` with another number of microbatches
                than have ids.
        """
        self._need_idle("a pass begins")
        if mode not in PASSES:
            raise RoutingError(f"{self.name}: a pass is one of {PASSES}, got {mode!r}")
        if mode == "record" and self._kept:
            raise RoutingError(f"{self.name}: {len(self._kept)} microbatches have ids already: clear() before recording others")
        if mode == "replay" and len(self._kept) != microbatches:
            raise RoutingError(
                f"{self.name}: a replay of {microbatches} microbatches, but {len(self._kept)} have ids: add the ids of each, in"
                " the order of their forwards"
            )
        self._cursors = None if mode == "live" else Cursors(self.name, microbatches, recomputations, backward_order)
        self._scores = ScoreMarks(self.name, compare=compare_scores and recomputations > 0)
        self._mode = mode

    def end(self) -> None:
        """End the pass. Raises as `assert_consumed`, and then the pass is abandoned."""
        try:
            if self._mode != "live":
                self.assert_consumed()
        except RoutingError:
            self.abandon()
            raise
        self._mode = "idle"

    def abandon(self) -> None:
        """End a pass that failed: idle again, ids as they were before it (those it recorded are dropped)."""
        if self._mode == "record":
            self._kept.clear()
        self._mode, self._cursors = "idle", None

    def assert_consumed(self) -> None:
        """Raises `RoutingError` unless every forward and recomputation of the pass came, and saw the scores that it must."""
        if self._cursors is None:
            raise RoutingError(f"{self.name}: no pass was begun, so nothing can have been used")
        missing = self._cursors.missing()
        if missing:
            hint = "" if self._cursors.forward else ". Its router never ran: is it the one that the model calls?"
            raise RoutingError(f"{self.name}: {', '.join(missing)}{hint}")
        self._scores.check()

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopK | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What megatron-core's `topk_routing_with_score_function` calls in place of its own top-k.

        Args:
            scores: `[T, E]`, live.
            default_compute_topk: `(scores, topk, num_groups=, group_topk=) -> (values, ids)`.

        Returns:
            The scores at the ids, `[T, k]`, with their gradient, and the ids, `[T, k]` int64; both in the column order that was
            recorded or given.

        Raises:
            RoutingError: no pass is open, it has no ids left, or scores and ids do not fit. The cursors then stand where they
                stood.
        """
        self._check_call(scores, topk)
        compute = _needed(default_compute_topk, self.name, self._mode)
        if self._mode == "live":
            return compute(scores, topk, num_groups=num_groups, group_topk=group_topk)
        if self._cursors is None or self._mode == "idle":
            raise RoutingError(
                f"{self.name}: the router ran outside a pass. Choosing live is never done in silence: open one with recording(),"
                " replaying() or, if that is meant, live()"
            )
        if in_backward():
            return self._recompute(scores, self._cursors)
        if self._mode == "replay":
            return self._forward(scores, self._cursors)
        return self._record(
            scores, self._cursors, lambda live: compute(live, topk, num_groups=num_groups, group_topk=group_topk)[1]
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._mode != "idle":
            raise RoutingError(f"{self.name} was to be copied or pickled in a pass: nobody would count what the copy uses")
        return super().__reduce_ex__(protocol)

    def _record(self, scores: Tensor, cursors: Cursors, choose: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        at = cursors.next_forward()
        # Chosen without a graph and gathered as a replay gathers: a checkpoint counts what autograd saves, and the recomputation
        # does not choose. Not under no_grad, which makes megatron-core 0.19 choose in another column order.
        ids = choose(scores.detach())
        kept = self._own(ids, at)
        self._check_rows(kept, scores, at)
        self._scores.forward(at, scores)
        self._kept.append(kept)
        cursors.forward_done()
        index = ids.to(torch.int64)
        return scores.gather(1, index), index

    def _forward(self, scores: Tensor, cursors: Cursors) -> tuple[Tensor, Tensor]:
        at = cursors.next_forward()
        found = self._gather(scores, at, Stage.REPLAY_FORWARD)
        self._scores.forward(at, scores)
        cursors.forward_done()
        return found

    def _recompute(self, scores: Tensor, cursors: Cursors) -> tuple[Tensor, Tensor]:
        at = cursors.next_backward()
        found = self._gather(scores, at, Stage.REPLAY_BACKWARD)
        self._scores.recomputed(at, scores)
        cursors.backward_done()
        return found

    def _gather(self, scores: Tensor, at: int, stage: Stage) -> tuple[Tensor, Tensor]:
        ids = self._fetch(at, stage)
        self._check_rows(ids, scores, at)
        index = index_of(ids, scores.device, pinned=self.pin)
        return scores.gather(1, index), index

    def _fetch(self, at: int, stage: Stage) -> Tensor:
        kept = self._kept[at]
        if isinstance(kept, Tensor):
            return kept
        ids = self._own(kept.materialize(stage), at)
        marked = int(mark(ids))
        if self._served.setdefault(at, marked) != marked:
            raise RoutingError(
                f"{self.name}, microbatch {at}: {type(kept).__name__} gave other ids for {stage.value} than before"
            )
        return ids

    def _own(self, ids: Tensor, at: int) -> Tensor:
        where = f"{self.name}, microbatch {at}"
        return own_ids(ids, num_experts=self.num_experts, topk=self.topk, where=where, pin=self.pin)

    def _check_rows(self, ids: Tensor, scores: Tensor, at: int) -> None:
        if len(ids) != len(scores):
            raise RoutingError(
                f"{self.name}, microbatch {at}: ids of {len(ids)} tokens, scores of {len(scores)} ({len(ids) - len(scores):+d})."
                " Are padding and the slices of sequence and context parallelism those of the model?"
            )

    def _check_call(self, scores: Tensor, topk: int) -> None:
        if scores.dim() != 2 or scores.shape[1] != self.num_experts or topk != self.topk:
            raise RoutingError(
                f"{self.name}: scores {list(scores.shape)} and topk {topk}, this replay is for [tokens, {self.num_experts}] and"
                f" {self.topk}"
            )
        if scores.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RoutingError(f"{self.name}: a CUDA graph would replay one microbatch's ids: set cuda_graph_impl='none'")

    def _need_idle(self, what: str) -> None:
        if self._mode != "idle":
            raise RoutingError(f"{self.name}: {what} while a pass ({self._mode}) is open: end it first")


def in_backward() -> bool:
    """Whether autograd is running backward in this thread, so that a router called now is being recomputed."""
    return int(torch._C._current_graph_task_id()) != -1


def _needed(compute: TopK | None, name: str, mode: Mode) -> TopK:
    def missing(*args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        raise RoutingError(f"{name}: {mode} needs default_compute_topk, and the caller gave none")

    return compute or missing

"""Whether a recomputation sees the scores that its forward saw."""

from __future__ import annotations

from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.replay_ids import mark


class ScoreMarks:
    """A mark of each forward's scores, and what became of them in recomputation.

    On the CPU a difference raises at once. On another device nothing waits: `check` reads all marks.

    Args:
        compare: False keeps and compares nothing.
    """

    def __init__(self, name: str, *, compare: bool) -> None:
        self.name, self._compare = name, compare
        self._forwards: dict[int, Tensor] = {}
        self._pending: list[tuple[int, Tensor]] = []

    def forward(self, microbatch: int, scores: Tensor) -> None:
        """Keep the mark of a forward's scores `[T, E]`."""
        if self._compare:
            self._forwards[microbatch] = mark(scores)

    def recomputed(self, microbatch: int, scores: Tensor) -> None:
        """Compare, at once or later. Raises `RoutingError` as `check` does."""
        if not self._compare:
            return
        self._pending.append((microbatch, mark(scores)))
        if scores.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Raises `RoutingError` for the first recomputation whose scores are not those of its forward. Waits for the GPU."""
        pending, self._pending = self._pending, []
        for microbatch, seen in pending:
            if int(seen) != int(self._forwards[microbatch]):
                raise RoutingError(self._difference(microbatch, int(seen)))

    def _difference(self, microbatch: int, seen: int) -> str:
        text = f"{self.name}, microbatch {microbatch}: its recomputation saw other scores than its forward"
        owner = next((other for other, marked in self._forwards.items() if int(marked) == seen), None)
        if owner is None:
            return f"{text}. What lies before the router does not compute the same bits twice; compare_scores=False accepts that"
        return f"{text}: they are those of microbatch {owner}. Backwards come in another order: set backward_order"

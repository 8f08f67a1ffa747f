"""Which microbatch the next forward and the next recomputation of one router belong to, and whether all of them came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from specalign.routing.errors import RoutingError

Order = Literal["fifo", "lifo"]
ORDERS = ("fifo", "lifo")


@dataclass(slots=True)
class Cursors:
    """The two cursors of one pass: forwards run ahead of recomputations in every pipeline schedule.

    Attributes:
        microbatches: how many forwards the pass has.
        recomputations: how often each of them is recomputed: 0, 1, or more where checkpoints are nested.
        order: the backward that comes next is that of the oldest forward (`fifo`: Megatron's schedules), or of the newest
            (`lifo`: one backward of a summed loss).
        forward, backward: how many came so far.
    """

    name: str
    microbatches: int
    recomputations: int
    order: Order
    forward: int = 0
    backward: int = 0
    _waiting: list[list[int]] = field(default_factory=list)  # [microbatch, recomputations that it still has]

    def __post_init__(self) -> None:
        for name, number in (("microbatches", self.microbatches), ("recomputations", self.recomputations)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise RoutingError(f"{self.name}: {name} = {number!r} is no whole number")
        if self.microbatches < 1 or self.recomputations < 0:
            raise RoutingError(
                f"{self.name}: a pass has at least 1 microbatch and 0 recomputations of each, got {self.microbatches} and"
                f" {self.recomputations}"
            )
        if self.order not in ORDERS:
            raise RoutingError(f"{self.name}: backward_order is one of {ORDERS}, got {self.order!r}")

    def next_forward(self) -> int:
        """The microbatch of the forward that runs now. Raises `RoutingError` where there is none left."""
        if self.forward == self.microbatches:
            raise RoutingError(
                f"{self.name}: forward {self.forward + 1} of a pass of {self.microbatches} microbatches. Was the pass begun with"
                " the right count, and was every forward of it wanted?"
            )
        return self.forward

    def next_backward(self) -> int:
        """The microbatch of the recomputation that runs now. Raises `RoutingError` where none waits for one."""
        if not self._waiting:
            raise RoutingError(
                f"{self.name}: recomputation {self.backward + 1}, but {self.forward} forwards are recomputed"
                f" {self.recomputations} times each. With activation recomputation begin the pass with"
                " recomputations=1, or more where checkpoints are nested"
            )
        return self._waiting[self._next][0]

    def forward_done(self) -> None:
        """The forward of `next_forward` has its ids."""
        if self.recomputations:
            self._waiting.append([self.forward, self.recomputations])
        self.forward += 1

    def backward_done(self) -> None:
        """The recomputation of `next_backward` has its ids."""
        self.backward += 1
        self._waiting[self._next][1] -= 1
        if not self._waiting[self._next][1]:
            self._waiting.pop(self._next)

    def missing(self) -> list[str]:
        """What did not come, in words."""
        asked = {"forward": self.microbatches, "recomputation": self.microbatches * self.recomputations}
        came = {"forward": self.forward, "recomputation": self.backward}
        return [f"{what} used {came[what]} of {count}" for what, count in asked.items() if came[what] != count]

    @property
    def _next(self) -> int:
        return 0 if self.order == "fifo" else -1

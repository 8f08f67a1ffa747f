"""Where the ids of a microbatch come from when they are not in memory yet, and which use of them is asked for."""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable

from torch import Tensor


class Stage(enum.Enum):
    """What one call of a router does with its ids."""

    RECORD = "record"
    REPLAY_FORWARD = "replay forward"
    REPLAY_BACKWARD = "replay for recomputation"


@runtime_checkable
class LazyIds(Protocol):
    """The ids of one router and one microbatch, fetched when the router asks: once for each forward and each recomputation."""

    def materialize(self, stage: Stage) -> Tensor:
        """`[T, k]` integers on any device, the same at every call; they are checked at every call."""
        ...


class LazyResource(Protocol):
    """What several `LazyIds` read from: a file, a shared buffer."""

    def begin_pass(self, stage: Stage) -> None:
        """Called before a pass that will ask for this stage. A replay with recomputation begins two: their cursors interleave."""
        ...

    def close(self) -> None:
        """Called once, when the ids are dropped."""
        ...

"""What can go wrong with a group of ranks, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


class RankGroupError(ValueError):
    """A group that cannot be made, or a function that cannot be sent to its ranks; the message says what to do."""


class RankWarning(UserWarning):
    """Processes that a function left behind; they were killed."""


@dataclasses.dataclass(frozen=True)
class RankFailure:
    """Why one rank gave no result.

    Attributes:
        rank: its number, from 0.
        host: the machine that it ran on.
        pid: of its process there; None where it never said.
        reason: one line: what was raised, the exit code or signal that it ended by, or what it was late for.
        details: a traceback, or the stacks of its threads; may be empty.
        first: whether it failed before all others: their failures may follow from this one.
    """

    rank: int
    host: str
    pid: int | None
    reason: str
    details: str = ""
    first: bool = False

    def __str__(self) -> str:
        pid = "pid unknown" if self.pid is None else f"pid {self.pid}"
        head = f"rank {self.rank} ({self.host}, {pid}) {self.reason}{' [the first to fail]' if self.first else ''}"
        return "\n".join([head, *(f"  {line}" for line in self.details.rstrip().splitlines())])


class RanksFailedError(RankGroupError):
    """At least one rank gave no result.

    Attributes:
        failures: of every failing rank, by rank.
    """

    def __init__(self, what: str, world_size: int, failures: Sequence[RankFailure], notes: Sequence[str] = ()) -> None:
        self.failures = tuple(failures)
        head = f"{what}: {len(self.failures)} of {world_size} ranks failed"
        told = [line for failure in self.failures for line in str(failure).splitlines()]
        super().__init__("\n".join([head, *(f"  {line}" for line in (*told, *notes))]))

"""Where the ranks of an outer launch tell each other how they are: keys in the launch's store."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib
import json
import os
import socket
import time
from typing import Any, Final

from specalign.ranks.errors import RankFailure, RankGroupError, RanksFailedError
from specalign.ranks.launch import Launch

_POLL: Final = 0.02


@dataclasses.dataclass
class Meeting:
    """The way of one process to its launch.

    Attributes:
        store: torch's store of the launch; made the first time, and kept, since rank 0 may be its server.
        runs: place → how often this process has been there.
    """

    store: Any = None
    runs: dict[str, int] = dataclasses.field(default_factory=dict)

    def board(self, torch: Any, launch: Launch, what: str, place: str, timeout: float) -> Board:
        """The board of one run: of its own, so that a rank that missed an earlier one does not stay behind.

        Raises:
            RankGroupError: the store cannot be reached, or the ranks did not all come to it.
        """
        if self.store is None:
            self.store = _open_store(torch, timeout)
        self.runs[place] = self.runs.get(place, 0) + 1
        return Board(self.store, launch, what, f"{place} (run {self.runs[place]})")

    def part(self, launch: Launch, timeout: float) -> None:
        """Wait for the others at the end: torchrun stops all processes when the first one ends with an exit code.

        Args:
            launch: this process's place.
            timeout: seconds; who has not come by then is not waited for.
        """
        if self.store is not None:
            board = Board(self.store, launch, "", "the end")
            with contextlib.suppress(Exception):  # the store ends with its process, which is the end too
                board.say("over", {})
                board.wait("over", timeout)


def _open_store(torch: Any, timeout: float) -> Any:
    rendezvous = importlib.import_module("torch.distributed").rendezvous
    try:
        store, _, _ = next(iter(rendezvous("env://", timeout=datetime.timedelta(seconds=timeout))))
    except Exception as error:  # torch raises several kinds, by version
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankGroupError(
            f"the ranks of the outer launch did not meet at {where} within {timeout:g} s: {error}. Start all of them, or unset"
            " RANK to have ranks started here"
        ) from error
    return store


@dataclasses.dataclass(frozen=True)
class Board:
    """What the ranks say in one run.

    Attributes:
        store: torch's.
        launch: this process's place.
        what: the call, for messages.
        place: of the run; the same text on all ranks.
    """

    store: Any
    launch: Launch
    what: str
    place: str

    def key(self, topic: str, rank: int | None = None) -> str:
        return f"specalign/{self.place}/{topic}" + ("" if rank is None else f"/{rank}")

    def say(self, topic: str, said: dict[str, str], *, failed: bool = False) -> None:
        """Write this rank's word on a topic."""
        order = self.store.add(self.key("order"), 1) if failed else 0
        word = {"host": socket.gethostname(), "pid": os.getpid(), "order": order, **said}
        self.store.set(self.key(topic, self.launch.rank), json.dumps(word))

    def heard(self, topic: str) -> dict[int, dict[str, Any]]:
        """What has been said on it until now, by rank."""
        keys = {rank: self.key(topic, rank) for rank in range(self.launch.world_size)}
        return {rank: json.loads(self.store.get(key)) for rank, key in keys.items() if self.store.check([key])}

    def wait(self, topic: str, timeout: float, after_failure: float | None = None) -> dict[int, dict[str, Any]]:
        """Until all ranks have spoken, or the time is over.

        Args:
            topic: on which.
            timeout: seconds.
            after_failure: seconds at most from when one of them said that it failed.
        """
        end = time.monotonic() + timeout
        shortened = False
        while True:
            heard = self.heard(topic)
            if len(heard) == self.launch.world_size or time.monotonic() >= end:
                return heard
            if after_failure is not None and not shortened and any("reason" in said for said in heard.values()):
                end, shortened = min(end, time.monotonic() + after_failure), True
            time.sleep(_POLL)

    def meet(self, problem: str, timeout: float) -> None:
        """Wait for all ranks at the start.

        Args:
            problem: why this one cannot join; empty where it can.
            timeout: seconds.

        Raises:
            RanksFailedError: some did not come, or cannot join.
            RankGroupError: they came with different calls.
        """
        __tracebackhide__ = True
        self.store.set(f"specalign/at/{self.launch.rank}", self.place)
        self.say("here", {"call": self.what, **({"reason": f"cannot join: {problem}"} if problem else {})})
        heard = self.wait("here", timeout)
        missing = set(range(self.launch.world_size)) - heard.keys()
        if missing or any("reason" in said for said in heard.values()):
            raise RanksFailedError(self.what, self.launch.world_size, self._failures(heard, f"did not come within {timeout:g} s"))
        if len({said["call"] for said in heard.values()}) > 1:
            told = "".join(f"\n  rank {rank}: {said['call']}" for rank, said in sorted(heard.items()))
            raise RankGroupError(f"the ranks came to {self.place} with different calls:{told}")

    def failures(self, topic: str, timeout: float, after_failure: float) -> list[RankFailure]:
        """Those that failed, or did not speak in time."""
        return self._failures(self.wait(topic, timeout, after_failure), "did not end in time")

    def _failures(self, heard: dict[int, dict[str, Any]], silence: str) -> list[RankFailure]:
        late = self.heard("late")
        failed = [said["order"] for said in heard.values() if said["order"]]
        found = []
        for rank in range(self.launch.world_size):
            said = heard.get(rank) or late.get(rank) or self._silent(rank, silence)
            if "reason" in said:
                first = len(failed) > 1 and said["order"] == min(failed)
                found.append(RankFailure(rank, said["host"], said["pid"], said["reason"], said.get("details", ""), first))
        return found

    def _silent(self, rank: int, silence: str) -> dict[str, Any]:
        key = f"specalign/at/{rank}"
        last = f"it was last at {self.store.get(key).decode()}" if self.store.check([key]) else "it never came to any group"
        return {"host": "host unknown", "pid": None, "order": 0, "reason": f"{silence}; {last}"}

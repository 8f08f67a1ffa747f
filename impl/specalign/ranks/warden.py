"""The warden of one run: a process between the one that asked and the ranks, which starts, watches and ends them.

It takes no part in the run's work, so it is there when a rank hangs, and when the process that asked is killed. As the adoptive
parent of every orphan below it, it finds what a rank started and left, whatever became of that rank. If the warden itself is
killed, the kernel kills the ranks; what those left behind is then out of reach.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from specalign.ranks import orphans
from specalign.ranks.plan import Plan, python_command, stacks_file
from specalign.ranks.wards import Ward

SUMMARY_FD_ARGUMENT: Final = 2
_PATIENCE: Final = 2.0
_TICK: Final = 0.05


class AbandonedError(Exception):
    """Nobody waits for the run any more."""


def main(argv: list[str]) -> None:
    """`argv`: -, folder, file descriptor for the summary, then nothing. Standard input is held open by the process that asked."""
    folder, summary = Path(argv[1]), int(argv[SUMMARY_FD_ARGUMENT])
    os.set_inheritable(summary, False)
    plan = Plan.read(folder)
    warden = Warden(plan, folder)
    try:
        orphans.adopt_orphans()
        warden.listen()
        orphans.end_with_parent(plan.parent, signal.SIGTERM)
        told = warden.run()
        with os.fdopen(summary, "w", encoding="utf-8") as stream:
            json.dump(told, stream)
        warden.wait_until_nobody_asks()
    except AbandonedError:
        pass
    finally:
        orphans.kill_descendants(ward.process.pid for ward in warden.wards)
        shutil.rmtree(folder, ignore_errors=True)


class Warden:
    """Starts the ranks of a plan and sees them to their end.

    Args:
        plan: what was asked for.
        folder: the run's own.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.wards: list[Ward] = []
        self._selector = selectors.DefaultSelector()
        self._abandoned = False
        self._wake: socket.socket | None = None

    def listen(self) -> None:
        """Hear of children that end, of a signal to end, and of the end of standard input."""
        self._wake, ring = socket.socketpair()
        for end in (self._wake, ring):
            end.setblocking(False)
        self._ring = ring  # kept open
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._abandon)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)

    def run(self) -> dict[str, Any]:
        """All of it, to the summary: how each rank ended, and what was left behind.

        Raises:
            AbandonedError: the process that asked is gone, or wants no more of it.
        """
        began = time.monotonic()
        for rank in range(self.plan.world_size):
            self._start(rank)
        self._until(lambda: all(ward.is_done for ward in self.wards), lambda: self._limit(began))
        self._end_late([ward for ward in self.wards if not ward.is_done])
        self._until_ended()
        left = self._left_behind()
        orphans.kill_descendants(ward.process.pid for ward in self.wards)
        return {"ranks": [dataclasses.asdict(ward.told()) for ward in self.wards], "left": left}

    def wait_until_nobody_asks(self) -> None:
        """Keep the folder until the results have been read."""
        while True:
            self._pump(None)

    def _start(self, rank: int) -> None:
        mine, its = socket.socketpair()
        command = python_command("child", self.folder, rank, its.fileno(), os.getpid())
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,
            env={**os.environ, **rank_variables(self.plan, rank)},
        )
        its.close()
        mine.setblocking(False)
        ward = Ward(rank, process, mine)
        self.wards.append(ward)
        self._selector.register(mine, selectors.EVENT_READ, ward)

    def _limit(self, began: float) -> tuple[float, str]:
        """Until when those that are not done may take, and what they are late for then."""
        plan = self.plan
        if all(ward.joined is not None for ward in self.wards):
            began = max(ward.joined or 0.0 for ward in self.wards)
            limit = began + plan.timeout, f"had not returned {plan.timeout:g} s after all ranks had joined"
        else:
            here = sum(ward.joined is not None for ward in self.wards)
            late = f"was not done {plan.start_timeout:g} s after the start, when {here} of {plan.world_size} ranks had joined"
            limit = began + plan.start_timeout, late
        broken = [ward for ward in self.wards if ward.broke is not None]
        if broken:
            first = min(broken, key=lambda ward: ward.broke or 0.0)
            late = f"had not returned {plan.grace:g} s after rank {first.rank} had failed"
            limit = min(limit, ((first.broke or 0.0) + plan.grace, late))
        return limit

    def _until_ended(self) -> None:
        """Let those that returned take their group down, unless another one failed: then that could not work."""
        if any(ward.broke is not None or ward.late for ward in self.wards):
            self._kill(self.wards)
            return
        for ward in self.wards:
            ward.let_go()
        end = time.monotonic() + self.plan.end_timeout
        late = f"returned, and its process had not ended {self.plan.end_timeout:g} s later"
        self._until(lambda: all(ward.has_ended for ward in self.wards), lambda: (end, late))
        self._end_late([ward for ward in self.wards if not ward.has_ended])

    def _until(self, done: Callable[[], bool], limit: Callable[[], tuple[float, str]]) -> None:
        """Wait for `done()`; at `limit()`'s time, mark those that are not done with its words."""
        while not done():
            end, late = limit()
            left = end - time.monotonic()
            if left <= 0:
                for ward in self.wards:
                    ward.note_late(late)
                return
            self._pump(left)

    def _end_late(self, late: Sequence[Ward]) -> None:
        """Ask where they are, then kill them."""
        asked = [ward for ward in late if ward.ask_for_stacks()]
        sizes: dict[int, int] = {}
        end = time.monotonic() + _PATIENCE
        while asked and time.monotonic() < end:
            self._pump(_TICK * 2)
            now = {ward.rank: stacks_file(self.folder, ward.rank).stat().st_size for ward in asked}
            asked = [ward for ward in asked if not now[ward.rank] or now[ward.rank] != sizes.get(ward.rank)]
            sizes = now
        self._kill(late)

    def _kill(self, wards: Sequence[Ward]) -> None:
        for ward in wards:
            ward.kill()
        end = time.monotonic() + _PATIENCE
        while any(not ward.has_ended for ward in wards) and time.monotonic() < end:
            self._pump(_TICK)

    def _left_behind(self) -> list[str]:
        """What the ranks started and did not stop. What is about to end by itself may do so, unless a rank was killed."""
        ranks = {ward.process.pid for ward in self.wards}
        end = time.monotonic() + (_PATIENCE if all(ward.has_returned for ward in self.wards) else 0)
        while (running := orphans.running_descendants()) and time.monotonic() < end:
            self._pump(_TICK)
        return [f"pid {pid} ({command})" for pid, command in sorted(running.items()) if pid not in ranks]

    def _pump(self, timeout: float | None) -> None:
        """Take in what happens next, or nothing within the time."""
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Ward):
                if not key.data.hear():
                    self._selector.unregister(key.fileobj)
            elif key.fileobj is self._wake:
                self._wake.recv(4096)
            else:
                self._abandoned = True  # nothing is ever written there: it has ended
        if self._abandoned:
            raise AbandonedError
        self._reap()

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for ward in self.wards:
                    if ward.process.pid == pid:
                        ward.end(os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return

    def _abandon(self, number: int, frame: object) -> None:
        self._abandoned = True


def rank_variables(plan: Plan, rank: int) -> dict[str, str]:
    """What a rank's environment has besides this process's: its place, as torchrun names it, and one thread for each library."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": plan.world_size, "LOCAL_WORLD_SIZE": plan.world_size}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1)
    found = {name: str(value) for name, value in {**places, **threads}.items()}
    if "GLOO_SOCKET_IFNAME" not in os.environ and Path("/sys/class/net/lo").exists():
        found["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are here, and a host name need not lead to this machine
    return found

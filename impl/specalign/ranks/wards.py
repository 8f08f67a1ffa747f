"""One rank, as the warden sees it."""

from __future__ import annotations

import dataclasses
import signal
import socket
import subprocess
import time
from typing import Final

STATES = {"s": "started", "j": "joined", "r": "returned", "f": "failed"}
"""What a rank says in one byte: it can show its stacks; it has joined; its result, or its failure, lies in the folder."""

NOTICED_AFTER: Final = 1.0
"""Seconds that a process may have been dead before it is noticed. The exception of a peer, which lost its connection to it, may
be told before: by so much an end counts as earlier, so that the cause is called the first to fail and not what follows."""


@dataclasses.dataclass(frozen=True)
class Told:
    """What the summary says of a rank.

    Attributes:
        rank: its number.
        pid: of its process.
        state: `starting`, or the last of `STATES` that it said.
        code: its exit code, or minus the signal that it ended by; None where the kernel has not let go of it yet.
        killed: by the warden.
        late: what it was late for, if it was killed for that.
        asked: whether its stacks were asked for.
        order: when it failed: only the order counts; None where it did not.
    """

    rank: int
    pid: int
    state: str
    code: int | None
    killed: bool
    late: str
    asked: bool
    order: float | None


class Ward:
    """A rank's process, and what is known of it.

    Attributes:
        joined: when all of the group was there for it, by the monotonic clock.
        broke: when it failed, or ended without a result.
    """

    def __init__(self, rank: int, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self.rank = rank
        self.process = process
        self.state = "starting"
        self.joined: float | None = None
        self.broke: float | None = None
        self.late = ""
        self._line = line
        self._asked = False
        self._code: int | None = None
        self._let_go = False
        self._killed = False

    @property
    def is_done(self) -> bool:
        """Nothing more will come of it."""
        return self.has_ended or self.state in ("returned", "failed")

    @property
    def has_returned(self) -> bool:
        return self.state == "returned"

    @property
    def has_ended(self) -> bool:
        return self._code is not None

    def hear(self) -> bool:
        """Take in what it says; False when it says no more."""
        try:
            said = self._line.recv(64).decode("ascii", "replace")
        except BlockingIOError:
            return True
        except OSError:
            return False
        for word in said:
            self.state = STATES.get(word, self.state)
            if self.state == "joined":
                self.joined = time.monotonic()
            if self.state == "failed" and self.broke is None:
                self.broke = time.monotonic()
        return bool(said)

    def end(self, code: int) -> None:
        """It has ended: what it said before that counts."""
        self.hear()
        self._code = self.process.returncode = code
        if self.broke is None and not self._killed and (self.state != "returned" or code):
            self.broke = time.monotonic() - NOTICED_AFTER

    def let_go(self) -> None:
        """It may take down its group and end."""
        self._let_go = True
        try:
            self._line.sendall(b"e")
        except OSError:
            return  # it has ended by itself, which `end` tells

    def note_late(self, late: str) -> None:
        """It has had its time."""
        if not self.late and (not self.is_done or (self._let_go and not self.has_ended)):
            self.late = late

    def ask_for_stacks(self) -> bool:
        """Have it write its stacks to its file; False where it cannot."""
        if self.has_ended or self.state == "starting":
            return False
        self.process.send_signal(signal.SIGUSR1)
        self._asked = True
        return True

    def kill(self) -> None:
        if not self.has_ended:
            self._killed = True
            self.process.kill()

    def told(self) -> Told:
        return Told(self.rank, self.process.pid, self.state, self._code, self._killed, self.late, self._asked, self.broke)

"""Processes seen from outside: told of by themselves through a pipe with a name, and watched to their end by the kernel."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

PATIENCE = 90.0
"""Seconds after which a test that waits for something fails."""


class Line:
    """A FIFO into which processes write short lines."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)  # never at its end, whoever closes it
        self._rest = b""

    def read(self, count: int) -> list[str]:
        """So many lines, as they come."""
        end = time.monotonic() + PATIENCE
        while self._rest.count(b"\n") < count:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited {PATIENCE:g} s for {count} lines, and had {self._rest!r}"
            self._rest += os.read(self._fd, 4096)
        lines = self._rest.decode().splitlines()
        self._rest = "".join(f"{line}\n" for line in lines[count:]).encode()
        return lines[:count]


class Watched:
    """Processes that run now."""

    def __init__(self, pids: list[int]) -> None:
        self._open = {pid: os.pidfd_open(pid) for pid in pids}

    def still_there(self, patience: float = PATIENCE) -> list[int]:
        """Those that have not ended by then, without waiting longer than needed."""
        end = time.monotonic() + patience
        left = dict(self._open)
        while left:
            ready, _, _ = select.select(list(left.values()), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            left = {pid: fd for pid, fd in left.items() if fd not in ready}
        return sorted(left)

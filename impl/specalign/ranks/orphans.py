"""Processes that end with their parent, and the parent that ends what is left of them. Linux; elsewhere process groups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from specalign.leases.processes import descendants

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def end_with_parent(parent: int, number: int) -> None:
    """Have the kernel send the signal when the thread that started this process ends.

    Ends at once if the parent was gone before it could be asked for. Programs that this process starts do not inherit it.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, also of those that left their session: none gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(sessions: Iterable[int], patience: float = 10.0) -> None:
    """Kill every descendant of this process, and wait until none is left.

    Args:
        sessions: process groups of the children, killed as groups too: all there is where /proc is not.
        patience: seconds after which a process that the kernel does not let go of (a driver's call) is left to it.
    """
    for group in sessions:
        _kill(group, group=True)
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for pid in descendants(os.getpid()):
            _kill(pid)
        if not reap_any():
            return
        time.sleep(0.005)


def reap_any() -> bool:
    """Collect children that have ended; False when there is no child left at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def running_descendants() -> dict[int, str]:
    """pid → command of every descendant of this process that still runs."""
    found = {}
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # gone meanwhile
            continue
        if command:  # one that has ended and was not collected yet has none
            found[pid] = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")[:100]
    return found


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill(pid: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

"""Ends what a job left running on a machine that outlives it.

    python3 reap.py NAME=VALUE [--seconds S]

Every process of this user whose environment holds NAME=VALUE is asked to end, and killed after S seconds. A job sets the variable
for what it starts, and children inherit it, also those that left the process group or the session. Exit code 1 where anything was
found, so that the leak is seen: each process is named. Linux only, by /proc. What runs this must not have the variable itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

PROC = Path("/proc")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variable")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    name, _, value = args.variable.partition("=")
    if not name or not value or os.environ.get(name) == value:
        print(f"::error::reap: {args.variable!r}: give NAME=VALUE, and not what this process has in its own environment")
        return 2
    found = marked(args.variable)
    for pid, command in found.items():
        print(f"::error::left running by this job: process {pid}: {command}")
    stop(args.variable, args.seconds)
    left = marked(args.variable)
    for pid, command in left.items():
        print(f"::error::cannot be ended: process {pid}: {command}")
    return 1 if found or left else 0


def marked(variable: str) -> dict[int, str]:
    """Process → its command, for each that has the variable; never this one."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                if os.fsencode(variable) in environment and not is_dead(folder):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found[int(folder.name)] = command or "(no command)"
            except OSError:  # it ended just now, or is another user's
                continue
    return found


def is_dead(folder: Path) -> bool:
    """A zombie: it only waits for its parent to take notice."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in ("Z", "X")


def stop(variable: str, seconds: float) -> None:
    """TERM, and KILL for what is there after `seconds`; again, for what started in between."""
    send(variable, signal.SIGTERM)
    end = time.monotonic() + seconds
    while marked(variable) and time.monotonic() < end:
        time.sleep(0.1)
    for _ in range(20):
        if not send(variable, signal.SIGKILL):
            return
        time.sleep(0.1)


def send(variable: str, number: signal.Signals) -> int:
    """To every marked process; returns how many there were."""
    found = marked(variable)
    for pid in found:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
    return len(found)


if __name__ == "__main__":
    sys.exit(main())

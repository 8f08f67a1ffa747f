"""What the ranks of these tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist


def place(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return dist.get_rank(), dist.get_world_size(), args, kwargs


def surroundings() -> dict[str, Any]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "SPECALIGN_TEST")
    return {
        "environ": {name: os.environ.get(name) for name in names},
        "threads": torch.get_num_threads(),
        "stdin": sys.stdin.read(),
        "pid": os.getpid(),
        "path": sys.path,
    }


def total(x: torch.Tensor) -> torch.Tensor:
    mine = x * (dist.get_rank() + 1)
    dist.all_reduce(mine)
    return mine


def leave_a_daemon() -> int:
    """A child's child in a session of its own: nobody here is its parent any more."""
    program = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3, start_new_session=True).pid)"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def end_late() -> None:
    """Returns, and then its process does not end."""
    import atexit
    import time

    if dist.get_rank() == 1:
        atexit.register(time.sleep, 1000)


def crash_late() -> None:
    """Returns, and then its process ends badly."""
    import atexit

    if dist.get_rank() == 1:
        atexit.register(os.abort)


def wait_and_see(kind: str) -> str:
    """Rank 1 fails at once, rank 0 is busy where no collective tells it."""
    import time

    if dist.get_rank() == 1:
        raise RuntimeError(kind)
    time.sleep(1000)
    return kind


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def raise_without_text() -> None:
    raise NoTextError


class OnlyOneWay:
    """Can be pickled, and not read again."""

    def __reduce__(self) -> Any:
        return _no_way_back, ()


def _no_way_back() -> None:
    raise OSError("no way back")


def return_what_cannot_be_read() -> object:
    return OnlyOneWay() if dist.get_rank() == 1 else "fine"


def fork_and_forget(kind: str) -> str:
    """The child leaves the function too, before the rank does."""
    child = os.fork()
    if child == 0:
        if kind == "raises":
            raise ValueError("in the child")
        return "of the child"
    os.waitpid(child, 0)
    return "of the rank"

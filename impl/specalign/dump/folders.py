"""Where the parts of a dump lie, and the lock of a rank's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import socket
import weakref
from pathlib import Path
from typing import Final

from specalign.dump.errors import DumpError
from specalign.dump.files import reading, write_json, writing
from specalign.dump.manifest import SCHEMA
from specalign.layer_ids.files import is_there, quoted, read_json_object, shown

END: Final = "end.json"
"""The mark of a writer that came to its end: how many passes and rows it wrote."""

LOCK: Final = ".lock"
"""The file on which a writer holds its lock for as long as it lives; it stays behind and means nothing then."""

_PASS: Final = re.compile(r"pass(\d{5,})\.safetensors")
_RANK: Final = re.compile(r"rank(\d{5,})")


def rank_name(rank: int) -> str:
    """`rank00000`."""
    return f"rank{rank:05d}"


def pass_name(number: int) -> str:
    """`pass00000.safetensors`."""
    return f"pass{number:05d}.safetensors"


def rank_number(name: str) -> int | None:
    """The rank of a folder's name, or None for any other name."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match and name == rank_name(int(match[1])) else None


def pass_number(name: str) -> int | None:
    """The pass of a file's name, or None for any other name."""
    match = _PASS.fullmatch(name)
    return int(match[1]) if match and name == pass_name(int(match[1])) else None


@dataclasses.dataclass(frozen=True, slots=True)
class EndMark:
    """What a writer leaves at its end: the number of its passes and of their rows together."""

    passes: int
    rows: int


def write_end(folder: Path, rank: int, mark: EndMark) -> None:
    """Mark a rank as complete. Raises `DumpError` where the mark is there already or cannot be written."""
    write_json(folder / END, {"schema": SCHEMA, "rank": rank, **dataclasses.asdict(mark)})


def read_end(folder: Path) -> EndMark | None:
    """The end mark in a rank's folder; None where there is none.

    Raises:
        DumpError: it cannot be read, or is not one of this rank.
    """
    path = folder / END
    with reading():
        if not is_there(path):
            return None
        document = read_json_object(path)
    rank, passes, rows = (document.get(name) for name in ("rank", "passes", "rows"))
    if document.get("schema") != SCHEMA or type(rank) is not int or rank_name(rank) != folder.name:
        raise DumpError(
            f"{shown(path)}: has the schema {quoted(document.get('schema'))} and the rank {quoted(rank)}: no mark of this rank"
        )
    if type(passes) is not int or type(rows) is not int or passes < 0 or rows < 0:
        raise DumpError(f"{shown(path)}: says {quoted(passes)} passes and {quoted(rows)} rows, which are no numbers from 0")
    return EndMark(passes, rows)


@dataclasses.dataclass(eq=False)
class Lock:
    """A lock that the kernel frees when its process ends, however it ends."""

    descriptor: int
    process: int = dataclasses.field(default_factory=os.getpid)

    @property
    def owned(self) -> bool:
        """Whether this process took it, and not one that it was forked from."""
        return self.process == os.getpid()

    def release(self) -> None:
        """Free it, or in a forked child only forget it: the parent's lock lives in the parent's own descriptor."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


_LOCKS: Final[weakref.WeakSet[Lock]] = weakref.WeakSet()


def _forget_locks() -> None:
    """In a forked child: without this the child would hold the lock of a parent that was killed."""
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_forget_locks)


def take_lock(folder: Path) -> Lock:
    """The lock of a rank's folder. Raises `DumpError` while another writer has it."""
    path = folder / LOCK
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise DumpError(
                f"{shown(folder)}: another writer is at work here ({quoted(holder or 'unknown process')}); every process of a run"
                " has its own rank, and every run its own folder"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # only a help for messages, and a full disk is reported where it matters
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    lock = Lock(descriptor)
    _LOCKS.add(lock)
    return lock

"""Kernel file locks in a folder that the whole machine shares.

`flock` binds a lock to an open file; the kernel ends it when the last process that has the file open is gone, however it ended.
The files stay for ever: one that is unlinked and made anew has two holders, one for each. They are 0o666, since any user must be
able to lock them, and the folder is 0o1777 like /tmp: anybody may add a file, nobody may remove or rename another user's.

Not guaranteed: anything against the owner of a file, who may still unlink it (a lock that is taken looks whether its file is
still the one in the folder, a lock that is held does not); anything on a network file system; anything between a container and
its host unless the folder is mounted into both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import json
import os
import re
import socket
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from specalign.leases.devices import Device, one_line
from specalign.leases.errors import LeaseError

DEFAULT_FOLDER = Path("/tmp/specalign-locks")  # noqa: S108  # the same for every user, so neither TMPDIR nor a home folder
FOLDER_MODE = 0o1777
FILE_MODE = 0o666
DEFAULT_PATTERN = "{uuid}.lock"

_RECORD_LIMIT = 4096
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who wrote himself into a lock file when he took it; only that the lock is held makes it true.

    Attributes: of the process, `since` in seconds since 1970, `token` made anew for each lease.
    """

    pid: int
    user: str = ""
    host: str = ""
    command: str = ""
    since: float = 0.0
    token: str = ""

    @classmethod
    def me(cls, token: str) -> Holder:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container that runs under a bare number
            user = str(os.getuid())
        return cls(os.getpid(), user, socket.gethostname(), " ".join(sys.argv)[:200], time.time(), token)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} of {one_line(self.user)} on {one_line(self.host)} since {since}: {one_line(self.command)}"


class KernelLock:
    """One file, locked or not by this object. Two objects of one process exclude each other like two processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._owner = 0

    @property
    def is_held(self) -> bool:
        return self._fd >= 0

    @property
    def fd(self) -> int:
        """For a program that takes this one's place and must keep the lock; -1 while it is not held."""
        return self._fd

    def acquire(self, timeout: float = 0.0) -> bool:
        """Whether the lock is held within so many seconds. Who waits is served in the order of coming, as the kernel keeps it."""
        deadline = time.monotonic() + timeout
        while True:
            fd = open_lock_file(self.path)
            if not _lock(fd, deadline - time.monotonic()):
                return False
            if _is_still(fd, self.path):
                self._fd, self._owner = fd, os.getpid()
                return True
            _unlock(fd)  # somebody removed the file meanwhile: the lock is on what is there now

    def release(self) -> None:
        """End it. In a child that was forked off the holder, only the child's copy is closed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _unlock(fd) if self._owner == os.getpid() else os.close(fd)

    def write(self, holder: Holder) -> None:
        """Say whose it is, for others' messages. The time of change also keeps cleaners of /tmp away."""
        record = json.dumps(dataclasses.asdict(holder)).encode()[:_RECORD_LIMIT]
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, record, 0)


class LockFolder:
    """The locks of one machine: one for each device, and the turn.

    Args:
        path: the folder; made, with the right mode, when the first lock is taken.
        pattern: name of a device's file, with `{uuid}` or `{index}`: for a machine where other programs lock GPUs already.
    """

    def __init__(self, path: Path = DEFAULT_FOLDER, pattern: str = DEFAULT_PATTERN) -> None:
        if not ("{uuid}" in pattern or "{index}" in pattern) or "/" in pattern:
            raise LeaseError(f"the pattern of lock files is {pattern!r}: give a file name with {{uuid}} or {{index}} in it")
        self.path = path
        self.pattern = pattern

    def of(self, device: Device, level: int = 0) -> KernelLock:
        """The lock of a device; level 1 and up are for programs that run under somebody's lease of it."""
        name = self.pattern.replace("{uuid}", _safe(device.uuid)).replace("{index}", str(device.index))
        return KernelLock(self.path / (name if level == 0 else f"{name}.{level}"))

    def turn(self, within: str = "", level: int = 0) -> KernelLock:
        """Only who holds it collects GPUs; those who run under a lease have one among themselves."""
        return KernelLock(self.path / (f"turn.{_safe(within)}.{level}" if level else "turn.lock"))

    def make(self) -> None:
        """Make the folder if it is not there: under another name first, so that nobody meets it with the wrong mode.

        Raises:
            LeaseError: there is something else of that name, or it cannot be made or written to.
        """
        try:
            if not self.path.exists():
                self._make()
            if not stat.S_ISDIR(self.path.stat().st_mode) or not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError("is no folder that this user can write to")
        except OSError as error:
            raise LeaseError(
                f"lock folder {self.path}: {error.strerror or error}; every user of the machine needs one folder of mode 1777"
                " (mkdir, then chmod 1777), named by --specalign-lock-dir or SPECALIGN_LOCK_DIR"
            ) from error

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent))
        made.chmod(FOLDER_MODE)
        try:
            made.rename(self.path)
        except OSError:
            made.rmdir()
            if not self.path.is_dir():  # otherwise another process was first
                raise


def holder_of(lock: KernelLock) -> Holder | None:
    """Who holds a lock, None if nobody does. It is tried for an instant: whoever tries it in that instant tries once more."""
    if not lock.path.exists():
        return None
    probe = KernelLock(lock.path)
    if probe.acquire():
        probe.release()
        return None
    return read_holder(lock.path)


def read_holder(path: Path) -> Holder:
    """The record in a lock file. Anybody may have written it: nothing in it is believed but for messages."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            record = json.loads(os.pread(fd, _RECORD_LIMIT, 0))
        finally:
            os.close(fd)
        kinds: dict[str, Any] = {"pid": int, "user": str, "host": str, "command": str, "since": (int, float), "token": str}
        if isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in kinds.items()):
            return Holder(**{name: record[name] for name in kinds})
    return Holder(0, "unknown", "unknown", "left no record")


def open_lock_file(path: Path) -> int:
    """Open a lock file, made with mode 0o666 whatever the umask.

    It appears under its name by a link, complete, and is opened without O_CREAT: where `fs.protected_regular` is set, the kernel
    refuses O_CREAT on another user's file in a sticky folder.

    Raises:
        LeaseError: what is there cannot be opened for writing, or is no plain file.
    """
    try:
        while True:
            try:
                fd = os.open(path, _OPEN)
                break
            except FileNotFoundError:
                _create(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(None, "is no plain file")
    except OSError as error:
        raise LeaseError(f"lock file {path}: {error.strerror}; its owner or root can put that right (chmod 666)") from error
    return fd


def _create(path: Path) -> None:
    fd, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    made = Path(name)
    try:
        os.fchmod(fd, FILE_MODE)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(made)
    finally:
        os.close(fd)
        made.unlink()


def _is_still(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _unlock(fd: int) -> None:
    """By name: closing alone leaves the lock with a forked child that has the file open too."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _lock(fd: int, timeout: float) -> bool:
    """Whether the lock was had in time; if not, the file is closed, now or as soon as the kernel lets go of it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        if timeout > 0:
            return _Waiter(fd).wait(timeout)
        os.close(fd)
        return False


class _Waiter:
    """Waits in a thread, because `flock` knows no timeout; a queue in the kernel is fairer than trying again and again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._done = threading.Event()
        self._given_up = False
        self._guard = threading.Lock()
        threading.Thread(target=self._run, name="specalign-lease", daemon=True).start()

    def _run(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        with self._guard:
            if self._given_up:
                _unlock(self._fd)
            else:
                self._done.set()

    def wait(self, timeout: float) -> bool:
        try:
            self._done.wait(min(timeout, threading.TIMEOUT_MAX))
        except BaseException:
            if self._give_up():
                _unlock(self._fd)
            raise
        return self._give_up()

    def _give_up(self) -> bool:
        """Whether it came after all; if not, the thread hands it straight back when it comes."""
        with self._guard:
            self._given_up = not self._done.is_set()
            return not self._given_up


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)

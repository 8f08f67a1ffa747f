"""One holder for each file, whatever becomes of the processes, the files and the folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specalign.leases import LeaseError, LockFolder, locks
from specalign.leases.locks import Holder, KernelLock, holder_of, read_holder
from tests.unit.leases.made_up import gpu, mig

ROOT = Path(__file__).parents[3]

HOLD = """
import sys
from pathlib import Path
from specalign.leases.locks import Holder, KernelLock
lock = KernelLock(Path(sys.argv[1]))
if not lock.acquire(float(sys.argv[2])):
    sys.exit("not had")
lock.write(Holder.me("child"))
print("held", flush=True)
sys.stdin.read()
"""


def _child(path: Path, timeout: float = 60.0) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "impl")}
    command = [sys.executable, "-c", HOLD, str(path), str(timeout)]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said_held(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.lock"


def test_one_holder_at_a_time(path: Path) -> None:
    first, second = KernelLock(path), KernelLock(path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_the_kernel_ends_the_lock_of_a_killed_process(path: Path) -> None:
    with _child(path) as child:
        _said_held(child)
        lock = KernelLock(path)
        assert not lock.acquire()
        assert (holder := holder_of(lock)) is not None
        assert (holder.pid, holder.token) == (child.pid, "child")
        child.kill()
        assert lock.acquire(60)
    lock.release()
    assert holder_of(lock) is None


def test_who_waits_gets_it_when_it_is_released(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.acquire()
    with _child(path) as child:
        lock.release()
        _said_held(child)
        assert not lock.acquire()
        child.communicate()
    assert lock.acquire()
    lock.release()


def test_giving_up_leaves_no_lock_behind(path: Path) -> None:
    first, late = KernelLock(path), KernelLock(path)
    assert first.acquire()
    started = time.monotonic()
    assert not late.acquire(0.05)
    assert time.monotonic() - started >= 0.05
    first.release()
    assert first.acquire(60), "the thread that still waited hands the lock on"
    first.release()
    for thread in threading.enumerate():
        if thread.name == "specalign-lease":
            thread.join(60)


FORK = """
import os, sys
from pathlib import Path
from specalign.leases.locks import KernelLock
path = Path(sys.argv[1])
lock = KernelLock(path)
assert lock.acquire()
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    lock.release()
    os.write(ready[1], b".")
    os.read(go[0], 1)
    os._exit(0)
os.read(ready[0], 1)
assert not KernelLock(path).acquire(), "the child's release must not end the parent's lock"
lock.release()
assert KernelLock(path).acquire(), "the parent's release must end it, though the child lives"
os.write(go[1], b".")
os.waitpid(child, 0)
"""


def test_a_forked_child_neither_keeps_nor_ends_the_lock(path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(path)], env={**os.environ, "PYTHONPATH": str(ROOT / "impl")}, check=True)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    folder = LockFolder(tmp_path / "a" / "locks")
    before = os.umask(0o077)
    try:
        folder.make()
        lock = folder.of(gpu(0))
        assert lock.acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o1777
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    lock.release()
    assert [entry.name for entry in folder.path.iterdir()] == [lock.path.name], "files stay, and no others"


def test_a_file_that_was_removed_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = locks._lock
    removed: list[os.stat_result] = []

    def remove_before(fd: int, timeout: float) -> bool:
        if not removed:
            removed.append(os.fstat(fd))
            path.unlink()
        return real(fd, timeout)

    monkeypatch.setattr(locks, "_lock", remove_before)
    lock = KernelLock(path)
    assert lock.acquire()
    assert os.path.samestat(os.fstat(lock.fd), path.stat())
    assert not KernelLock(path).acquire()
    lock.release()


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_what_is_no_plain_file_is_refused(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(LeaseError, match=r"lock file .*one\.lock"):
        KernelLock(path).acquire()
    assert not (path.parent / "elsewhere").exists()


def test_a_folder_that_cannot_be_used_says_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LeaseError, match=r"mode 1777.*SPECALIGN_LOCK_DIR"):
            LockFolder(bad).make()


def test_many_makers_of_one_folder(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from specalign.leases.locks import LockFolder; LockFolder(Path(sys.argv[1])).make()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "impl")}
    path = tmp_path / "locks"
    started = [subprocess.Popen([sys.executable, "-c", program, str(path)], env=environ) for _ in range(6)]
    assert [process.wait() for process in started] == [0] * 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["locks"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o1777


def test_names(tmp_path: Path) -> None:
    folder = LockFolder(tmp_path)
    assert folder.of(gpu(1)).path.name == f"{gpu(1).uuid}.lock"
    assert folder.of(gpu(1), 2).path.name == f"{gpu(1).uuid}.lock.2"
    assert folder.of(mig(0, 1)).path.name == f"{mig(0, 1).uuid}.lock"
    assert LockFolder(tmp_path, "gpu{index}.lck").of(gpu(3)).path.name == "gpu3.lck"
    assert "/" not in folder.of(gpu(0, uuid="MIG-GPU-1/7/0")).path.name
    for bad in ("gpu.lock", "../{uuid}"):
        with pytest.raises(LeaseError, match="pattern of lock files"):
            LockFolder(tmp_path, bad)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pid": "1"}', json.dumps({"pid": 1}), "\0" * 9999])
def test_a_strange_record_is_no_error(path: Path, text: str) -> None:
    path.write_text(text)
    assert str(read_holder(path)).endswith("left no record")


def test_a_record_stays_on_one_line(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.acquire()
    lock.write(Holder(7, "me\n", "here", "\x1b[2Jrun\nme", 0.0, "t"))
    assert str(holder_of(KernelLock(path))).isprintable()
    lock.write(Holder(8))
    assert read_holder(path) == Holder(8)
    lock.release()

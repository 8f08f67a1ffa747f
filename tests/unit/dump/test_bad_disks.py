"""Disks that are full or read-only, for real: one clear line, and nothing that was committed is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specalign.dump.validate import validate
from tests.unit.dump.damaged import names_in
from tests.unit.dump.made import small_dump

FILL = """
import os, resource, signal, sys
from tests.unit.dump.made import *
from specalign.dump.errors import DumpError
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
writer = DumpWriter(folder, manifest(model={}))
writer.write_pass(prefill({"a": [1, 2, 3]}), [tensor("boundary.1", bits(3, 512))])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
rows = prefill({"a": range(64)})
try:
    for step in range(1000):
        writer.write_pass(rows, [tensor(f"boundary.{b}", bits(64, 512, seed=b)) for b in range(2)])
except DumpError as error:
    print(error)
try:
    writer.write_pass(rows, [])
except DumpError as error:
    print(error)
writer.close()
print(writer.passes)
"""


def fill(folder: Path, limit: int = 0, before: str = "", after: str = "") -> list[str]:
    """Write passes until the disk takes no more; what the child said."""
    child = f'{before} "{sys.executable}" - "{folder}" {limit} <<"EOF"\n{FILL}\nEOF\n{after}'
    made = subprocess.run(["sh", "-c", child], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def check_full(folder: Path, said: list[str], reason: str) -> None:
    refused, later, passes = said
    assert reason in refused
    assert "is whole" in refused
    assert f"pass{int(passes):05d}.safetensors" in refused
    assert "nothing more is written" in later
    assert [name for name in names_in(folder / "rank00000") if name != ".lock"] == [
        f"pass{n:05d}.safetensors" for n in range(int(passes))
    ]
    assert [problem.code for problem in validate(folder).problems] == ["no-end"]


def test_a_file_larger_than_the_process_may_write(tmp_path: Path) -> None:
    said = fill(tmp_path, 100_000)
    check_full(tmp_path, said, "ulimit")
    assert said[-1] == "1"


def may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        ).returncode
    )


@pytest.mark.skipif(not may_mount(), reason="this user may not mount in a namespace of its own, so no small disk can be made")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A disk of 1 MiB of its own: what was committed is copied off it before it goes."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = tmp_path / "script"
    script.write_text(
        f'mount -t tmpfs -o size=1m tmpfs "{disk}"\n"{sys.executable}" -c "$1" "{disk}/d" 0\ncp -a "{disk}/d" "{kept}"\n'
    )
    made = subprocess.run(["unshare", "-rm", "sh", str(script), FILL], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    said = made.stdout.splitlines()
    check_full(kept, [line.replace(f"{disk}/d", str(kept)) for line in said], "the disk is full")
    assert int(said[-1]) > 2


READ_ONLY = """
import sys
from tests.unit.dump.made import *
from specalign.dump.errors import DumpError
for resume, folder in ((False, "new"), (True, "old")):
    try:
        DumpWriter(Path(sys.argv[1]) / folder, manifest(), resume=resume)
    except DumpError as error:
        print(error)
"""


@pytest.mark.skipif(not may_mount(), reason="this user may not mount in a namespace of its own, so no read-only disk can be made")
def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    small_dump(tmp_path / "old")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    script = f'mount --bind "{tmp_path}" "{tmp_path}"\nmount -o remount,bind,ro "{tmp_path}"\n"{sys.executable}" -c "$1" "{tmp_path}"\n'
    made = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", READ_ONLY], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    said = made.stdout.splitlines()
    assert len(said) == 2
    assert all("read-only" in line and str(tmp_path) in line for line in said), said
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert validate(tmp_path / "old").ok

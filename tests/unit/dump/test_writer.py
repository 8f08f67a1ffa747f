"""The writer: what it refuses, and that nothing is lost whatever happens."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from specalign.dump.errors import DumpError
from specalign.dump.manifest import Manifest, read_manifest
from specalign.dump.reader import open_specalign
from specalign.dump.validate import validate
from specalign.dump.writer import DumpWriter
from tests.unit.dump.damaged import names_in, refusal
from tests.unit.dump.made import boundaries, decode, manifest, no_rows, prefill, small_dump

ROWS = prefill({"a": [1, 2, 3]})


def test_a_dump_is_a_manifest_and_a_folder_a_rank_and_a_file_a_pass(tmp_path: Path) -> None:
    small_dump(tmp_path, steps=1)
    assert names_in(tmp_path) == ["manifest.json", "rank00000"]
    assert names_in(tmp_path / "rank00000") == [".lock", "end.json", "pass00000.safetensors", "pass00001.safetensors"]
    assert read_manifest(tmp_path) == manifest()
    assert json.loads((tmp_path / "rank00000" / "end.json").read_text()) == {
        "schema": "specalign.dump/1", "rank": 0, "passes": 2, "rows": 7
    }  # fmt: skip


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    a, b = small_dump(tmp_path / "a"), small_dump(tmp_path / "b")
    for name in ("manifest.json", "rank00000/pass00000.safetensors", "rank00000/pass00002.safetensors", "rank00000/end.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_passes_count_up_by_one(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, manifest()) as writer:
        assert [writer.write_pass(ROWS, []), writer.write_pass(ROWS, [], 1), writer.write_pass(no_rows(), [])] == [0, 1, 2]
        assert writer.passes == 3


@pytest.mark.parametrize(("number", "why"), [(0, "already"), (2, "leave out pass 1"), (-1, "already")])
def test_another_number_than_the_next_is_refused_and_loses_nothing(tmp_path: Path, number: int, why: str) -> None:
    writer = DumpWriter(tmp_path, manifest())
    writer.write_pass(ROWS, boundaries(3))
    before = (writer.folder / "pass00000.safetensors").read_bytes()
    refusal(lambda: writer.write_pass(ROWS, [], number), f"pass {number}", why)
    writer.close()
    assert (writer.folder / "pass00000.safetensors").read_bytes() == before


def test_ranks_share_one_manifest(tmp_path: Path) -> None:
    pair = manifest(world=2, layout={"tp": 2})
    for rank in (1, 0):
        with DumpWriter(tmp_path, pair, rank=rank, coords=[("tp", rank)]) as writer:
            writer.write_pass(ROWS, boundaries(3))
    assert [info.rank for info in open_specalign(tmp_path).infos()] == [0, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("producer", "other"),
        ("versions", {"torch": "2.12"}),
        ("device", "gpu"),
        ("arch", "sm90"),
        ("model", {"num_layers": 5}),
        ("layout", {"tp": 2}),
        ("world", 2),
    ],
)
def test_another_manifest_is_refused_by_its_fields(tmp_path: Path, field: str, value: object) -> None:
    DumpWriter(tmp_path, manifest()).close()
    other = dataclasses.replace(manifest(), **{field: value})
    message = refusal(lambda: DumpWriter(tmp_path, other), tmp_path / "manifest.json", field)
    assert [f.name for f in dataclasses.fields(Manifest) if f"{f.name} is" in message] == [field]
    assert read_manifest(tmp_path) == manifest()


def test_a_damaged_manifest_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "specalign.d')
    refusal(lambda: DumpWriter(tmp_path, manifest()), tmp_path / "manifest.json")
    assert (tmp_path / "manifest.json").read_text() == '{"schema": "specalign.d'


def test_many_ranks_that_start_at_once_agree_on_the_manifest(tmp_path: Path) -> None:
    """Half of them bring another manifest: whichever comes first wins, whole, and the others are refused."""
    start = threading.Barrier(8)
    outcomes: list[str] = []
    refused: list[bool] = []

    def run(rank: int) -> None:
        start.wait()
        try:
            DumpWriter(tmp_path, manifest(world=8, device="odd" if rank % 2 else "even"), rank=rank).close()
        except DumpError as error:
            refused.append("device is" in str(error))
        else:
            outcomes.append("odd" if rank % 2 else "even")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [read_manifest(tmp_path).device] * 4
    assert refused == [True] * 4
    assert [name for name in names_in(tmp_path) if name.endswith(".tmp")] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rank": 1}, "rank=1"),
        ({"rank": -1}, "rank=-1"),
        ({"rank": True}, "rank=True"),
        ({"coords": [("tp", 2)]}, "tp 2"),
        ({"coords": [("cp", 1)]}, "cp 1"),
        ({"coords": [("vp", 0)]}, "vp"),
        ({"coords": [("tp", 0), ("tp", 1)]}, "twice"),
        ({"coords": [("tp", "0")]}, "coords"),
        ({"stage": (2, 1)}, "stage"),
        ({"stage": (0, 1, 2)}, "stage"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    refusal(lambda: DumpWriter(tmp_path / "d", manifest(layout={"tp": 2}), **arguments), named)
    assert not (tmp_path / "d").exists()


def test_a_second_writer_on_a_rank_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    first = DumpWriter(tmp_path, manifest())
    refusal(lambda: DumpWriter(tmp_path, manifest()), "another writer", f"process {os.getpid()}")
    refusal(lambda: DumpWriter(tmp_path, manifest(), resume=True), "another writer")
    first.write_pass(ROWS, [])
    first.close(complete=False)
    DumpWriter(tmp_path, manifest(), resume=True).close()


def test_a_writer_that_is_forgotten_frees_its_rank(tmp_path: Path) -> None:
    DumpWriter(tmp_path, manifest())
    DumpWriter(tmp_path, manifest(), resume=True).close()
    refusal(lambda: DumpWriter(tmp_path, manifest()), "resume=True")


WRITE_AND_WAIT = """
import sys
from tests.unit.dump.made import *
writer = DumpWriter(Path(sys.argv[1]), manifest())
writer.write_pass(prefill({"a": [1, 2, 3]}), boundaries(3))
print("written", flush=True)
sys.stdin.readline()
"""


def test_two_processes_on_one_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "written\n"
        second = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert f"another writer is at work here ('process {first.pid} on" in second.stderr
        first.kill()
    assert [info.number for info in open_specalign(tmp_path).infos()] == [0]
    with DumpWriter(tmp_path, manifest(), resume=True) as writer:  # the kernel freed the lock
        assert writer.passes == 1


@pytest.mark.parametrize("closes", [False, True])
def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path, closes: bool) -> None:
    writer = DumpWriter(tmp_path, manifest())
    ready, parent_end = os.pipe()
    child_waits, release = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.write_pass(ROWS, [])
        except DumpError as error:
            code = 0 if "forked" in str(error) else 2
        if closes:
            writer.close()
        os.write(parent_end, bytes([code]))
        os.read(child_waits, 1)
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"\0"
        refusal(lambda: DumpWriter(tmp_path, manifest()), "another writer")  # the parent's lock is not freed by the child's close
        writer.close(complete=False)
        DumpWriter(tmp_path, manifest()).close()  # nor held by the child that lives on
    finally:
        os.write(release, b"x")
        os.waitpid(child, 0)
    for descriptor in (ready, parent_end, child_waits, release):
        os.close(descriptor)


def test_an_earlier_run_is_gone_on_with_only_if_asked(tmp_path: Path) -> None:
    small_dump(tmp_path, steps=1)
    (tmp_path / "rank00000" / ".pass00002.safetensors.0123456789abcdef.tmp").write_bytes(b"half")
    refusal(lambda: DumpWriter(tmp_path, manifest()), "2 passes of an earlier run", "resume=True")
    with DumpWriter(tmp_path, manifest(), resume=True) as writer:
        assert writer.passes == 2
        assert not (writer.folder / "end.json").exists()  # a kill from here on must not look like an end
        assert not [name for name in names_in(writer.folder) if name.endswith(".tmp")]
        assert writer.write_pass(ROWS, boundaries(3)) == 2
    report = validate(tmp_path)
    assert (report.ok, report.passes, report.rows) == (True, 3, 10)


def test_a_run_with_a_gap_or_a_loss_is_not_gone_on_with(tmp_path: Path) -> None:
    small_dump(tmp_path)
    (tmp_path / "rank00000" / "pass00002.safetensors").rename(tmp_path / "kept")
    refusal(lambda: DumpWriter(tmp_path, manifest(), resume=True), "3 passes", "2 with", "lost")
    (tmp_path / "kept").rename(tmp_path / "rank00000" / "pass00002.safetensors")
    (tmp_path / "rank00000" / "pass00001.safetensors").unlink()
    refusal(lambda: DumpWriter(tmp_path, manifest(), resume=True), "pass 1 is missing")
    assert (tmp_path / "rank00000" / "end.json").exists()


def test_a_run_with_a_damaged_pass_is_not_gone_on_with(tmp_path: Path) -> None:
    path = small_dump(tmp_path) / "rank00000" / "pass00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refusal(lambda: DumpWriter(tmp_path, manifest(), resume=True), path, "cut off")


def test_an_exception_in_the_block_leaves_no_end_mark(tmp_path: Path) -> None:
    def run() -> None:
        with DumpWriter(tmp_path, manifest()) as writer:
            writer.write_pass(ROWS, [])
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert names_in(tmp_path / "rank00000") == [".lock", "pass00000.safetensors"]


def test_a_writer_that_failed_once_writes_no_more_and_leaves_no_end_mark(tmp_path: Path) -> None:
    """A run that swallows the error must not look whole with one pass less."""
    with DumpWriter(tmp_path, manifest()) as writer:
        writer.write_pass(ROWS, [])
        refusal(lambda: writer.write_pass(ROWS, boundaries(2)), "boundary.0", "2 rows")
        refusal(lambda: writer.write_pass(ROWS, []), "pass 1 failed", "boundary.0")
    assert names_in(writer.folder) == [".lock", "pass00000.safetensors"]


def test_a_closed_writer_writes_no_more(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, manifest())
    writer.close()
    writer.close()
    refusal(lambda: writer.write_pass(ROWS, []), "closed")


def test_the_folder_of_a_rank_is_brought_to_the_disk_before_its_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    fsync = os.fsync

    def log(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), (tmp_path / "d" / "rank00000").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", log)
    DumpWriter(tmp_path / "d", manifest()).close(complete=False)
    assert (tmp_path / "d", True) in synced


def test_threads_take_turns(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, manifest()) as writer:
        threads = [threading.Thread(target=writer.write_pass, args=(ROWS, boundaries(3))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert validate(tmp_path).ok
    assert writer.passes == 12


@pytest.mark.parametrize("what", ["a file", "a file above", "a rank that is a file", "a dangling link"])
def test_a_folder_that_is_none_is_one_clear_line(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "d"
    match what:
        case "a file":
            folder.write_text("")
        case "a file above":
            folder.write_text("")
            folder = folder / "d"
        case "a rank that is a file":
            folder.mkdir()
            (folder / "rank00000").write_text("")
        case "a dangling link":
            folder.symlink_to("nowhere")
    refusal(lambda: DumpWriter(folder, manifest()), folder)


def test_decode_passes_of_one_row_each(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, manifest()) as writer:
        for step in range(30):
            writer.write_pass(decode({"a": (step, step)}), boundaries(1, seed=step))
    assert validate(tmp_path).rows == 30

"""`specalign golden list|diff|merge|prune`: what they print, and their exit codes."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from specalign.cli.main import main
from specalign.dump.opening import open_dump
from specalign.golden.document import Document
from specalign.golden.dumps import write_dump
from specalign.golden.files import write_document
from specalign.golden.keys import Key
from specalign.golden.usage import Present, Usage, write_usage
from tests.unit.golden.made import CPU, KEY, place, written
from tests.unit.golden.test_dumps import dump

ROWS = np.arange(12, dtype="f4").reshape(3, 4)
OTHER = Key("test_x.py", "", "test_other", None)
DUMPED = Key("test_x.py", "", "test_dump", None)
FAR = Key("test_x.py", "", "test_far", None)


def goldens(top: Path, *, add: float = 0.0, flip: bool = False) -> Path:
    """A folder with four goldens, one of each form."""
    folder = top / "tests" / "__golden__"
    written(folder, {"h": ROWS + np.float32(add)})
    written(folder, ROWS + np.float32(add), "fingerprint", OTHER)
    write_dump(place(folder, DUMPED), DUMPED, CPU, open_dump(dump(top / "source", flip=flip)), fingerprint=False)
    write_document(place(folder, FAR), Document("external", FAR, CPU, sha256=f"{int(add):064x}", size=10**9))
    shutil.rmtree(top / "source")
    return folder


def test_list_says_whose_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goldens(tmp_path)
    assert main(["golden", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "test_router.py::TestRouter::test_scores[4-8]::scores\n    cpu, values, " in out
    assert "bytes: ['h'] F32 [3, 4]" in out
    assert "cpu, fingerprint, " in out
    assert "cpu, external, 1000000000 bytes" in out
    assert "4 goldens, " in out


def test_list_fails_for_what_cannot_be_read_and_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = goldens(tmp_path)
    (folder / "broken.cpu.safetensors").write_text("no")
    assert main(["golden", "list", str(tmp_path)]) == 1
    assert "cannot be read: " in capsys.readouterr().out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["golden", "list", str(empty)]) == 2
    assert main(["golden", "list", str(tmp_path / "none")]) == 2


def test_diff_of_two_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = goldens(tmp_path / "a"), goldens(tmp_path / "b", add=1.0, flip=True)
    written(new, ROWS, key=Key("test_x.py", "", "test_new", None))
    assert main(["golden", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "5 goldens, 5 changed" in out
    assert "only new: tests/__golden__/test_x.py~~test_new.cpu.safetensors (none → " in out
    assert "['h'] (F32 [3, 4]): first at [0, 0]: 0x00000000 (0.0) in the golden, 0x3f800000 (1.0)" in out
    assert "at most 1065353216 ulp" in out  # 0x3f800000 steps from 0 to 1
    assert "boundary.2" in out
    assert "tensor: 3 rows have other bits" in out
    name = f"{KEY.stem}.cpu.safetensors"
    assert main(["golden", "diff", str(old / name), str(new / name)]) == 1
    assert main(["golden", "diff", str(old / name), str(new / name), "--mode", "abs:1"]) == 0


def test_diff_of_the_same_state_and_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = goldens(tmp_path / "a"), goldens(tmp_path / "b")
    assert main(["golden", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == "4 goldens, 0 changed\n"
    (tmp_path / "c").mkdir()
    (tmp_path / "d").mkdir()
    assert main(["golden", "diff", str(tmp_path / "c"), str(tmp_path / "d")]) == 2
    other = new / f"{OTHER.stem}.cpu.safetensors"
    assert main(["golden", "diff", str(old / f"{KEY.stem}.cpu.safetensors"), str(other)]) == 2
    assert main(["golden", "diff", str(old), str(other)]) == 2


def read(name: str, text: str) -> dict[str, Any]:
    """A document that its JSON Schema takes."""
    schema = json.loads(resources.files("specalign").joinpath(f"schemas/golden-{name}-1.json").read_text("utf-8"))
    found: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(found)
    return found


def test_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = goldens(tmp_path)
    (folder / "broken.cpu.safetensors").write_text("no")
    assert main(["golden", "list", str(tmp_path), "--json", str(tmp_path / "list.json")]) == 1
    assert "5 goldens, " in capsys.readouterr().out
    text = (tmp_path / "list.json").read_text()
    assert main(["golden", "list", str(tmp_path), "--json", "-"]) == 1
    assert capsys.readouterr().out == text
    found = read("list", text)
    by_path = {one["path"].rpartition("/")[2]: one for one in found["goldens"]}
    assert found["bytes"] == sum(one["bytes"] for one in by_path.values()) > 10**9
    values = by_path[f"{KEY.stem}.cpu.safetensors"]
    assert {name: values[name] for name in ("problem", "test", "name", "arch", "form", "tensors")} == {
        "problem": "",
        "test": KEY.test,
        "name": KEY.name,
        "arch": "cpu",
        "form": "values",
        "tensors": [{"path": "['h']", "dtype": "F32", "shape": [3, 4]}],
    }
    broken = by_path["broken.cpu.safetensors"]
    assert broken["problem"]
    assert (broken["test"], broken["form"], broken["bytes"]) == (None, None, 2)
    assert {one["form"] for one in by_path.values()} == {"values", "fingerprint", "external", "dump", None}


def test_diff_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = goldens(tmp_path / "a"), goldens(tmp_path / "b", add=1.0)
    written(new, ROWS, key=Key("test_x.py", "", "test_new", None))
    assert main(["golden", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json", "-"]) == 1
    found = read("diff", capsys.readouterr().out)
    assert (found["mode"], found["changed"]) == ("bits", 4)
    states = {one["name"].rpartition("/")[2]: (one["state"], one["max_ulp"]) for one in found["goldens"]}
    assert states[f"{KEY.stem}.cpu.safetensors"] == ("different", 0x3F800000)
    assert states[f"{DUMPED.stem}.cpu.json"][0] == "same"
    assert states["test_x.py~~test_new.cpu.safetensors"] == ("only new", None)
    name = f"{KEY.stem}.cpu.safetensors"
    target = tmp_path / "diff.json"
    assert main(["golden", "diff", str(old / name), str(new / name), "--mode", "abs:1", "--json", str(target)]) == 0
    assert capsys.readouterr().out == "1 golden, 0 changed\n"
    assert read("diff", target.read_text())["mode"] == "abs:1.0"


def test_a_nan_is_no_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a", ROWS)
    written(tmp_path / "b", ROWS * np.float32("nan"))
    assert main(["golden", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert ", at most a NaN apart)" in capsys.readouterr().out


TESTS = tuple(f"tests/__golden__::{key.test}" for key in (KEY, OTHER, DUMPED, FAR))


def record(top: Path, used: tuple[Key, ...], *, ran: tuple[str, ...] = TESTS) -> Path:
    """The record of a run in which all four tests were collected, some ran, and some goldens were used."""
    keys = (KEY, OTHER, DUMPED, FAR)
    there = frozenset(Present(f"tests/__golden__/{k.stem}", f"tests/__golden__::{k.test}", True) for k in keys)
    names = {f"tests/__golden__/{key.stem}": frozenset([f"tests/__golden__::{key.test}"]) for key in used}
    top.mkdir(exist_ok=True)
    return write_usage(Usage(collected=frozenset(TESTS), passed=frozenset(ran), used=names, present=there), top)


def test_merge_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = record(tmp_path / "one", (KEY, OTHER), ran=TESTS[:2])
    two = record(tmp_path / "two", (DUMPED,), ran=TESTS[2:])
    assert main(["golden", "merge", str(one)]) == 2
    assert "nobody can tell which goldens are unused: 2 tests (" in capsys.readouterr().out
    assert main(["golden", "merge", str(one), str(two.parent), "-o", str(tmp_path / "new" / "folder")]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "4 tests, 4 goldens, 1 unused",
        f"unused: tests/__golden__/{FAR.stem}",
    ]
    two.unlink()
    record(tmp_path / "two", (DUMPED, FAR), ran=TESTS[2:])
    assert main(["golden", "merge", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    (tmp_path / "none").mkdir()
    assert main(["golden", "merge", str(tmp_path / "none")]) == 2


def test_prune_says_what_would_go_and_removes_it_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = goldens(tmp_path)
    (folder / f".{KEY.stem}.cpu.safetensors.{'0' * 16}.tmp").write_text("of a killed run")
    orphan = folder / f"{DUMPED.stem}.cpu.{'0' * 12}.dump"
    orphan.mkdir()
    before = {path.name for path in folder.iterdir()}
    used = record(tmp_path / "records", (KEY, FAR))
    assert main(["golden", "prune", str(used), "--root", str(tmp_path)]) == 0
    assert "5 files and folders; remove them with --delete" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == before
    assert main(["golden", "prune", str(used), "--root", str(tmp_path), "--delete"]) == 0
    assert {path.name for path in folder.iterdir()} == {f"{KEY.stem}.cpu.safetensors", f"{FAR.stem}.cpu.json"}


def test_prune_leaves_dumps_that_are_not_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dump that somebody keeps beside goldens, and those of a golden whose document has a conflict of a merge in it."""
    folder = goldens(tmp_path)
    document = folder / f"{DUMPED.stem}.cpu.json"
    kept = {json.loads(document.read_text())["folder"], f"{DUMPED.stem}.cpu.{'1' * 12}.dump", "train.dump", "a.b.dump"}
    for name in kept:
        (folder / name).mkdir(exist_ok=True)
    document.write_text("<<<<<<< ours\n" + document.read_text())
    other = folder / f"{OTHER.stem}.cpu.{'2' * 12}.dump"
    other.mkdir()
    used = record(tmp_path / "records", (KEY, OTHER, DUMPED, FAR))
    assert main(["golden", "prune", str(used), "--root", str(tmp_path), "--delete"]) == 0
    assert kept <= {path.name for path in folder.iterdir()}
    assert not other.exists()


def test_list_names_what_is_in_the_place_of_a_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = goldens(tmp_path)
    path = folder / f"{KEY.stem}.cpu.safetensors"
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert main(["golden", "list", str(tmp_path)]) == 1
    assert "a broken link" in capsys.readouterr().out
    path.unlink()
    path.mkdir()
    assert main(["golden", "list", str(tmp_path)]) == 1
    assert "is a folder" in capsys.readouterr().out


def test_prune_removes_nothing_where_nobody_can_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = goldens(tmp_path)
    before = {path.name for path in folder.iterdir()}
    shard = record(tmp_path / "records", (KEY,), ran=TESTS[:1])
    assert main(["golden", "prune", str(shard), "--root", str(tmp_path), "--delete"]) == 2
    assert "nothing was removed: nobody can tell" in capsys.readouterr().err
    whole = record(tmp_path / "whole", (KEY,))
    assert main(["golden", "prune", str(whole), "--root", str(tmp_path / "records"), "--delete"]) == 2
    assert "give pytest's rootdir" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == before

"""Goldens that are dumps: whole and as fingerprints, replaced without a moment in which none is there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specalign.compare.modes import parse_mode
from specalign.dump.opening import open_dump
from specalign.golden import dumps
from specalign.golden.check import GoldenReport
from specalign.golden.dumps import check_dump, open_result, write_dump
from specalign.golden.environment import Environment
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, read_golden
from tests.unit.dump import made
from tests.unit.golden.made import CPU, KEY, place, written

KEEP = pytest.mark.parametrize("fingerprint", [False, True], ids=["whole", "fingerprint"])


def dump(folder: Path, *, seed: int = 0, flip: bool = False) -> Path:
    """Two passes of three and two rows, boundaries 1 and 2; `flip` changes one bit of boundary 2 in the second pass."""
    rows = [made.prefill({"a": [11, 12, 13]}), made.decode({"a": (3, 14)})]
    with made.DumpWriter(folder, made.manifest()) as writer:
        for number, part in enumerate(rows):
            tensors = []
            for boundary in (1, 2):
                bits = made.bits(len(part), seed=seed + 10 * number + boundary)
                if flip and number == 1 and boundary == 2:
                    bits[0, 3] ^= 1
                tensors.append(made.RawTensor(made.TensorSpec(f"boundary.{boundary}", "BF16", bits.shape), bits))
            writer.write_pass(part, tensors)
    return folder


def golden_of(folder: Path, source: Path, *, fingerprint: bool = False) -> Golden:
    return read_golden(write_dump(place(folder), KEY, CPU, open_dump(source), fingerprint=fingerprint))


def held(golden: Golden, source: Path, mode: str = "bits") -> GoldenReport:
    return check_dump(golden, open_dump(source), CPU, parse_mode(mode))


@KEEP
def test_the_same_dump_agrees(tmp_path: Path, fingerprint: bool) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"), fingerprint=fingerprint)
    report = held(golden, dump(tmp_path / "b"))
    assert report.ok
    assert report.compared == 8  # four rows under two keys
    assert (golden.document.passes, golden.document.rows) == (2, 4)


@KEEP
def test_one_bit_of_one_row_is_found(tmp_path: Path, fingerprint: bool) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"), fingerprint=fingerprint)
    report = held(golden, dump(tmp_path / "b", flip=True))
    assert not report.ok
    assert report.compare is not None
    assert report.compare.first is not None
    assert (report.compare.first.key, report.compare.first.position) == ("boundary.2", 3)
    assert report.compare.last_equal == "boundary.1"
    assert "boundary.2" in report.format()


@pytest.mark.parametrize("mode", ["bits", "ulp:60000", "abs:1e30"])
def test_a_damaged_golden_is_not_the_fault_of_the_result(tmp_path: Path, mode: str) -> None:
    """Within a tolerance it could even pass."""
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    assert held(golden, dump(tmp_path / "b"), mode).ok
    (path,) = (golden.path.parent / golden.document.folder).rglob("pass00001.safetensors")
    data = bytearray(path.read_bytes())
    data[data.index(made.bits(1, seed=12).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(GoldenError, match=r"its dump was damaged after it was written: .*pass00001.*check it out again"):
        held(golden, tmp_path / "b", mode)


def test_fingerprints_take_little_room_and_no_tolerance(tmp_path: Path) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"), fingerprint=True)
    with pytest.raises(GoldenError, match="fingerprints"):
        held(golden, dump(tmp_path / "b"), "ulp:1")


def test_missing_passes_fail(tmp_path: Path) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    folder = dump(tmp_path / "b")
    with made.DumpWriter(tmp_path / "c", made.manifest()) as writer:
        first = open_dump(folder).infos()[0]
        writer.write_pass(open_dump(folder).rows(first), list(open_dump(folder).load(first).values()))
    report = held(golden, tmp_path / "c")
    assert not report.ok
    assert "the golden has 1 row at the end of requests that the dump lacks" in report.format()


@pytest.mark.parametrize("damage", ["pass", "folder"])
def test_a_golden_with_a_part_missing_is_an_error(tmp_path: Path, damage: str) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    folder = golden.path.parent / golden.document.folder
    if damage == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "rank00000" / "pass00001.safetensors").unlink()
        (folder / "rank00000" / "end.json").unlink()
    with pytest.raises(GoldenError, match=r"its dump cannot be read|parts of it are missing"):
        held(golden, dump(tmp_path / "b"))


def test_an_update_replaces_the_dump_and_leaves_nothing_else(tmp_path: Path) -> None:
    first = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    second = golden_of(tmp_path / "g", dump(tmp_path / "b", seed=100))
    assert first.document.folder != second.document.folder
    assert {path.name for path in (tmp_path / "g").iterdir()} == {second.path.name, second.document.folder}
    assert held(second, tmp_path / "b").ok


@pytest.mark.parametrize("at", ["convert", "write_document"])
def test_a_failed_update_leaves_the_old_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    before = {path.name for path in (tmp_path / "g").iterdir()}

    def fail(*args: Any, **kwargs: Any) -> None:
        raise GoldenError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(dumps, at, fail)
        with pytest.raises(GoldenError, match="the disk is full"):
            golden_of(tmp_path / "g", dump(tmp_path / "b", seed=100))
    assert {path.name for path in (tmp_path / "g").iterdir()} == before
    assert held(read_golden(golden.path), dump(tmp_path / "c")).ok


def test_an_architecture_and_a_form_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    golden = golden_of(tmp_path / "g", dump(tmp_path / "a"))
    with pytest.raises(GoldenError, match="was computed on cpu, and this dump on sm90"):
        check_dump(golden, open_dump(tmp_path / "a"), Environment("cuda", "sm90"))
    with pytest.raises(GoldenError, match="is a golden of the form values, and the result is a dump"):
        held(written(tmp_path / "t", np.ones(3)), tmp_path / "a")


def with_padding(folder: Path, key: str, values: list[float], kinds: list[int]) -> Path:
    """One pass of rows of one F32 value each, of these kinds."""
    rows = made.rows_of([(None if kind == 2 else "a", at, at, kind) for at, kind in enumerate(kinds)])
    bits = np.array(values, "f4").reshape(-1, 1).view("u4")
    with made.DumpWriter(folder, made.manifest()) as writer:
        writer.write_pass(rows, [made.RawTensor(made.TensorSpec(key, "F32", bits.shape), bits)])
    return folder


@pytest.mark.parametrize(
    ("key", "values", "lines"),
    [
        ("boundary.1", [1.0, np.nan, 2.0], 1),
        ("boundary.1", [1.0, -np.inf, 2.0], 1),
        ("boundary.1", [1.0, 3.0, np.nan], 0),  # the last row is padding
        ("logits", [1.0, -np.inf, 2.0], 0),
        ("logits", [1.0, np.nan, 2.0], 1),
    ],
)
def test_values_that_no_golden_may_hold_are_found(tmp_path: Path, key: str, values: list[float], lines: int) -> None:
    found = dumps.illegal_values(open_dump(with_padding(tmp_path / "d", key, values, [0, 0, 2])))
    assert len(found) == lines
    assert all(f"{key}: 1 rows hold non-finite values, row 1 first" in line for line in found)


def test_what_is_observed_of_a_dump_leaves_padding_out(tmp_path: Path) -> None:
    one = with_padding(tmp_path / "a", "boundary.1", [1.0, 2.0, 3.0], [0, 0, 2])
    two = with_padding(tmp_path / "b", "boundary.1", [1.0, 2.0, 4.0], [0, 0, 2])
    three = with_padding(tmp_path / "c", "boundary.1", [1.0, 2.5, 3.0], [0, 0, 2])
    first, second, third = (dumps.observed(open_dump(path))["rank 0 pass 0 boundary.1"].tolist() for path in (one, two, three))
    assert len(first) == 2
    assert first == second
    assert first != third


def test_a_dump_without_rows_is_no_result(tmp_path: Path) -> None:
    with made.DumpWriter(tmp_path / "a", made.manifest()) as writer:
        writer.write_pass(made.no_rows(), [])
    with pytest.raises(GoldenError, match="holds no row"):
        open_result(tmp_path / "a")
    with pytest.raises(GoldenError, match="nothing"):
        open_result(tmp_path / "nothing")

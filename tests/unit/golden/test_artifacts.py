"""Both sides of what differs: whole, or cut to the limit around the first difference, and the report says what was cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from specalign.compare.modes import BITS
from specalign.dump.opening import open_dump
from specalign.golden.artifacts import write_dump_sides, write_tensor_sides
from specalign.golden.check import read_result
from specalign.golden.dumps import check_dump, open_golden_dump, write_dump
from specalign.golden.files import read_golden
from tests.unit.golden.made import CPU, KEY, checked, place, written
from tests.unit.golden.test_dumps import dump

BIG = np.arange(4000, dtype="f4").reshape(1000, 4)


def sides(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {path.stem: safetensors.numpy.load_file(path) for path in folder.glob("*.safetensors")}


def changed(rows: np.ndarray, row: int) -> np.ndarray:
    other = rows.copy()
    other[row, 1] += 0.5
    return other


def test_only_what_differs_is_written_of_both_sides(tmp_path: Path) -> None:
    golden = written(tmp_path, {"same": BIG, "other": BIG, "gone": BIG[:1]})
    result = {"same": BIG, "other": changed(BIG, 3), "new": BIG[:2]}
    write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None))
    found = sides(tmp_path / "out")
    assert set(found["expected"]) == {"['other']", "['gone']"}
    assert set(found["actual"]) == {"['other']", "['new']"}
    assert (found["expected"]["['other']"] == BIG).all()
    assert (found["actual"]["['other']"] == result["other"]).all()
    text = (tmp_path / "out" / "report.txt").read_text()
    assert "first at [3, 1]" in text
    assert "all that differs was written" in text


@pytest.mark.parametrize("row", [0, 500, 999])
def test_a_large_tensor_is_cut_to_rows_around_the_first_difference(tmp_path: Path, row: int) -> None:
    golden, result = written(tmp_path, BIG), changed(BIG, row)
    limit = BIG.nbytes // 2
    write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None), limit)
    found = sides(tmp_path / "out")
    assert sum(data.nbytes for side in found.values() for data in side.values()) <= limit
    expected = found["expected"]["tensor"]
    assert BIG[row].tolist() in expected.tolist()
    begin = int(expected[0, 0]) // 4
    text = (tmp_path / "out" / "report.txt").read_text()
    assert len(expected) == len(found["actual"]["tensor"]) == 250
    for side in ("expected", "actual"):
        assert f"{side}: tensor (F32 [1000, 4]): rows {begin} to {begin + 249} of 1000" in text


def test_what_does_not_fit_at_all_is_left_out_and_said(tmp_path: Path) -> None:
    golden, result = written(tmp_path, BIG), changed(BIG, 3)
    write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None), 20)
    assert sides(tmp_path / "out") == {}
    text = (tmp_path / "out" / "report.txt").read_text()
    assert "actual: tensor (F32 [1000, 4]) was left out: 10 bytes were left for it" in text


def test_both_sides_of_a_cut_tensor_show_the_same_rows(tmp_path: Path) -> None:
    golden, result = written(tmp_path, BIG), changed(BIG, 700)
    write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None), 1600)
    found = sides(tmp_path / "out")
    assert found["expected"]["tensor"].shape == found["actual"]["tensor"].shape == (50, 4)
    assert (found["expected"]["tensor"] != found["actual"]["tensor"]).sum() == 1


def test_a_golden_of_fingerprints_has_one_side(tmp_path: Path) -> None:
    golden, result = written(tmp_path, BIG, "fingerprint"), changed(BIG, 3)
    write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None))
    assert set(sides(tmp_path / "out")) == {"actual"}
    assert "the golden holds fingerprints and no values" in (tmp_path / "out" / "report.txt").read_text()


def test_an_earlier_failure_leaves_nothing(tmp_path: Path) -> None:
    golden = written(tmp_path, {"a": BIG})
    for result in ({"a": changed(BIG, 1)}, {"b": BIG}):
        write_tensor_sides(tmp_path / "out", checked(golden, result), golden, read_result("", result, None))
    assert set(sides(tmp_path / "out")["actual"]) == {"['b']"}


@pytest.mark.parametrize("limit", [2**20, 0])
def test_dumps_are_cut_to_the_keys_that_differ(tmp_path: Path, limit: int) -> None:
    golden = read_golden(write_dump(place(tmp_path), KEY, CPU, open_dump(dump(tmp_path / "a")), fingerprint=False))
    result = open_dump(dump(tmp_path / "b", flip=True))
    report = check_dump(golden, result, CPU, BITS)
    write_dump_sides(tmp_path / "out", report, open_golden_dump(golden), result, limit)
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["first"]["key"] == "boundary.2"
    if limit:
        for side in ("expected", "actual"):
            assert {key for info in open_dump(tmp_path / "out" / f"{side}.dump").infos() for key in info.tensors} == {
                "boundary.2"
            }
    else:
        assert not (tmp_path / "out" / "actual.dump").exists()
        assert "boundary.2: 128 bytes on both sides, 0 were left" in (tmp_path / "out" / "report.txt").read_text()

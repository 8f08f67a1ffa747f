"""The validator names every problem, and a bad dump raises nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specalign.dump.dtypes import DTYPES
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.problems import CODES, ValidationReport
from specalign.dump.validate import validate
from specalign.dump.writer import DumpWriter
from tests.unit.dump.damaged import change_document
from tests.unit.dump.made import bits, boundaries, decode, manifest, no_rows, prefill, small_dump, tensor, write_dump

PAIR = manifest(world=2, layout={"tp": 2})


def pair(folder: Path) -> Path:
    """Two tensor-parallel ranks of three passes."""
    for rank in range(2):
        small_dump(folder, manifest=PAIR, rank=rank, coords=[("tp", rank)], stage=(0, 4))
    return folder


def codes(report: ValidationReport) -> list[str]:
    """The codes of the problems, after what must hold for every report."""
    assert {problem.code for problem in report.problems} <= CODES.keys()
    assert report.ok == all(problem.severity == "warning" for problem in report.problems)
    text = report.format()
    for problem in report.problems:
        assert problem.what
        assert problem.next
        assert problem.format() in text
    assert text.replace("\n", "").isprintable()
    return [problem.code for problem in report.problems]


def test_a_whole_dump_has_no_problem_and_is_read_to_the_last_byte(tmp_path: Path) -> None:
    report = validate(pair(tmp_path))
    assert codes(report) == []
    assert (report.ranks, report.passes, report.rows) == (2, 6, 18)
    assert report.size == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert "whole" in report.format()


def first(folder: Path) -> Path:
    return folder / "rank00001" / "pass00001.safetensors"


def edit_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewrite(folder: Path, tensors: list[RawTensor], **where: Any) -> None:
    """Rank 1 written again by our writer, which does not look at what this test is about."""
    shutil.rmtree(folder / "rank00001")
    rows = [prefill({"a": [1, 2], "b": [3, 4, 5]}), decode({"a": (2, 3), "b": (3, 6)}), decode({"a": (3, 4), "b": (4, 7)})]
    settings = {"manifest": PAIR, "rank": 1, "coords": [("tp", 1)], "stage": (0, 4)} | where
    passes = [
        (
            r,
            [
                RawTensor(
                    dataclasses.replace(t.spec, shape=(len(r), *t.spec.shape[1:])),
                    t.data[: len(r)],
                    None if t.nonfinite is None else t.nonfinite[: len(r)],
                )
                for t in tensors
            ],
        )
        for r in rows
    ]
    write_dump(folder, passes, **settings)


def both_forms(data: np.ndarray[Any, Any], prints: np.ndarray[Any, Any], axis: str = "") -> list[RawTensor]:
    spec = TensorSpec("boundary.1", "BF16", data.shape, axis=axis)
    return [RawTensor(spec, data), RawTensor(TensorSpec(spec.key, spec.dtype, spec.shape, axis=axis, fingerprint=True), prints)]


def counted_forms(counts: list[list[int]], dtype: str = "BF16") -> list[RawTensor]:
    """Both forms of a tensor with one NaN in row 0 and -inf in row 2, and counts of whatever; the second is the fingerprints."""
    data = bits(5, dtype=dtype)
    if dtype == "BF16":
        data[0, 3], data[2, 1] = 0x7FC0, 0xFF80
    made = tensor("boundary.1", data, dtype=dtype, fingerprint=True, counted=True)
    return [tensor("boundary.1", data, dtype=dtype), dataclasses.replace(made, nonfinite=np.array(counts, np.uint32))]


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no manifest": (lambda d: (d / "manifest.json").unlink(), ["manifest"]),
    "a manifest of another schema": (lambda d: edit_json(d / "manifest.json", schema="x"), ["manifest"]),
    "a manifest cut off": (lambda d: (d / "manifest.json").write_text('{"schema"'), ["manifest"]),
    "nothing but a manifest": (lambda d: [shutil.rmtree(d / f"rank0000{r}") for r in (0, 1)], ["empty", "rank-missing"]),
    "a rank that wrote nothing": (lambda d: shutil.rmtree(d / "rank00000"), ["rank-missing"]),
    "a rank outside of the world": (lambda d: edit_json(d / "manifest.json", world=1), ["rank-unknown"]),
    "a gap": (lambda d: first(d).unlink(), ["pass-missing", "pass-count", "pass-missing"]),
    "the last pass gone": (lambda d: (d / "rank00001/pass00002.safetensors").unlink(), ["pass-count", "pass-missing"]),
    "a killed writer": (lambda d: (d / "rank00001/end.json").unlink(), ["no-end"]),
    "an end mark of other rows": (lambda d: edit_json(d / "rank00001/end.json", rows=1), ["end"]),
    "an end mark of another rank": (lambda d: edit_json(d / "rank00001/end.json", rank=0), ["end"]),
    "a damaged end mark": (lambda d: (d / "rank00001/end.json").write_text(""), ["end"]),
    "a pass cut off": (lambda d: first(d).write_bytes(first(d).read_bytes()[:-1]), ["header", "end"]),
    "a pass of no bytes": (lambda d: first(d).write_bytes(b""), ["header", "end"]),
    "a flipped bit in a header": (lambda d: flip(first(d), 100), ["header", "end"]),
    "a pickle": (lambda d: first(d).write_bytes(b"\x80\x04\x95cos\nsystem\n"), ["header", "end"]),
    "a pass that is a folder": (lambda d: [first(d).unlink(), first(d).mkdir()], ["header", "end"]),
    "a copy of another pass": (lambda d: shutil.copy(d / "rank00001/pass00002.safetensors", first(d)), ["misplaced"]),
    "a pass of another rank": (lambda d: shutil.copy(d / "rank00000/pass00001.safetensors", first(d)), ["misplaced", "place", "place"]),
    "a place outside of the layout": (lambda d: change_document(first(d), lambda doc: doc.update(coords={"tp": 2})), ["place", "place"]),
    "two ranks at one place": (lambda d: rewrite(d, boundaries(5), coords=[("tp", 0)]), ["place"]),
    "a layer of another stage": (lambda d: rewrite(d, boundaries(5, [0, 1, 2]), stage=(1, 4)), ["stage"]),
    "a boundary beyond the stage": (lambda d: rewrite(d, boundaries(5, [2, 3]), stage=(0, 2)), ["stage"]),
    "a boundary beyond the model": (lambda d: rewrite(d, boundaries(5, [4, 5]), stage=None), ["stage"]),
    "a module of another stage": (lambda d: rewrite(d, [tensor("module.layers.2.mlp", bits(5))], stage=(0, 2)), ["stage"]),
    "routes of another stage": (lambda d: rewrite(d, [tensor("routes.2", bits(5, 2, "I32"), dtype="I32")], stage=(0, 2)), ["stage"]),
    "the final norm on an early stage": (lambda d: rewrite(d, [tensor("post_norm", bits(5))], stage=(0, 2)), ["stage"]),
    "a boundary of another width": (lambda d: rewrite(d, [tensor("boundary.1", bits(5, 4))]), ["width"]),
    "a whole boundary said to be a shard": (lambda d: rewrite(d, boundaries(5, [1], axis="hidden@tp")), ["width"]),
    "a flipped bit in a tensor": (lambda d: flip(first(d), -20), ["data"]),
    "a flipped bit in the rows": (lambda d: flip(first(d), -1), ["data"]),
    "rows of an unknown request": (lambda d: change_document(first(d), lambda doc: doc.update(requests=["a"])), ["rows"]),
    "fingerprints of something else": (lambda d: rewrite(d, both_forms(bits(5), fingerprint_rows(bits(5, seed=1)))), ["fingerprint"] * 3),
    "fingerprints of a shard counted from 0": (
        lambda d: rewrite(d, both_forms(bits(5, 4), fingerprint_rows(bits(5, 4)), "hidden@tp")),
        ["fingerprint"] * 3,
    ),
    "a NaN that was not counted": (lambda d: rewrite(d, counted_forms([[0, 0]] * 5)), ["nonfinite"] * 3),
    "a NaN that is none": (lambda d: rewrite(d, counted_forms([[1, 0], [0, 1], [0, 1], [0, 0], [0, 0]])), ["nonfinite"] * 3),
    "more NaN than elements": (lambda d: rewrite(d, counted_forms([[9, 0]] * 5)[1:]), ["nonfinite"] * 3),
    "an infinity of a type that has none": (lambda d: rewrite(d, counted_forms([[0, 1]] * 5, "F8_E4M3")[1:]), ["nonfinite"] * 3),
    "a temporary file": (lambda d: (d / "rank00000/.pass00003.safetensors.0123456789abcdef.tmp").write_text(""), ["leftover"]),
    "a temporary manifest": (lambda d: (d / ".manifest.json.0123456789abcdef.tmp").write_text(""), ["leftover"]),
    "a note": (lambda d: (d / "README").write_text(""), ["foreign"]),
    "a note in a rank": (lambda d: (d / "rank00000/README").write_text(""), ["foreign"]),
    "a file that might be a pass": (lambda d: (d / "rank00000/pass3.safetensors").write_text(""), ["foreign"]),
    "a folder that might be a rank": (lambda d: (d / "rank7").mkdir(), ["foreign"]),
    "a rank that is a file": (lambda d: [shutil.rmtree(d / "rank00001"), (d / "rank00001").write_text("")], ["foreign", "rank-missing"]),
}  # fmt: skip

WARNINGS = {"a temporary file", "a temporary manifest", "a note", "a note in a rank"}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_told_by_its_code(tmp_path: Path, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(pair(tmp_path))
    report = validate(tmp_path)
    assert codes(report) == expected, report.format()
    assert report.ok == (name in WARNINGS)


def test_every_code_is_planted_here() -> None:
    assert {code for _, expected in DAMAGES.values() for code in expected} == CODES.keys()


def test_shards_and_both_forms_are_fine_where_they_are_right(tmp_path: Path) -> None:
    shard = bits(5, 4)
    rewrite(pair(tmp_path), both_forms(shard, fingerprint_rows(shard, first_byte=8), "hidden@tp"))
    assert codes(validate(tmp_path)) == []


def test_counts_are_fine_where_they_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("specalign.dump.validate")
    for block in (1, 33, 10**6):
        monkeypatch.setattr(module, "BLOCK", block)
        folder = tmp_path / str(block)
        rewrite(pair(folder), counted_forms([[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]]))
        assert codes(validate(folder)) == []


def test_fingerprints_are_checked_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("specalign.dump.validate")  # the package has the function under this name
    data = bits(5)
    good = fingerprint_rows(data)
    write_dump(tmp_path / "good", [(prefill({"a": range(5)}), both_forms(data, good))])
    good[3, 1] ^= np.uint64(1)
    write_dump(tmp_path / "bad", [(prefill({"a": range(5)}), both_forms(data, good))])
    for block in (1, 16, 33, 10**6):
        monkeypatch.setattr(module, "BLOCK", block)
        assert codes(validate(tmp_path / "good")) == []
        assert codes(validate(tmp_path / "bad")) == ["fingerprint"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_read(tmp_path: Path, dtype: str) -> None:
    data = bits(3, 5, dtype)
    made = [tensor("module.x", data, dtype=dtype), tensor("module.x", data, dtype=dtype, fingerprint=True)]
    write_dump(tmp_path, [(prefill({"a": [1, 2, 3]}), made), (no_rows(), [])])
    assert codes(validate(tmp_path)) == []


def test_rows_without_elements_are_fine(tmp_path: Path) -> None:
    data = bits(3, 0)
    made = [tensor("module.x", data), tensor("module.x", data, fingerprint=True)]
    write_dump(tmp_path, [(prefill({"a": [1, 2, 3]}), made)])
    assert codes(validate(tmp_path)) == []


def test_one_fault_of_a_whole_run_is_told_once(tmp_path: Path) -> None:
    write_dump(tmp_path, [(decode({"a": (n, n)}), boundaries(1, [9])) for n in range(20)], stage=(0, 4))
    assert codes(validate(tmp_path)) == ["stage"]


def test_several_problems_are_all_told(tmp_path: Path) -> None:
    flip(first(pair(tmp_path)), -20)
    (tmp_path / "rank00000" / "pass00001.safetensors").unlink()
    (tmp_path / "rank00001" / "end.json").unlink()
    assert codes(validate(tmp_path)) == ["pass-missing", "pass-count", "pass-missing", "data", "no-end"]


@pytest.mark.parametrize("skew", [-(10**9), 10**6])
def test_clocks_decide_nothing(tmp_path: Path, skew: int) -> None:
    """Files that are older than those before them, or from the future: only numbers count."""
    pair(tmp_path)
    for at, path in enumerate(sorted(tmp_path.rglob("*"))):
        time = path.stat().st_mtime + skew * (1 - at % 3)
        os.utime(path, (max(0, time), max(0, time)))
    assert codes(validate(tmp_path)) == []
    with DumpWriter(tmp_path, PAIR, rank=1, coords=[("tp", 1)], stage=(0, 4), resume=True) as writer:
        assert writer.passes == 3


def test_progress_is_told_for_every_pass(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    validate(pair(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 6) for n in range(1, 7)]


@pytest.mark.parametrize("what", ["nothing", "a file", "a loop of links"])
def test_what_is_no_folder_is_a_problem_too(tmp_path: Path, what: str) -> None:
    match what:
        case "a file":
            (tmp_path / "d").write_text("")
        case "a loop of links":
            (tmp_path / "d").symlink_to("d")
    assert codes(validate(tmp_path / "d")) == ["manifest"]

"""The files of goldens: what is in them, what refuses to be read, and what a failed or killed write leaves."""

from __future__ import annotations

import errno
import json
import tempfile
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from specalign.compare.leaves import Leaf, read_leaves
from specalign.golden import files
from specalign.golden.document import SCHEMA, Document, parse_document
from specalign.golden.errors import GoldenError
from specalign.golden.files import Place, locked, parse_name, read_golden, write_document, write_golden
from tests.unit.dump.plain_fingerprints import plain_fingerprint
from tests.unit.golden.made import CPU, KEY, place, tree, written

JSON_SCHEMA = json.loads(resources.files("specalign").joinpath("schemas/golden-1.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(JSON_SCHEMA)


def document_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "np") as file:
        assert set(file.metadata()) == {"specalign"}
        document: dict[str, Any] = json.loads(file.metadata()["specalign"])
    return document


def test_the_schema_is_a_schema_and_names_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(JSON_SCHEMA)
    assert JSON_SCHEMA["$id"] == SCHEMA


def test_the_safetensors_package_reads_the_same_tensors(tmp_path: Path) -> None:
    golden = written(tmp_path, tree())
    theirs = safetensors.numpy.load_file(golden.path)
    assert set(theirs) == {"['h'][0]", "['h'][1]", "['ids']", "['mask']", "['loss']"}
    assert theirs["['h'][0]"].tobytes() == np.arange(24, dtype="f4").tobytes()
    assert theirs["['h'][1]"].tolist() == np.arange(12).reshape(3, 4).T.tolist()
    assert theirs["['ids']"].tolist() == [-2, -1, 0, 1, 2]
    assert theirs["['mask']"].tolist() == [True, False, True]
    assert (theirs["['loss']"].shape, str(theirs["['loss']"])) == ((), "-0.0")


@pytest.mark.parametrize("form", ["values", "fingerprint"])
def test_the_document_fits_its_schema_and_holds_the_right_checksums(tmp_path: Path, form: Any) -> None:
    golden = written(tmp_path, tree(), form)
    document = document_of(golden.path)
    VALIDATOR.validate(document)
    theirs = safetensors.numpy.load_file(golden.path)
    assert document["crc32"] == {name: f"{zlib.crc32(data.tobytes()):08x}" for name, data in theirs.items()}
    assert document["key"] == {
        "module": "test_router.py",
        "class": "TestRouter",
        "function": "test_scores",
        "params": "4-8",
        "name": "scores",
    }


def test_other_documents_fit_the_schema_too(tmp_path: Path) -> None:
    external = Document("external", KEY, CPU, sha256="0" * 64, size=1)
    dump = Document("dump", KEY, CPU, folder="a~b.cpu.0123456789ab.dump", passes=1, rows=2)
    for document in (external, dump):
        VALIDATOR.validate(document.to_json())
        assert parse_document(document.to_json(), "here") == document
        assert read_golden(write_document(place(tmp_path), document)).document == document


def test_fingerprints_are_those_of_the_plain_sum(tmp_path: Path) -> None:
    rows = np.arange(15, dtype="f4").reshape(3, 5)
    golden = written(tmp_path, rows, "fingerprint")
    assert golden.data["tensor"].tolist() == [list(plain_fingerprint(row.tobytes())) for row in rows]
    assert golden.path.stat().st_size < written(tmp_path, np.zeros((3, 5000), "f4")).path.stat().st_size / 10


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "a", tree()).path.read_bytes() == written(tmp_path / "b", tree()).path.read_bytes()


def test_the_file_lies_under_its_key_and_architecture(tmp_path: Path) -> None:
    golden = written(tmp_path, tree())
    assert golden.path == tmp_path / "test_router.py~TestRouter~test_scores~4-8~scores.cpu.safetensors"
    assert parse_name(golden.path.name) == (KEY.stem, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == [golden.path.name]
    assert place(tmp_path, arch="sm90").others() == ("cpu",)
    assert place(tmp_path).others() == ()


def test_writing_again_replaces_the_golden_and_its_other_form(tmp_path: Path) -> None:
    write_document(place(tmp_path), Document("external", KEY, CPU, sha256="0" * 64, size=1))
    golden = written(tmp_path, np.ones(3))
    assert written(tmp_path, np.zeros(3)).data["tensor"].tolist() == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == [golden.path.name]


@pytest.mark.parametrize("step", ["specalign.dump.files.os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    before = written(tmp_path, np.ones(3)).path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full)
    with pytest.raises(GoldenError, match="the disk is full"):
        written(tmp_path, np.zeros(3))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_two_forms_of_one_golden_are_refused(tmp_path: Path) -> None:
    golden = written(tmp_path, np.ones(3))
    golden.path.with_suffix(".json").write_text("{}")
    with pytest.raises(GoldenError, match="are one golden in two forms"):
        place(tmp_path).found()


@pytest.mark.parametrize("at", range(8, 400, 13))
def test_no_flipped_bit_of_a_header_goes_unnoticed(tmp_path: Path, at: int) -> None:
    path = written(tmp_path, tree()).path
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(GoldenError):
        read_golden(path)


def test_a_golden_under_another_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, np.ones(3)).path
    for name in (path.name.replace(".cpu.", ".sm90."), path.name.replace("4-8", "8-4")):
        with pytest.raises(GoldenError, match="was copied or renamed"):
            read_golden(path.rename(path.with_name(name)))
        path.with_name(name).rename(path)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = place(tmp_path).tensors
    safetensors.numpy.save_file({"tensor": np.ones(3)}, path)
    with pytest.raises(GoldenError, match="is no golden: its metadata has the keys"):
        read_golden(path)
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(GoldenError, match="too short"):
        read_golden(path)
    with pytest.raises(GoldenError, match="no such file"):
        read_golden(place(tmp_path, arch="sm90").tensors)


WRONG: dict[str, Any] = {
    "schema": "specalign.golden/2",
    "form": ["values"],
    "key": {},
    "environment": {"device": "cpu"},
    "sha256": "0" * 63,
    "size": 0,
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_document_is_refused_by_reader_and_schema(field: str) -> None:
    document = Document("external", KEY, CPU, sha256="0" * 64, size=1).to_json() | {field: WRONG[field]}
    with pytest.raises(GoldenError, match=r"^here: "):
        parse_document(document, "here")
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize("folder", ["../x.dump", "a/b.dump", "x", ".dump", 3])
def test_a_dump_lies_beside_its_document(folder: object) -> None:
    document = Document("dump", KEY, CPU, folder="x.dump", passes=1, rows=1).to_json() | {"folder": folder}
    with pytest.raises(GoldenError, match="no name of a dump beside it"):
        parse_document(document, "here")
    assert not VALIDATOR.is_valid(document)


def test_the_document_must_be_about_the_tensors_of_the_file(tmp_path: Path) -> None:
    leaves = read_leaves("x", np.ones(3))
    wrong = [Leaf(leaf.path, leaf.dtype, (4,), leaf.bits) for leaf in leaves]
    with pytest.raises(GoldenError, match="its document says"):
        read_golden(write_golden(place(tmp_path), KEY, CPU, wrong, "values"))


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LOCK_TIMEOUT", 0.0)
    upper = Place(tmp_path, KEY.stem.upper(), "cpu")
    with locked(place(tmp_path)):
        for other in (place(tmp_path), upper):
            with pytest.raises(GoldenError, match="another process writes it"), locked(other):
                pass
        with locked(place(tmp_path, arch="sm90")):
            pass
    with locked(upper):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_made_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with locked(place(tmp_path)):
        pass
    (lock,) = (tmp_path / "temporary").rglob("*.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(GoldenError, match="cannot be written"), locked(place(tmp_path)):
        pass


def test_a_full_disk_is_no_reason_to_resume_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("specalign.dump.files.os.fsync", full)
    with pytest.raises(GoldenError, match="the disk is full; free some space, what was committed before is whole"):
        written(tmp_path, np.ones(3))

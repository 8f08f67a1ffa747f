"""Counts of non-finite elements lie beside fingerprints, only where there are any, and dumps without them stay what they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from specalign.dump.convert import convert
from specalign.dump.dtypes import DTYPES
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.keys import INDEX_DTYPES
from specalign.dump.nonfinite import count_nonfinite
from specalign.dump.reader import open_specalign
from specalign.dump.validate import validate
from tests.unit.dump.damaged import change_file, refusal, split
from tests.unit.dump.made import bits, manifest, prefill, tensor, write_dump
from tests.unit.dump.plain_fingerprints import special_rows

ROWS = prefill({"a": [1, 2, 3]})


def dirty() -> np.ndarray:
    data = bits(3)
    data[1, 2:5], data[2, 0] = 0xFF80, 0x7FC0
    return data


def names(folder: Path) -> set[str]:
    header, _ = split((folder / "rank00000" / "pass00000.safetensors").read_bytes())
    return header.keys() - {"__metadata__"} - INDEX_DTYPES.keys()


def test_counts_are_stored_where_a_row_has_any_and_nowhere_else(tmp_path: Path) -> None:
    made = [
        tensor("boundary.1", dirty(), fingerprint=True, counted=True),
        tensor("boundary.2", bits(3), fingerprint=True, counted=True),
        tensor("boundary.3", dirty(), fingerprint=True),
    ]
    write_dump(tmp_path, [(ROWS, made)])
    assert names(tmp_path) == {"nonfinite.boundary.1", *(f"fingerprint.boundary.{b}" for b in (1, 2, 3))}
    dump = open_specalign(tmp_path)
    (info,) = dump.infos()
    assert [spec.counted for spec in info.tensors.values()] == [True, True, False]
    loaded = dump.load(info, check=True)
    assert loaded["boundary.1"].nonfinite.tolist() == [[0, 0], [0, 3], [1, 0]]
    assert loaded["boundary.2"].nonfinite.tolist() == [[0, 0]] * 3, "counted, and there are none"
    assert loaded["boundary.3"].nonfinite is None, "not counted: nothing is known"
    assert validate(tmp_path).ok


def test_a_dump_without_counts_has_the_bytes_that_it_always_had(tmp_path: Path) -> None:
    """What an older recorder wrote: read, validated and converted as before, and never taken for counted."""
    write_dump(tmp_path / "a", [(ROWS, [tensor("boundary.1", dirty(), fingerprint=True)])])
    header, _ = split((tmp_path / "a/rank00000/pass00000.safetensors").read_bytes())
    assert "count" not in header["__metadata__"]["specalign"]
    assert "nonfinite" not in str(header)
    convert(open_specalign(tmp_path / "a"), tmp_path / "b", fingerprint=True)
    a, b = (tmp_path / side / "rank00000/pass00000.safetensors" for side in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert validate(tmp_path / "b").ok


def test_counts_lie_under_the_checksums(tmp_path: Path) -> None:
    write_dump(tmp_path, [(ROWS, [tensor("boundary.1", dirty(), fingerprint=True, counted=True)])])
    path = tmp_path / "rank00000/pass00000.safetensors"
    begin = split(path.read_bytes())[0]["nonfinite.boundary.1"]["data_offsets"][0]
    change_file(path, lambda header, data: (header, data[:begin] + b"\x01" + data[begin + 1 :]))
    dump = open_specalign(tmp_path)
    assert dump.load(dump.infos()[0])["boundary.1"].nonfinite is not None
    refusal(lambda: dump.load(dump.infos()[0], check=True), "nonfinite.boundary.1", "checksum")
    assert [problem.code for problem in validate(tmp_path).problems] == ["data"]


def test_counts_beside_both_forms_of_a_key(tmp_path: Path) -> None:
    made = [tensor("boundary.1", dirty()), tensor("boundary.1", dirty(), fingerprint=True, counted=True)]
    write_dump(tmp_path, [(ROWS, made)])
    dump = open_specalign(tmp_path)
    (info,) = dump.infos()
    assert not info.tensors["boundary.1"].counted, "values speak for themselves"
    assert dump.load(info)["boundary.1"].nonfinite is None
    prints = dump.fingerprints(info)["boundary.1"]
    assert prints.spec == dataclasses.replace(info.tensors["boundary.1"], fingerprint=True, counted=True)
    assert prints.nonfinite.tolist() == [[0, 0], [0, 3], [1, 0]]


def test_converting_counts_every_type_and_carries_counts_on(tmp_path: Path) -> None:
    data = {f"module.{name}": special_rows(name, dtype.raw, 3, 64) for name, dtype in DTYPES.items()}
    made = [tensor(key, bits & (1 if key == "module.BOOL" else bits), dtype=key[7:]) for key, bits in data.items()]
    write_dump(tmp_path / "full", [(ROWS, made)], manifest=manifest())
    convert(open_specalign(tmp_path / "full"), tmp_path / "prints", fingerprint=True)
    convert(open_specalign(tmp_path / "prints"), tmp_path / "again")
    for name in ("prints", "again"):
        assert validate(tmp_path / name).ok
        dump = open_specalign(tmp_path / name)
        for key, one in dump.load(dump.infos()[0]).items():
            dtype = DTYPES[key[7:]]
            assert one.spec.counted == dtype.is_float
            assert np.array_equal(one.data, fingerprint_rows(next(t.data for t in made if t.spec.key == key)))
            if dtype.is_float:
                assert np.array_equal(one.nonfinite, count_nonfinite(data[key], dtype))
                assert one.nonfinite.any()
    first, second = (tmp_path / name / "rank00000/pass00000.safetensors" for name in ("prints", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_finite_fingerprints_still_store_300_times_less(tmp_path: Path) -> None:
    """The floor at width 2880: counts cost a word in the header and nothing a row."""
    rows, data = prefill({"a": range(512)}), bits(512, 2880)
    made = {"full": [tensor(f"boundary.{b}", data) for b in range(3)]}
    made["prints"] = [tensor(f"boundary.{b}", data, fingerprint=True, counted=True) for b in range(3)]
    for name, tensors in made.items():
        write_dump(tmp_path / name, [(rows, tensors)], manifest=manifest(model={}))
    full, prints = ((tmp_path / name / "rank00000/pass00000.safetensors").stat().st_size for name in made)
    assert full / (prints - 512 * 21) >= 300, "the rows' tokens and positions are 21 bytes a row, whatever is recorded"

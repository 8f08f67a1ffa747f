"""Which reader fits is told by names alone; nothing fits, or two do, is an error that says what was looked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specalign.dump.passes import Dump
from specalign.dump.readers import READERS, open_foreign
from specalign.dump.readers.module_calls import ModuleCalls
from specalign.dump.rows import make_rows
from tests.unit.dump.readers.foreign import DATA, DUMPER, HOOKS, TOY, load_all, plain_rows, refused

REAL = {
    DATA / "tensor_dump": "sglang-tensor-dump",
    TOY: "sglang-tensor-dump",
    DATA / "dumper": "sglang-dumper",
    DUMPER: "sglang-dumper",
    HOOKS / "llama": "sglang-module-calls",
    HOOKS / "gptoss": "sglang-module-calls",
}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_real_folder_fits_one_reader(path: Path) -> None:
    assert [reader.name for reader in READERS if reader.detect(path)] == [REAL[path]]


def test_nothing_that_fits_lists_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    message = refused(open_foreign, tmp_path)
    assert all(reader.name in message for reader in READERS)
    assert "TP<t>_PP<p>" in message
    (tmp_path / "manifest.json").write_text("{}")
    assert "is it a dump of specalign's own?" in refused(open_foreign, tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no such file or folder" in refused(open_foreign, tmp_path / "gone")


def test_two_that_fit_are_an_error_until_one_is_named(tmp_path: Path) -> None:
    shutil.copytree(HOOKS / "llama", tmp_path / "both")
    shutil.copytree(TOY, tmp_path / "both" / TOY.name)
    message = refused(open_foreign, tmp_path / "both")
    assert "fits sglang-tensor-dump and sglang-module-calls" in message
    assert isinstance(open_foreign(tmp_path / "both", reader="sglang-module-calls"), ModuleCalls)
    assert "there is no reader 'x'" in refused(open_foreign, tmp_path / "both", reader="x")


def test_names_are_unique_and_a_text_is_a_path_too() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)
    assert len(open_foreign(str(HOOKS / "llama")).infos()) == 6


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_each_real_dump_keeps_the_contract(path: Path) -> None:
    given = None if "hooks" in str(path) else {n: plain_rows(4 if "dumper" in str(path) else 5) for n in range(3)}
    dump = open_foreign(path, rows=given)
    assert isinstance(dump, Dump)
    assert isinstance(dump.notes, tuple)
    places = [(info.rank, info.number) for info in dump.infos()]
    assert places == sorted(set(places))
    for info, tensors in zip(dump.infos(), load_all(dump), strict=True):
        rows = dump.rows(info)
        assert len(rows) == info.rows
        make_rows(rows.tokens, rows.positions, rows.requests, rows.kinds, rows.request_ids)
        assert set(tensors) == set(info.tensors)
        for key, tensor in tensors.items():
            assert tensor.spec is info.tensors[key] or tensor.spec == info.tensors[key]
            assert tensor.data.shape == tensor.spec.shape
            assert tensor.data.dtype.str.lstrip("<|=") == tensor.dtype.raw.lstrip("<")


def test_a_pass_that_is_not_of_this_dump_is_refused() -> None:
    dump, other = open_foreign(HOOKS / "llama"), open_foreign(DUMPER, rows={n: plain_rows(4) for n in range(2)})
    assert "has no pass 5 of rank 0" in refused(other.rows, dump.infos()[5])

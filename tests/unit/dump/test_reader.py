"""The reader: everything that was written comes back, and nothing that is doubtful is opened."""

from __future__ import annotations

import collections
import gc
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.header import read_pass_header
from specalign.dump.passes import PassInfo, spec_of
from specalign.dump.reader import SpecalignDump, open_specalign
from specalign.dump.validate import validate
from specalign.dump.writer import DumpWriter
from tests.unit.dump.damaged import names_in, refusal
from tests.unit.dump.made import bits, boundaries, decode, manifest, no_rows, prefill, rows_of, small_dump, tensor, write_dump


def test_rows_and_tensors_come_back(tmp_path: Path) -> None:
    rows = rows_of([("a", 0, 11, 0), ("b", 7, 12, 1), (None, 0, 0, 2), ("h", 0, 1, 3)])
    made = [
        *boundaries(4),
        tensor("logits", bits(4, 5, "F32"), dtype="F32"),
        tensor("module.layers.1.mlp", bits(4, 6, "F8_E4M3"), dtype="F8_E4M3"),
    ]
    write_dump(tmp_path, [(rows, made)], stage=(0, 4))
    dump = open_specalign(tmp_path)
    (info,) = dump.infos()
    assert dump.manifest == manifest()
    assert (info.rank, info.number, info.rows, info.stage) == (0, 0, 4, (0, 4))
    assert info.where == str(tmp_path / "rank00000" / "pass00000.safetensors")
    read = dump.rows(info)
    for name in ("tokens", "positions", "requests", "kinds"):
        assert np.array_equal(getattr(read, name), getattr(rows, name))
        assert getattr(read, name).dtype == getattr(rows, name).dtype
    assert read.request_ids == ("a", "b", "h")
    loaded = dump.load(info)
    assert loaded.keys() == info.tensors.keys() == {one.spec.key for one in made}
    for one in made:
        assert loaded[one.spec.key].spec == one.spec == spec_of(info, one.spec.key)
        assert np.array_equal(loaded[one.spec.key].data, one.data)
        assert loaded[one.spec.key].data.dtype == one.data.dtype


def test_only_the_keys_that_are_wanted_and_there_are_loaded(tmp_path: Path) -> None:
    dump = open_specalign(small_dump(tmp_path))
    info = dump.infos()[0]
    assert dump.load(info, ["boundary.2", "boundary.9"]).keys() == {"boundary.2"}
    assert dump.load(info, []) == {}


def test_what_is_loaded_cannot_be_written_to(tmp_path: Path) -> None:
    dump = open_specalign(small_dump(tmp_path))
    data = dump.load(dump.infos()[0])["boundary.0"].data
    with pytest.raises(ValueError, match="read-only"):
        data[0, 0] = 1


def test_a_pass_without_rows_is_a_pass(tmp_path: Path) -> None:
    write_dump(tmp_path, [(no_rows(), boundaries(0)), (no_rows(), [])])
    dump = open_specalign(tmp_path)
    first, second = dump.infos()
    assert (first.rows, second.rows) == (0, 0)
    assert len(dump.rows(first)) == 0
    assert dump.load(first)["boundary.1"].data.shape == (0, 8)
    assert dump.load(second) == {}


def test_passes_come_by_rank_then_number_beyond_five_digits(tmp_path: Path) -> None:
    """Names of six digits sort before those of five as texts."""
    from specalign.dump.folders import pass_name, pass_number, rank_number

    assert pass_number(pass_name(123456)) == 123456
    assert [
        pass_number(name) for name in ("pass0.safetensors", "pass000001.safetensors", "pass00001.tmp", "Pass00001.safetensors")
    ] == [None] * 4
    assert [rank_number(name) for name in ("rank0", "rank000001", "rank00001")] == [None, None, 1]
    for rank in (2, 0, 1):
        write_dump(tmp_path, [(prefill({"a": [1]}), [])] * 12, rank=rank, manifest=manifest(world=3))
    assert [(i.rank, i.number) for i in open_specalign(tmp_path).infos()] == [(r, n) for r in range(3) for n in range(12)]


def test_both_forms_of_a_key(tmp_path: Path) -> None:
    data = bits(2)
    made = [
        tensor("boundary.1", data),
        tensor("boundary.1", data, fingerprint=True),
        tensor("boundary.2", data, fingerprint=True),
    ]
    write_dump(tmp_path, [(prefill({"a": [1, 2]}), made)])
    dump = open_specalign(tmp_path)
    (info,) = dump.infos()
    assert [spec.fingerprint for spec in info.tensors.values()] == [False, True]
    loaded, prints = dump.load(info), dump.fingerprints(info)
    assert np.array_equal(loaded["boundary.1"].data, data)
    assert np.array_equal(loaded["boundary.2"].data, fingerprint_rows(data))
    assert loaded["boundary.2"].spec.shape == (2, 8)
    assert prints.keys() == {"boundary.1", "boundary.2"}
    assert all(np.array_equal(one.data, fingerprint_rows(data)) and one.spec.fingerprint for one in prints.values())
    assert dump.fingerprints(info, ["boundary.1"]).keys() == {"boundary.1"}


def test_passes_of_the_same_layout_share_it_and_cost_little(tmp_path: Path) -> None:
    write_dump(tmp_path, [(decode({"a": (n, n)}), boundaries(1, seed=n)) for n in range(400)], coords=[("tp", 0)], stage=(0, 4))
    open_specalign(tmp_path).infos()  # whatever is made once
    gc.collect()
    tracemalloc.start()
    dump = open_specalign(tmp_path)
    infos = dump.infos()
    dump._recent = collections.OrderedDict()  # at most RECENT_HEADERS of them, however many passes there are
    gc.collect()
    each = tracemalloc.get_traced_memory()[0] / len(infos)
    tracemalloc.stop()
    assert len({id(info.tensors) for info in infos}) == len({id(info.coords) for info in infos}) == 1
    assert each < 512  # the paths of the files are in it
    assert dump.infos() is infos


def test_an_opened_dump_goes_to_another_process(tmp_path: Path) -> None:
    dump = open_specalign(small_dump(tmp_path))
    infos = dump.infos()
    other, sent = pickle.loads(pickle.dumps((dump, infos)))
    assert sent == infos
    assert np.array_equal(other.load(sent[0])["boundary.0"].data, dump.load(infos[0])["boundary.0"].data)


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(names_in(Path("/proc/self/fd")))
    dump = open_specalign(small_dump(tmp_path))
    for info in dump.infos():
        dump.rows(info)
        dump.load(info)
    assert len(names_in(Path("/proc/self/fd"))) == before


def test_a_dump_without_an_end_mark_opens_since_every_pass_is_whole(tmp_path: Path) -> None:
    (small_dump(tmp_path) / "rank00000" / "end.json").unlink()
    assert len(open_specalign(tmp_path).infos()) == 3


def two_ranks(folder: Path) -> Path:
    for rank in range(2):
        small_dump(folder, manifest=manifest(world=2), rank=rank)
    return folder


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no pass 1": (lambda d: (d / "rank00001" / "pass00001.safetensors").unlink(), "pass 1 is missing"),
    "no pass 0": (lambda d: (d / "rank00000" / "pass00000.safetensors").unlink(), "pass 0 is missing"),
    "the last pass is gone": (lambda d: (d / "rank00001" / "pass00002.safetensors").unlink(), "2 passes are there and 3"),
    "a rank is gone": (lambda d: shutil.rmtree(d / "rank00000"), "rank 0 of 2 wrote nothing"),
    "all ranks are gone": (lambda d: [shutil.rmtree(d / f"rank0000{r}") for r in range(2)], "no rank wrote anything"),
    "a rank too many": (lambda d: shutil.copytree(d / "rank00001", d / "rank00002"), "rank 2"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_missing_keeps_a_dump_closed_unless_asked_for_in_parts(tmp_path: Path, name: str) -> None:
    damage, why = DAMAGES[name]
    damage(two_ranks(tmp_path))
    refusal(lambda: open_specalign(tmp_path), tmp_path, why)
    assert isinstance(open_specalign(tmp_path, partial=True), SpecalignDump)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a second pass 1 under another name": (
        lambda d: shutil.copy(d / "rank00000" / "pass00001.safetensors", d / "rank00000" / "pass000001.safetensors"),
        "pass000001",
    ),
    "a pass of another program": (
        lambda d: shutil.copy(d / "rank00000" / "pass00001.safetensors", d / "rank00000" / "extra.safetensors"),
        "extra",
    ),
    "a second rank 1 under another name": (lambda d: shutil.copytree(d / "rank00001", d / "rank1"), "rank1"),
    "a rank that is a file": (lambda d: [shutil.rmtree(d / "rank00001"), (d / "rank00001").write_text("")], "rank00001"),
    "an end mark of another rank": (
        lambda d: shutil.copy(d / "rank00000" / "end.json", d / "rank00001" / "end.json"),
        "rank00001/end.json",
    ),
    "an end mark that is none": (lambda d: (d / "rank00001" / "end.json").write_text("{}"), "rank00001/end.json"),
    "an end mark of a text": (
        lambda d: (d / "rank00001" / "end.json").write_text(
            '{"schema": "specalign.dump/1", "rank": 1, "passes": "3", "rows": 1}'
        ),
        "rank00001/end.json",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_would_stay_unread_or_contradicts_keeps_a_dump_closed(tmp_path: Path, name: str) -> None:
    damage, why = ODD[name]
    damage(two_ranks(tmp_path))
    refusal(lambda: open_specalign(tmp_path), tmp_path, why)


MISPLACED: dict[str, Callable[[Path], object]] = {
    "another pass": lambda d: shutil.copy(d / "rank00001/pass00000.safetensors", d / "rank00001/pass00001.safetensors"),
    "another rank": lambda d: shutil.copy(d / "rank00000/pass00001.safetensors", d / "rank00001/pass00001.safetensors"),
    "a duplicate behind the last": lambda d: [
        shutil.copy(d / "rank00001/pass00002.safetensors", d / "rank00001/pass00003.safetensors"),
        (d / "rank00001/end.json").unlink(),
    ],
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_pass_that_stands_where_another_belongs_is_refused(tmp_path: Path, name: str) -> None:
    MISPLACED[name](two_ranks(tmp_path))
    refusal(lambda: open_specalign(tmp_path).infos(), tmp_path / "rank00001", "its header says")


def test_a_place_outside_of_the_layout_is_refused(tmp_path: Path) -> None:
    small_dump(tmp_path, manifest=manifest(layout={"tp": 2}), coords=[("tp", 1)])
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"tp": 2', '"tp": 1'))
    refusal(lambda: open_specalign(tmp_path).infos(), "pass00000", "tp 1")


CHANGES: dict[str, Callable[[Path, PassInfo], object]] = {
    "gone": lambda path, info: path.unlink(),
    "cut off": lambda path, info: path.write_bytes(path.read_bytes()[:-1]),
    "replaced by one of other rows": lambda path, info: _rewrite(path, 7),
}


def _rewrite(path: Path, rows: int) -> None:
    path.unlink()
    (path.parent / "end.json").unlink()
    with DumpWriter(path.parents[1], manifest(), resume=True) as writer:
        writer.write_pass(prefill({"a": range(rows)}), boundaries(rows))


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changed_since_the_dump_was_opened_is_refused(tmp_path: Path, name: str) -> None:
    dump = open_specalign(small_dump(tmp_path, steps=0))
    (info,) = dump.infos()
    path = tmp_path / "rank00000" / "pass00000.safetensors"
    CHANGES[name](path, info)
    refusal(lambda: dump.load(info), path)
    refusal(lambda: dump.rows(info), path)


def test_damaged_data_is_noticed_where_that_is_asked_for(tmp_path: Path) -> None:
    dump = open_specalign(small_dump(tmp_path))
    info = dump.infos()[1]
    path = Path(info.where)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1  # within the last tensor of two-byte elements
    path.write_bytes(data)
    dump.load(info)
    refusal(lambda: dump.load(info, check=True), path, "boundary.2", "checksum")
    dump.load(info, ["boundary.0"], check=True)


@pytest.mark.parametrize("name", ["tokens", "positions", "requests", "row_kind"])
def test_damaged_rows_are_noticed_always(tmp_path: Path, name: str) -> None:
    """Whatever is concluded hangs on which row is what."""
    dump = open_specalign(small_dump(tmp_path))
    info = dump.infos()[1]
    path = Path(info.where)
    data = bytearray(path.read_bytes())
    data[read_pass_header(path).span(name)[0]] ^= 1
    path.write_bytes(data)
    refusal(lambda: dump.rows(info), path, name, "checksum")


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "another schema"])
def test_what_is_no_dump_is_one_clear_line(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "d"
    match what:
        case "a file":
            folder.write_text("")
        case "an empty folder":
            folder.mkdir()
        case "another schema":
            small_dump(folder)
            text = (folder / "manifest.json").read_text()
            (folder / "manifest.json").write_text(text.replace("dump/1", "dump/2"))
    refusal(lambda: open_specalign(folder), folder)


def test_a_name_or_a_world_of_any_size_costs_nothing(tmp_path: Path) -> None:
    small_dump(tmp_path)
    (tmp_path / "rank00000" / f"pass{10**15}.safetensors").write_text("")
    refusal(lambda: open_specalign(tmp_path), "pass 3 is missing")
    assert [p.code for p in validate(tmp_path).problems][:1] == ["pass-missing"]
    (tmp_path / "rank00000" / f"pass{10**15}.safetensors").unlink()
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"world": 1', f'"world": {10**15}'))
    refusal(lambda: open_specalign(tmp_path), f"rank 1 of {10**15}")
    assert [p.code for p in validate(tmp_path).problems] == ["rank-missing"]

"""Safetensors files of ours are read by the reference library, and its files by ours, bit for bit."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open

from specalign.dump import files
from specalign.dump.dtypes import DTYPES
from specalign.dump.files import TEMPORARY, Source, blocks, checksum_of, map_file, sync_folder, view, write_json, write_tensors
from specalign.layer_ids.tensor_files import read_header
from tests.unit.dump.damaged import names_in, refusal, split
from tests.unit.dump.made import bits

torch = pytest.importorskip("torch")


def ours(path: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a file by our reader."""
    mapped = map_file(path)
    return {info.name: view(mapped, info.dtype, info.shape, info.span or (0, 0)) for info in read_header(path)[1]}


def theirs(path: Path) -> dict[str, Any]:
    """All tensors of a file by the reference library."""
    with safe_open(path, "pt") as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # no mapping


def raw_of(tensor: Any) -> NDArray[Any]:
    """The bits of a torch tensor, by torch alone."""
    size = tensor.element_size()
    plain = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return tensor.contiguous().view(plain).numpy().view(f"<u{size}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_we_write_is_what_the_reference_library_reads(tmp_path: Path, dtype: str) -> None:
    data = bits(5, 7, dtype)
    write_tensors(tmp_path / "a", [Source("x", dtype, data)])
    read = theirs(tmp_path / "a")["x"]
    assert str(read.dtype) == f"torch.{DTYPES[dtype].torch}"
    assert np.array_equal(raw_of(read), data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_reference_library_writes_is_what_we_read(tmp_path: Path, dtype: str) -> None:
    from safetensors.torch import save_file

    data = bits(5, 7, dtype)
    signed = {1: "u1", 2: "<i2", 4: "<i4", 8: "<i8"}[DTYPES[dtype].size]
    save_file({"x": torch.from_numpy(data.view(signed).copy()).view(getattr(torch, DTYPES[dtype].torch))}, tmp_path / "a")
    (read,) = ours(tmp_path / "a").values()
    assert read.dtype == DTYPES[dtype].raw
    assert np.array_equal(read, data)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors = st.dictionaries(st.text(min_size=1, max_size=5), st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=6)


@given(tensors, st.data())
def test_any_tensors_come_back_from_both_readers(
    tmp_path_factory: pytest.TempPathFactory, made: Any, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    sources = []
    for name, (dtype, shape) in made.items():
        if name == "__metadata__":
            continue
        flat = bits(1, math.prod(shape), dtype, seed=len(sources))[0]
        array = flat.reshape(shape)
        order = data.draw(st.permutations(range(len(shape))))
        sources.append(Source(name, dtype, array.transpose(order)))
    write_tensors(path, sources)
    mine, other = ours(path), theirs(path)
    assert mine.keys() == other.keys() == {source.name for source in sources}
    for source in sources:
        assert np.array_equal(mine[source.name], source.data)
        assert np.array_equal(raw_of(other[source.name]).reshape(source.data.shape), source.data)


def test_equal_arguments_in_any_order_give_equal_bytes_and_every_tensor_is_aligned(tmp_path: Path) -> None:
    sources = [Source(f"{dtype}.{part}", dtype, bits(3, 5, dtype)) for dtype in DTYPES for part in "ab"]
    write_tensors(tmp_path / "a", sources, lambda checksums: {"sums": "".join(checksums)})
    write_tensors(tmp_path / "b", sources[::-1], lambda checksums: {"sums": "".join(checksums)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    metadata, infos = read_header(tmp_path / "a")
    assert all(info.span is not None and info.span[0] % DTYPES[info.dtype].size == 0 for info in infos)
    assert infos[0].span is not None
    assert infos[0].span[0] % 8 == 0
    mine = ours(tmp_path / "a")
    assert metadata["sums"] == "".join(checksum_of(mine[info.name]) for info in infos)


def odd_layouts() -> list[NDArray[Any]]:
    base = bits(12, 10, "F32")
    return [
        base.T,
        base[::2],
        base[::-1],
        base[:, ::3],
        base.reshape(3, 4, 10).transpose(2, 0, 1),
        np.broadcast_to(base[0], (6, 10)),
        base[:0],
        base[:, :0],
        base[0],
        base[0, 0].reshape(()),
    ]


@pytest.mark.parametrize("block", [4, 12, 64, 10_000])
@pytest.mark.parametrize("at", range(10))
def test_bytes_come_in_order_whatever_the_strides_and_the_block(monkeypatch: pytest.MonkeyPatch, block: int, at: int) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    data = odd_layouts()[at]
    assert b"".join(blocks(data)) == data.tobytes("C")


def test_writes_go_on_where_the_system_takes_less_than_it_is_given() -> None:
    class Narrow:
        def __init__(self) -> None:
            self.got = b""

        def write(self, data: memoryview) -> int:
            self.got += bytes(data[:7])
            return min(7, len(data))

    narrow = Narrow()
    files._write_all(narrow, bytes(range(100)))  # type: ignore[arg-type]
    assert narrow.got == bytes(range(100))


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    refusal(lambda: write_tensors(path, [Source("x", "U8", bits(1, 1, "U8"))]), path, "already")
    refusal(lambda: write_json(path, {}), path, "already")
    assert path.read_bytes() == b"before"
    assert names_in(tmp_path) == ["a"]


def test_a_broken_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    refusal(lambda: write_json(tmp_path / "a", {}), "already")
    assert names_in(tmp_path) == ["a"]


def test_a_file_gets_its_name_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of what the system is asked for, since a test cannot cut the power."""
    asked: list[str] = []
    fsync, link = os.fsync, os.link

    def log_fsync(descriptor: int) -> None:
        asked.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def log_link(old: Path, new: Path) -> None:
        asked.append(f"link {old.name} {new.name}")
        link(old, new)

    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "link", log_link)
    write_json(tmp_path / "a", {})
    temporary = asked[0].removeprefix("fsync ")
    assert TEMPORARY.fullmatch(temporary)
    assert asked == [f"fsync {temporary}", f"link {temporary} a", f"fsync {tmp_path.name}"]


def test_without_hard_links_a_file_is_renamed_and_still_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    write_json(tmp_path / "a", {"n": 1})
    refusal(lambda: write_json(tmp_path / "a", {"n": 2}), "already")
    assert json.loads((tmp_path / "a").read_text()) == {"n": 1}
    assert names_in(tmp_path) == ["a"]


def test_nothing_is_left_when_the_metadata_are_wrong(tmp_path: Path) -> None:
    lengths = itertools.count(1)
    source = [Source("x", "U8", bits(1, 1, "U8"))]
    refusal(lambda: write_tensors(tmp_path / "a", source, lambda _: {"k": "v" * 8 * next(lengths)}), "length")
    refusal(lambda: write_tensors(tmp_path / "a", source, lambda _: {"k": "v" * 2**25}), "header", 2**25)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("place", ["gone/a", "file/a", "nul\0"])
def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    refusal(lambda: write_json(tmp_path / place, {}))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    refusal(lambda: map_file(tmp_path / "a"), tmp_path / "a", "is empty")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = names_in(Path("/proc/self/fd"))
    write_tensors(tmp_path / "a", [Source("x", "U8", bits(3, 5, "U8"))])
    sync_folder(tmp_path)
    kept = ours(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert np.array_equal(kept["x"], bits(3, 5, "U8"))
    kept.clear()
    assert len(names_in(Path("/proc/self/fd"))) == len(before)


@pytest.mark.parametrize(("dtype", "shape"), [("U8", (2**31 + 8,)), ("BF16", (2**11, 2**20)), ("F32", (2**31, 1))])
def test_a_tensor_of_two_to_the_31_elements_is_read_to_its_last(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    size = math.prod(shape) * DTYPES[dtype].size
    header = {"x": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    with (tmp_path / "a").open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        handle.truncate(8 + len(text) + size)
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\x3f")
    read = ours(tmp_path / "a")["x"]
    assert read.shape == shape
    assert int(read[(-1,) * len(shape)]) == 0x3F << 8 * (DTYPES[dtype].size - 1)
    assert int(read[(0,) * len(shape)]) == 0


def test_the_header_says_what_is_there(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", [Source("x", "BF16", bits(2, 3))])
    header, data = split((tmp_path / "a").read_bytes())
    assert header == {"x": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
    assert data == bits(2, 3).tobytes()

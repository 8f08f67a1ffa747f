"""Files that are bad in every way we could think of: one clear line each."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.dump.errors import DumpError
from specalign.dump.files import Source, checksum_of, write_tensors
from specalign.dump.header import build_document, read_pass_header, seal
from specalign.dump.passes import TensorSpec
from specalign.dump.reader import open_specalign
from specalign.dump.validate import validate
from tests.unit.dump.damaged import refusal
from tests.unit.dump.made import bits, boundaries, no_rows, prefill, small_dump, tensor, write_dump

Written = tuple[Path, bytes, int]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A dump of one pass, the bytes of the pass, and where its data begin."""
    folder = tmp_path_factory.mktemp("written")
    made = [*boundaries(2, [0, 1], site="pre-block"), tensor("post_norm", bits(2), fingerprint=True)]
    write_dump(folder, [(prefill({"a": [1], "b": [2]}), made)], stage=(0, 4))
    data = (folder / "rank00000" / "pass00000.safetensors").read_bytes()
    return folder, data, 8 + int.from_bytes(data[:8], "little")


def read_all(folder: Path) -> object:
    """Everything a reader of the dump would look at."""
    dump = open_specalign(folder)
    return [(info, dump.rows(info), dump.load(info, check=True), dump.fingerprints(info)) for info in dump.infos()]


def overwrite(path: Path, data: bytes) -> None:
    """In place: to cut a file to nothing first makes some file systems wait for the disk, 7,000 times here."""
    with path.open("r+b") as handle:
        handle.write(data)
        handle.truncate()


def is_noticed(folder: Path, data: bytes) -> None:
    """Reading and validating both say what is wrong with a pass of these bytes, in one line that names the file."""
    path = folder / "rank00000" / "pass00000.safetensors"
    overwrite(path, data)
    refusal(lambda: read_all(folder), path)
    report = validate(folder)
    assert not report.ok
    assert str(path) in report.format()


def test_a_pass_cut_off_at_any_byte_is_noticed(written: Written) -> None:
    folder, data, start = written
    for length in (*range(start + 3), *range(start + 3, len(data), 7), len(data) - 1):
        is_noticed(folder, data[:length])
    (folder / "rank00000" / "pass00000.safetensors").write_bytes(data)
    read_all(folder)


def test_any_flipped_bit_is_noticed(written: Written) -> None:
    """Every bit of the header, and a bit of each byte of the data: those by their checksums."""
    folder, data, start = written
    path = folder / "rank00000" / "pass00000.safetensors"
    for at in range(len(data)):
        for bit in range(8) if at < start else (at % 8,):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            if at >= start or (at + bit) % 8 == 0:
                is_noticed(folder, bytes(changed))
            else:
                overwrite(path, bytes(changed))
                refusal(lambda: read_pass_header(path), path)


@given(st.data())
def test_any_damage_is_noticed(written: Written, draw: st.DataObject) -> None:
    folder, data, _ = written
    begin = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(begin, min(len(data), begin + 40)))
    damaged = data[:begin] + draw.draw(st.binary(max_size=40)) + data[end:]
    if damaged != data:
        is_noticed(folder, damaged)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_behind_a_good_check_give_one_clear_line(written: Written, text: bytes, as_header: bool) -> None:
    """A hostile file can seal whatever it likes."""
    folder, data, start = written
    header = seal(data[:start])
    body = header[8:60] + text if as_header else header[8:start] + text
    path = folder / "rank00000" / "pass00000.safetensors"
    sealed = seal(len(body).to_bytes(8, "little") + body) if len(body) > 60 else data[:9]
    path.write_bytes(sealed + data[start:])
    is_read_or_refused(folder)


@pytest.mark.parametrize("text", [b"never ends" * 3, b"a line\nbreak" * 3, b"\\x" * 20, b'"' + b"[" * 60, b'"' + b" " * 60])
def test_a_document_that_is_no_json_text_is_one_clear_line(written: Written, text: bytes) -> None:
    folder, data, start = written
    body = data[8:60] + text
    path = folder / "rank00000" / "pass00000.safetensors"
    path.write_bytes(seal(len(body).to_bytes(8, "little") + body) + data[start:])
    refusal(lambda: read_pass_header(path), path, "JSON")
    path.write_bytes(data)


def test_plain_safetensors_are_told_from_damaged_ones(tmp_path: Path) -> None:
    path = small_dump(tmp_path) / "rank00000" / "pass00000.safetensors"
    path.write_bytes(_plain(tmp_path, {"format": "pt"}))
    refusal(lambda: read_pass_header(path), path, "no pass of a dump", "'format'", "plain safetensors")


def is_read_or_refused(folder: Path) -> None:
    message = ""
    try:
        read_all(folder)
    except DumpError as error:
        message = str(error)
    assert message == "" or (message.isprintable() and str(folder) in message)


class Attack:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("touch attacked",)


FOREIGN: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda d: pickle.dumps(Attack()),
    "a pickle behind a length": lambda d: (200).to_bytes(8, "little") + pickle.dumps(Attack()) + bytes(300),
    "a picture": lambda d: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "an archive": lambda d: b"PK\x03\x04" + bytes(100),
    "a pointer of Git LFS": lambda d: b"version https://git-lfs.github.com/spec/v1\n" + bytes(50),
    "a header of a terabyte": lambda d: (10**12).to_bytes(8, "little") + b"{}" + bytes(100),
    "a header of no object": lambda d: (4).to_bytes(8, "little") + b"[1] ",
    "plain safetensors": lambda d: _plain(d, {}),
    "safetensors of torch": lambda d: _plain(d, {"format": "pt"}),
    "safetensors with another document": lambda d: _plain(d, {"specalign": "{}"}),
    "a deep document": lambda d: _plain(d, {"specalign": '{"check":"00000000","x":' + "[" * 50_000 + "]" * 50_000 + "}"}),
    "a document of huge numbers": lambda d: _plain(d, {"specalign": '{"check":"00000000","x":' + "9" * 5000 + "}"}),
    "a document cut off": lambda d: _plain(d, {"specalign": '{"check":"00000000"'}),
    "a document of half a surrogate": lambda d: _plain(d, {"specalign": '{"check":"00000000","schema":"\\ud800"}'}),
    "a document with a key twice": lambda d: _plain(d, {"specalign": '{"check":"00000000","rank":0,"rank":1}'}),
}


def _plain(folder: Path, metadata: dict[str, str]) -> bytes:
    write_tensors(
        folder / "x",
        [Source("tokens", "I64", bits(2, 1, "I64")[:, 0])],
        lambda _: metadata,
        seal if metadata.get("specalign", "")[:3] == '{"c' else bytes,
    )
    data = (folder / "x").read_bytes()
    (folder / "x").unlink()
    return data


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_or_hostile_file_is_noticed_and_nothing_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    small_dump(tmp_path, steps=0)
    is_noticed(tmp_path, FOREIGN[name](tmp_path))
    assert not (tmp_path / "attacked").exists()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "make", [pipe, device, lambda path: path.mkdir(), lambda path: path.symlink_to(path), lambda path: path.symlink_to("gone")]
)
def test_what_is_no_file_is_refused_and_nobody_waits(tmp_path: Path, make: Callable[[Path], None]) -> None:
    for name in ("rank00000/pass00000.safetensors", "rank00000/end.json", "manifest.json"):
        folder = small_dump(tmp_path / name.replace("/", "."), steps=0)
        (folder / name).unlink()
        make(folder / name)
        refusal(lambda folder=folder: read_all(folder), folder)  # type: ignore[misc]
        assert not validate(folder).ok


def test_a_dump_of_passes_without_rows(tmp_path: Path) -> None:
    write_dump(tmp_path, [(no_rows(), boundaries(0)), (no_rows(), [tensor("boundary.0", bits(0), fingerprint=True)])])
    read_all(tmp_path)
    assert validate(tmp_path).ok
    assert validate(tmp_path).rows == 0


def test_a_pass_with_a_tensor_of_two_to_the_31_elements(tmp_path: Path) -> None:
    """A sparse file: 2 GiB of which a few blocks are on the disk. Values at both ends come out, and no copy is made."""
    small_dump(tmp_path, steps=0, numbers=[])
    path = tmp_path / "rank00000" / "pass00000.safetensors"
    rows = prefill({"a": [7, 8]})
    columns = {
        "positions": rows.positions,
        "tokens": rows.tokens,
        "requests": rows.requests,
        "boundary.1": None,
        "row_kind": rows.kinds,
    }
    spec = TensorSpec("boundary.1", "U8", (2, 2**30))
    entries: dict[str, object] = {}
    begin = 0
    for name, column in columns.items():
        size = 2**31 if column is None else column.nbytes
        kind, shape = ("U8", [2, 2**30]) if column is None else ({8: "I64", 4: "I32", 1: "U8"}[column.itemsize], [2])
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    sums = ["0" * 8 if column is None else checksum_of(column) for column in columns.values()]
    document = build_document(rank=0, number=0, coords=[], stage=None, requests=["a"], specs=[spec], checksums=sums)
    text = json.dumps({"__metadata__": document, **entries}, separators=(",", ":")).encode()
    header = seal(len(text).to_bytes(8, "little") + text)
    with path.open("wb") as handle:
        handle.write(header + b"".join(c.tobytes() for c in (rows.positions, rows.tokens, rows.requests)))
        at = handle.tell()
        handle.truncate(len(header) + begin)
        for place, value in ((at, 1), (at + 2**30, 2), (at + 2**31 - 1, 3)):
            handle.seek(place)
            handle.write(bytes([value]))
        handle.write(rows.kinds.tobytes())
    dump = open_specalign(tmp_path)
    (info,) = dump.infos()
    loaded = dump.load(info)["boundary.1"].data
    assert (loaded[0, 0], loaded[1, 0], loaded[1, -1], loaded[1, -2]) == (1, 2, 3, 0)
    assert dump.rows(info).tokens.tolist() == [7, 8]


def test_the_header_is_read_no_further_than_it_is_long(tmp_path: Path) -> None:
    """A header longer than what is read at once."""
    rows = prefill({f"request {n}": [n] for n in range(5000)})
    write_dump(tmp_path, [(rows, [])])
    header = read_pass_header(tmp_path / "rank00000" / "pass00000.safetensors")
    assert header.start > 2**16
    assert header.requests == rows.request_ids
    dump = open_specalign(tmp_path)
    assert np.array_equal(dump.rows(dump.infos()[0]).requests, rows.requests)

"""torch's zip format read by numpy alone: what `torch.load` gives, or nothing at all."""

from __future__ import annotations

import collections
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.readers.entries import FileTensor
from specalign.dump.readers.torch_files import load_torch_file
from specalign.dump.readers.torch_pickle import Name, RefusedPickleError, UnknownPickleError, read_pickle
from specalign.dump.readers.torch_zip import Place, TorchZip, UnknownArchiveError
from tests.unit.dump.readers.foreign import DATA, bits, save

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def same(found: Any, loaded: Any) -> bool:
    """Whether our value says what torch's does."""
    if isinstance(loaded, torch.Tensor):
        name = str(loaded.dtype).removeprefix("torch.")
        return isinstance(found, FileTensor) and DTYPES[found.dtype].torch == name and np.array_equal(found.data, bits(loaded))
    if isinstance(loaded, dict):
        return list(found) == list(loaded) and all(same(found[name], loaded[name]) for name in loaded)
    if isinstance(loaded, (list, tuple)):
        return len(found) == len(loaded) and all(map(same, found, loaded))
    if isinstance(loaded, torch.dtype):
        return bool(found == str(loaded))
    return type(found) is type(loaded) and bool(found == loaded)


def known(path: Path) -> bool:
    """Whether the file is read without torch."""
    try:
        archive = TorchZip(path)
        _ = [archive.tensor(place) for place in places(archive.value)]
    except UnknownArchiveError:
        return False
    return True


def places(value: Any) -> list[Place]:
    """All tensors of a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [value] if isinstance(value, Place) else [place for item in inner for place in places(item)]


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.pt")), ids=lambda path: str(path.relative_to(DATA)))
def test_the_engines_own_files_are_what_torch_loads(path: Path) -> None:
    assert known(path)
    assert same(load_torch_file(path), torch.load(path, weights_only=True, map_location="cpu"))


@given(value=PLAIN)
@settings(max_examples=200)
def test_plain_values_are_what_torch_loads(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.pt"
    torch.save(value, path)
    assert known(path)
    assert same(load_torch_file(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_type_and_layout_is_what_torch_loads(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(1).integers(0, 2 if name == "BOOL" else 256, (6, 4 * dtype.size), np.uint8)
    base = torch.from_numpy(raw).view(getattr(torch, dtype.torch))
    made = [base, base.T, base[1:4, 1:3], base[::2], base[2], base[3, 1], base[:0], base[:, None].transpose(0, 2)]
    torch.save({"all": made, "again": base[:3], "p": torch.nn.Parameter(base, requires_grad=False)}, tmp_path / "a.pt")
    assert known(tmp_path / "a.pt")
    assert same(load_torch_file(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt", weights_only=False))


def test_files_of_one_layout_keep_their_own_values(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.pt", {"x": torch.full((2, 3), number), "t": [number % 1]})
    found = [load_torch_file(tmp_path / f"{number}.pt") for number in range(3)]
    assert [int(item["x"].data[1, 2]) for item in found] == [0, 1, 2]
    found[0]["t"].append("changed by a reader")
    assert load_torch_file(tmp_path / "0.pt")["t"] == [0]


@pytest.mark.parametrize(
    "value",
    [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse(), torch.zeros(2, device="meta"), torch.zeros(1).expand(9)],
    ids=["complex", "sparse", "meta", "stride 0"],
)
def test_what_is_not_dense_is_left_to_torch(tmp_path: Path, value: torch.Tensor) -> None:
    torch.save(value, tmp_path / "a.pt")
    assert not known(tmp_path / "a.pt")


def test_a_flipped_byte_is_noticed_or_one_of_a_tensor(tmp_path: Path) -> None:
    saved = {"x": torch.arange(6, dtype=torch.int16), "y": ["a", 1.5, None]}
    whole = save(tmp_path / "a.pt", saved).read_bytes()
    begin = whole.index(bits(saved["x"]).tobytes())
    path, taken = tmp_path / "b.pt", 0
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x41
        path.write_bytes(flipped)
        if known(path):
            taken += 1
            assert same(load_torch_file(path), saved) == (not begin <= at < begin + 12), f"byte {at}"
    assert 12 < taken < len(whole)


def repacked(path: Path, change: Callable[[str, bytes], tuple[str, bytes] | None], method: int = zipfile.ZIP_STORED) -> Path:
    """The archive with changed records and right checksums."""
    with zipfile.ZipFile(path) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in filter(None, (change(*record) for record in records)):
            archive.writestr(name, data)
    return path


CHANGES: dict[str, Callable[[str, bytes], tuple[str, bytes] | None]] = {
    "another byte order": lambda name, data: (name, b"big" if name.endswith("byteorder") else data),
    "no pickle": lambda name, data: None if name.endswith("data.pkl") else (name, data),
    "no storage": lambda name, data: None if name.endswith("data/0") else (name, data),
    "two folders": lambda name, data: (f"b/{name}" if name.endswith("version") else name, data),
    "TorchScript": lambda name, data: (name.replace(".format_version", "constants.pkl"), data),
    "bytes behind the pickle's end": lambda name, data: (name, data[:-1] + b"0." if name.endswith("data.pkl") else data),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_archive_is_left_to_torch(tmp_path: Path, name: str) -> None:
    path = repacked(save(tmp_path / "a.pt", {"x": torch.zeros(8, dtype=torch.uint8)}), lambda name, data: (name, data))
    assert known(path)
    assert not known(repacked(path, CHANGES[name]))


def test_a_compressed_archive_is_left_to_torch(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", {"x": torch.zeros(1000)})
    assert not known(repacked(path, lambda name, data: (name, data), zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("offset", "shape", "strides"), [(1, (8,), (1,)), (0, (9,), (1,)), (0, (2, 4), (5, 1)), (2**40, (1,), (1,))]
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path, offset: int, shape: Any, strides: Any) -> None:
    """A storage of 8 elements, and a pickle that asks for more of the file than that."""
    storage = ("storage", torch.FloatStorage, "0", "cpu", 8)

    class Persistent(pickle._Pickler):
        def persistent_id(self, obj: object) -> object:
            return obj if obj is storage else None

    class Rebuilt:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (storage, offset, shape, strides, False, collections.OrderedDict())

    path = save(tmp_path / "a.pt", torch.arange(8.0))
    with (tmp_path / "data.pkl").open("wb") as handle:
        Persistent(handle, 2).dump(Rebuilt())
    data = (tmp_path / "data.pkl").read_bytes()
    repacked(path, lambda name, old: (name, data if name.endswith("data.pkl") else old))
    assert not known(path)
    with pytest.raises(DumpError):
        load_torch_file(path)


def never(*arguments: object) -> object:
    """What must not be called."""
    raise AssertionError(arguments)


@pytest.mark.parametrize("call", [os.system, eval, getattr, pickle.loads], ids=lambda call: call.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_calls_anything(call: Any, protocol: int) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return call, ("1",)

    with pytest.raises(UnknownPickleError):
        read_pickle(pickle.dumps([Hostile()], protocol), {}, never)


@given(data=st.binary(max_size=60))
@settings(max_examples=500)
def test_any_bytes_are_a_value_or_one_error(data: bytes) -> None:
    try:
        read_pickle(data, {"collections OrderedDict": dict}, lambda made: made)
    except (UnknownPickleError, RefusedPickleError):
        return
    assert b"." in data


def test_a_name_is_not_looked_up() -> None:
    assert read_pickle(b"cno_such_module\nno_such_name\n.", {}, never) == Name("no_such_module no_such_name")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"N",
        b".",
        b"NN.",
        b"(N.",
        b"h\x00.",
        b"\x80\x04N.",
        b"X\xff\xff\xff\xffabc.",
        b"r\xff\xff\xff\x7f.",
        b"]N" + b"a" * 3 + b".",
        b"Na.",
        b"(NNNd.",
        b"}]Ns.",
        b"N\x86.",
        b"NNR.",
        b"]N\x85b.",
    ],
)
def test_damaged_programs_are_refused(data: bytes) -> None:
    with pytest.raises((UnknownPickleError, RefusedPickleError)):
        read_pickle(data, {}, never)


def test_a_large_number_of_a_memo_takes_no_memory() -> None:
    """CPython's own unpickler allocates as many places."""
    assert read_pickle(b"Nr\xff\xff\xff\x7f.", {}, never) is None


def test_an_archive_of_4_gb_is_left_to_torch(tmp_path: Path) -> None:
    """Its directory says so by the largest number (zip64)."""
    path = save(tmp_path / "a.pt", {"x": torch.zeros(2)})
    data = bytearray(path.read_bytes())
    assert data[-22:-18] == b"PK\5\6"
    data[-6:-2] = struct.pack("<L", 0xFFFFFFFF)
    path.write_bytes(data)
    assert not known(path)

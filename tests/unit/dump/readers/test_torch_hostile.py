"""Small `.pt` files that ask for more time, stack or memory than there is, or for bytes that are not theirs: one clear error each.

What a file of these would do elsewhere, torch's own unpickler included, is in its comment.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from specalign.dump.errors import DumpError
from specalign.dump.readers import torch_files
from specalign.dump.readers.torch_files import load_torch_file
from specalign.dump.readers.torch_zip import TorchZip, UnknownArchiveError


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: bytes = text("0"), count: int = 16) -> bytes:
    return b"(" + text("storage") + b"ctorch\nFloatStorage\n" + key + text("cpu") + number(count) + b"tQ"


def tensor(made: bytes, shape: bytes, strides: bytes, offset: int = 0) -> bytes:
    rest = b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + made + number(offset) + shape + strides + rest + b"tR"


def file(path: Path, pickle: bytes) -> Path:
    """As `torch.save` packs it, with one storage of 64 bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        records = {"data.pkl": b"\x80\x02" + pickle + b".", "byteorder": b"little", "data/0": b"\1" * 64, "version": b"3\n"}
        for name, data in records.items():
            info = zipfile.ZipInfo(f"a/{name}")
            space = 64 - (archive.fp.tell() + 30 + len(info.filename) + 4) % 64  # type: ignore[union-attr]
            info.extra = struct.pack("<HH", 0x4246, space) + b"Z" * space
            archive.writestr(info, data)
    return path


DOUBLED = b")" + b"q\x01h\x01\x86" * 60
"""A tuple of one tuple twice, 60 levels deep: its hash or its text takes 2**60 steps."""

DEEP = b")" + b"\x85" * 200_000
"""A tuple in a tuple in a tuple …: its hash takes more stack than there is, and the process ends by SIGSEGV."""

REFUSED = {
    "a name that is doubled and doubled": (b"}" + DOUBLED + b"Ns", "a table has a name of type tuple"),
    "a name that is deep": (b"}" + DEEP + b"Ns", "a table has a name of type tuple"),
    "names that are deep": (b"(" + DEEP + b"Nd", "a table has a name of type tuple"),
    "more names that are deep": (b"}(" + DEEP + b"Nu", "a table has a name of type tuple"),
    "a call of what is doubled and doubled": (DOUBLED + b")R", "calls an object of type tuple"),
    "a call of what is deep": (DEEP + b")R", "calls an object of type tuple"),
    "a storage whose key is doubled": (
        tensor(storage(key=DOUBLED), numbers(2), numbers(1)),
        "a storage has a key of type tuple, which is no text",
    ),
    "a size of a million, a thousand times": (
        b"(](" + b"K\x01" * 1_000_000 + b"eq\x01" + b"ctorch\nSize\nh\x01\x85R" * 1000 + b"t",
        "a torch.Size has 1000000 dimensions",
    ),
    "a product of 100,000 large numbers": (
        tensor(storage(), numbers(*[2**61] * 100_000), numbers(*[1] * 100_000)),
        "a tensor has 100000 dimensions",
    ),
    "more dimensions than numpy has": (tensor(storage(), numbers(*[1] * 70), numbers(*[1] * 70)), "a tensor has 70 dimensions"),
    "a long name, a thousand times": (b"c" + b"a" * 1_000_000 + b"\nb\nq\x01(" + b"h\x01" * 1000 + b"l", "more than 256 letters"),
    "more elements than the record has": (  # torch maps the file and takes what lies behind the record
        tensor(storage(count=17), numbers(17), numbers(1)),
        "the storage '0' has 64 bytes, and the pickle says 17 elements of 4",
    ),
    "fewer elements than the record has": (tensor(storage(count=15), numbers(15), numbers(1)), "says 15 elements of 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_nobody_else_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    pickle, said = REFUSED[case]
    monkeypatch.setattr(torch_files, "_load_with_torch", lambda *given: pytest.fail("torch was asked"))
    with pytest.raises(DumpError) as caught:
        load_torch_file(file(tmp_path / "a.pt", pickle))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((0, 2**61), (1, 1)), ((0, 2**61, 2**61), (1, 1, 1)), ((1,), (2**61,)), ((1, 1), (2**61, 2**61))],
    ids=str,
)
def test_what_numpy_cannot_count_is_left_to_torch(tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    path = file(tmp_path / "a.pt", tensor(storage(), numbers(*shape), numbers(*strides)))
    archive = TorchZip(path)
    with pytest.raises(UnknownArchiveError):
        archive.tensor(archive.value)  # type: ignore[arg-type]
    if 0 in shape:
        with pytest.raises(DumpError):
            load_torch_file(path)
    else:
        assert load_torch_file(path).data.tolist() == np.full(shape, 0x01010101).tolist()


def test_pairs_for_an_ordered_dict_are_not_hashed(tmp_path: Path) -> None:
    path = file(tmp_path / "a.pt", b"ccollections\nOrderedDict\n(]" + DEEP + b"N\x86atR")
    with pytest.raises(UnknownArchiveError):
        TorchZip(path)


def test_torch_does_not_take_what_lies_behind_a_record_either(tmp_path: Path) -> None:
    """The value beside it is torch's to read, and a file that torch maps is not looked at so closely."""
    device = b"ctorch\ndevice\n" + text("cpu") + b"\x85R"
    whole = file(tmp_path / "a.pt", b"(" + tensor(storage(), numbers(16), numbers(1)) + device + b"t")
    assert load_torch_file(whole)[0].data.tolist() == [0x01010101] * 16
    longer = file(tmp_path / "b.pt", b"(" + tensor(storage(count=17), numbers(17), numbers(1)) + device + b"t")
    assert len(torch.load(longer, weights_only=True, mmap=True)[0]) == 17, "mapped, torch takes it"
    with pytest.raises(DumpError):
        load_torch_file(longer)

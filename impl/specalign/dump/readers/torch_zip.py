"""torch's zip format by numpy alone: the tensors of a `.pt` file as views of the mapped file, with no torch and no unpickler.

What `torch.save` writes: an archive of uncompressed records, `<name>/data.pkl` and one `<name>/data/<key>` a storage (torch
`torch/serialization.py`, `_save`). Everything that is not exactly so is for `torch.load(weights_only=True)` to read or to
refuse: old formats, archives of 4 GB and more (zip64), files of big-endian machines, sparse or complex tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
import struct
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import BY_TORCH_NAME, DType
from specalign.dump.errors import DumpError
from specalign.dump.files import map_file
from specalign.dump.readers.entries import FileTensor
from specalign.dump.readers.torch_pickle import Calls, Name, RefusedPickleError, UnknownPickleError, read_pickle
from specalign.layer_ids.files import quoted, shown

_END: Final = struct.Struct("<4s4H2LH")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_FULL: Final = 0xFFFFFFFF
_ENCRYPTED: Final = 1
PICKLE: Final = "data.pkl"

CRC: Final = slice(16, 20)
NAME_LENGTH: Final = slice(28, 30)
"""Where a directory's entry states the checksum, and how long the name behind it is."""

ENTRY_BYTES: Final = _ENTRY.size
READ_OF_LOCAL: Final = (slice(0, 4), slice(26, 30))
"""What is read of a record's own header: the mark, and how long the name and the rest behind it are."""

_STORAGES: Final = {
    f"torch {name}Storage": BY_TORCH_NAME[dtype]
    for name, dtype in (
        ("BFloat16", "bfloat16"),
        ("Half", "float16"),
        ("Float", "float32"),
        ("Double", "float64"),
        ("Long", "int64"),
        ("Int", "int32"),
        ("Short", "int16"),
        ("Char", "int8"),
        ("Byte", "uint8"),
        ("Bool", "bool"),
    )
}
_UNTYPED: Final = Name("torch.storage UntypedStorage")
_SHORT: Final = 64 * 1024
_DIMENSIONS: Final = 64
"""Most that an array of numpy has."""


class Record(NamedTuple):
    """Where a record's bytes lie in the file, and their CRC-32; where its own header and its entry in the directory begin."""

    begin: int
    size: int
    crc: int
    header: int
    entry: int


class _Storage(NamedTuple):
    """A record by its key, of which element type it is (None where the tensor says), and how many elements it holds."""

    key: str
    dtype: DType | None
    held: int


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: a storage of so many elements, and in it the first element and what lies how far apart."""

    key: str
    dtype: DType
    held: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Span(NamedTuple):
    """A tensor's element type, numpy's type of its raw bits, its first byte in the file, its shape, and its strides in bytes."""

    dtype: str
    raw: np.dtype[Any]
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def tensor(self, mapped: mmap.mmap) -> FileTensor:
        """Its raw bits in a mapped file that is known to hold it."""
        found = self.view(mapped)
        if not found.flags.c_contiguous:
            found = np.ascontiguousarray(found).reshape(self.shape)
        return FileTensor(self.dtype, found)

    def view(self, mapped: mmap.mmap) -> NDArray[Any]:
        """Its raw bits as they lie in the file. Raises ValueError or OverflowError for sizes beyond what can be counted."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.raw)
        return np.ndarray(self.shape, self.raw, mapped, self.begin, self.strides)


class UnknownArchiveError(ValueError):
    """Not exactly what `torch.save` writes, or damaged."""


class TorchZip:
    """One file, mapped.

    Attributes:
        records: by name.
        value: of its pickle: `Place` for each tensor, `Name` for a torch.dtype and the like, plain values; dicts, lists and
            tuples of them. Files of one layout share it: it must not be changed.

    Raises:
        DumpError: the file cannot be opened, or holds what no reader of dumps takes.
        UnknownArchiveError: this reader does not know it.
    """

    def __init__(self, path: Path, mapped: mmap.mmap | None = None) -> None:
        self._where = shown(path)
        self._mapped = map_file(path) if mapped is None else mapped
        try:
            self.records = find_records(self._mapped)
            data = self._pickle()
            self.value = _short_plan(data) if len(data) <= _SHORT else _plan(data)
        except RefusedPickleError as error:
            raise DumpError(f"{self._where}: {error}; is this a dump?") from error
        except (UnknownPickleError, struct.error, UnicodeDecodeError) as error:
            raise UnknownArchiveError(str(error)) from error

    def tensor(self, place: Place) -> FileTensor:
        """Raw bits of a tensor; copied only if its elements do not lie in order.

        Raises:
            DumpError: the storage is not as large as the pickle says.
            UnknownArchiveError: it is not there, or the tensor cannot be made without torch.
        """
        return self.span(place).tensor(self._mapped)

    def span(self, place: Place) -> Span:
        """Where in the file a tensor lies, and that it can be made. Raises as `tensor`."""
        record, raw = self.records.get(f"data/{place.key}"), np.dtype(place.dtype.raw)
        if record is None or record.begin % raw.itemsize:
            raise UnknownArchiveError("a storage that is not there, or not aligned")
        if record.size != place.held * raw.itemsize:  # torch would map what lies behind it
            raise DumpError(
                f"{self._where}: the storage {quoted(place.key)} has {record.size} bytes, and the pickle says {place.held}"
                f" elements of {raw.itemsize}; the file was damaged, or changed after it was written"
            )
        steps = tuple(stride * raw.itemsize for stride in place.strides)
        span = Span(place.dtype.name, raw, record.begin + place.offset * raw.itemsize, place.shape, steps)
        try:
            span.view(self._mapped)
        except (ValueError, OverflowError) as error:  # of no elements, or with steps over none, but beyond what can be counted
            raise UnknownArchiveError(str(error)) from error
        return span

    def _pickle(self) -> bytes:
        order, record = self.records.get("byteorder"), self.records.get(PICKLE)
        if record is None or "constants.pkl" in self.records or (order and self._bytes(order) != b"little"):
            raise UnknownArchiveError("no archive of torch.save, or of another byte order")
        # All but the tensors, whose bytes are looked at when they are needed, and which torch does not check either.
        for name, other in self.records.items():
            if not name.startswith("data/") and zlib.crc32(self._bytes(other)) != other.crc:
                raise UnknownArchiveError(f"{name} has another checksum")
        return self._bytes(record)

    def _bytes(self, record: Record) -> bytes:
        return self._mapped[record.begin : record.begin + record.size]


def _plan(data: bytes) -> object:
    return read_pickle(data, _CALLS, _storage)


_short_plan = functools.lru_cache(maxsize=16)(_plan)
"""The files of a run's decode steps have one pickle between them."""


def _storage(made: Any) -> _Storage:
    """Of ("storage", type, key, location, elements), the persistent id of torch."""
    what, kind, key, _, count = made
    if type(key) is not str:  # torch looks it up in a table, for which a tuple of tuples may take for ever
        raise RefusedPickleError(f"a storage has a key of type {type(key).__name__}, which is no text")
    dtype = _STORAGES.get(kind.text) if isinstance(kind, Name) else None
    if what != "storage" or type(count) is not int or (dtype is None and kind != _UNTYPED):
        raise UnknownArchiveError("another persistent id")
    return _Storage(key, dtype, count)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: object) -> Place:
    """Of `_rebuild_tensor_v2`: requires_grad, hooks and metadata change no bits."""
    if not isinstance(storage, _Storage) or storage.dtype is None:
        raise UnknownArchiveError("a tensor without a typed storage")
    return _place(storage.key, storage.dtype, storage.held, offset, shape, strides)


def _typed_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: object, hooks: object, dtype: Any, *_: object
) -> Place:
    """Of `_rebuild_tensor_v3`, for element types that have no storage class: the storage counts bytes."""
    known = BY_TORCH_NAME.get(dtype.text.removeprefix("torch ")) if isinstance(dtype, Name) else None
    if not isinstance(storage, _Storage) or storage.dtype is not None or known is None or storage.held % known.size:
        raise UnknownArchiveError("a tensor without an untyped storage, or of an unknown type")
    return _place(storage.key, known, storage.held // known.size, offset, shape, strides)


def _place(key: str, dtype: DType, held: int, offset: Any, shape: Any, strides: Any) -> Place:
    if len(shape) > _DIMENSIONS:
        raise RefusedPickleError(f"a tensor has {len(shape)} dimensions, more than the {_DIMENSIONS} that can be read")
    if len(shape) != len(strides) or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *shape, *strides)):
        raise UnknownArchiveError("a shape that is none")
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    # More elements than there are: a stride of 0, which torch must judge.
    if math.prod(shape) > held or (all(shape) and last >= held):
        raise UnknownArchiveError("a tensor of more than its storage holds")
    return Place(key, dtype, held, offset, tuple(shape), tuple(strides))


def _size(lengths: Any) -> tuple[object, ...]:
    """Of `torch.Size`, a tuple. Each call makes another one, so that a small file could ask for more than there is memory."""
    if len(lengths) > _DIMENSIONS:
        raise RefusedPickleError(f"a torch.Size has {len(lengths)} dimensions, more than the {_DIMENSIONS} that can be read")
    return tuple(lengths)


def _ordered() -> dict[str | int, object]:
    """Of an `OrderedDict`: what is in it is filled in afterwards, where its names are looked at."""
    return {}


_CALLS: Final[Calls] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _typed_tensor,
    "torch._utils _rebuild_parameter": lambda data, requires_grad, hooks: data,
    "collections OrderedDict": _ordered,
    "torch Size": _size,
}


def find_records(mapped: mmap.mmap | bytes) -> dict[str, Record]:
    """The records of an archive by name, without the folder that all of them lie in.

    Raises:
        UnknownArchiveError: compressed, encrypted, zip64, two records of one name, several folders, or bytes outside of the file.
    """
    at = len(mapped) - _END.size
    if at < 0 or mapped[at : at + 4] != b"PK\5\6":
        raise UnknownArchiveError("no directory at the end")
    _, disk, first_disk, here, count, length, begin, comment = _END.unpack_from(mapped, at)
    if disk or first_disk or comment or here != count or _FULL in (length, begin) or count == 0xFFFF or begin + length > at:
        raise UnknownArchiveError("another kind of directory")
    found: dict[str, Record] = {}
    folders, place = set(), begin
    for _ in range(count):
        entry = place
        (mark, _, _, flags, method, _, _, crc, packed, size, name_length, extra, remark, _, _, _, start) = _ENTRY.unpack_from(
            mapped, place
        )
        place += _ENTRY.size
        folder, _, name = mapped[place : place + name_length].decode("utf-8").partition("/")
        place += name_length + extra + remark
        if mark != b"PK\1\2" or method or flags & _ENCRYPTED or packed != size or _FULL in (size, start) or name in found:
            raise UnknownArchiveError("another kind of record")
        found[name] = _record(mapped, start, size, crc, entry)
        folders.add(folder)
    if place != begin + length or len(folders) != 1:
        raise UnknownArchiveError("the directory does not fit")
    return found


def _record(mapped: mmap.mmap | bytes, start: int, size: int, crc: int, entry: int) -> Record:
    local = _LOCAL.unpack_from(mapped, start)
    begin = start + _LOCAL.size + local[-2] + local[-1]
    if local[0] != b"PK\3\4" or begin + size > len(mapped):
        raise UnknownArchiveError("a record outside of the file")
    return Record(begin, size, crc, start, entry)

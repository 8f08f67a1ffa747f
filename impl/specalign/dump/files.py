"""Safetensors files by numpy alone: tensors as raw bits out of a mapped file, and files that appear whole or not at all.

`safetensors.numpy` is not used: it has no bfloat16 and no FP8, and writes transposed views in the wrong order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES, DType
from specalign.dump.errors import DumpError
from specalign.layer_ids.files import InputError, open_regular, shown
from specalign.layer_ids.tensor_files import MAX_HEADER_BYTES

BLOCK: Final = 8 * 1024 * 1024
"""Bytes that are written, read or checked at a time."""

TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")
"""Names of files that are being written: `.<name>.<random>.tmp`. A killed writer leaves one; nothing reads it."""


class Source(NamedTuple):
    """One tensor to be written: its name in the file, its element type, and its raw bits (`DType.raw`), of any strides."""

    name: str
    dtype: str
    data: NDArray[Any]


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Makes every failure of the small-file readers a `DumpError` with the same text."""
    try:
        yield
    except DumpError:
        raise
    except InputError as error:
        raise DumpError(str(error)) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes every failure to write `path` one clear `DumpError`."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or f"{error.strerror or error}; check the disk and the path"
        raise DumpError(f"{shown(path)}: cannot be written: {reason}") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise DumpError(f"{shown(path)}: not a usable path ({error}); check the path") from error


_KEPT: Final = "what was committed before is whole"
_REASONS: Final[Mapping[int, str]] = {
    errno.ENOSPC: f"the disk is full; free some space and go on with resume=True, {_KEPT}",
    errno.EDQUOT: f"the disk quota is used up; free some space and go on with resume=True, {_KEPT}",
    errno.EFBIG: f"it would be larger than this process may write (ulimit -f); raise the limit, {_KEPT}",
    errno.EROFS: "the file system is read-only; give a folder on another",
    errno.EACCES: "no permission; give a folder that this user may write to",
    errno.EPERM: "no permission; give a folder that this user may write to",
    errno.ENOTDIR: "a part of the path is a file; give a folder",
    errno.ENOENT: "its folder is gone; was it removed or renamed during the run?",
    errno.EIO: f"the disk reports an error; check it, {_KEPT}",
}


def write_tensors(
    path: Path,
    tensors: Sequence[Source],
    describe: Callable[[Sequence[str]], Mapping[str, str]] = lambda checksums: {},
    seal: Callable[[bytes], bytes] = bytes,
) -> None:
    """Write a safetensors file that was not there before: equal arguments give equal bytes.

    Tensors with larger elements come first, then by name, so that each lies aligned to its elements. The data begins at a
    multiple of 8 bytes. The file appears under its name after all of it is on the disk.

    Args:
        path: of a file that must not exist.
        tensors: raw bits.
        describe: the metadata, given the CRC-32 of each tensor's data in the order of the data, as 8 hexadecimal digits. It is
            called twice, the first time with zeros, and what it returns must always be equally long.
        seal: changes the bytes up to the data, but not their number, before they are written.

    Raises:
        DumpError: the file exists, or the system does not take it. Nothing is left under the name then.
    """
    ordered = sorted(tensors, key=lambda source: (-DTYPES[source.dtype].size, source.name))
    with _new_file(path) as handle:
        zeros = ["0" * 8] * len(ordered)
        length = len(_header(ordered, describe(zeros), path))
        handle.seek(length)
        checksums = [_write_data(handle, source.data) for source in ordered]
        header = seal(_header(ordered, describe(checksums), path))
        if len(header) != length:
            raise DumpError(f"{shown(path)}: the metadata changed its length with the checksums; describe() must not let it")
        handle.seek(0)
        _write_all(handle, header)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a small JSON file that was not there before, whole or not at all. Raises `DumpError` as `write_tensors`."""
    with _new_file(path) as handle:
        _write_all(handle, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, as far as the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems know no such thing
            raise
    finally:
        os.close(descriptor)


def map_file(path: Path) -> mmap.mmap:
    """A whole file mapped for reading; it stays mapped for as long as an array looks into it.

    Before Python 3.13 a mapping keeps a descriptor open for as long.

    A file that is cut off while it is mapped ends the process with SIGBUS: dumps are read after they were written.

    Raises:
        DumpError: the file cannot be read or is empty.
    """
    with reading(), open_regular(path) as (handle, size):
        if not size:
            raise DumpError(f"{shown(path)}: is empty")
        return map_open(handle, size)


def map_open(handle: BinaryIO, size: int) -> mmap.mmap:
    """As `map_file`, of a file that is open and not empty. Raises OSError."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_READ)


def view(mapped: mmap.mmap, dtype: str, shape: Sequence[int], span: tuple[int, int]) -> NDArray[Any]:
    """A tensor of a mapped file as read-only unsigned integers `DType.raw` of `shape`; `span` as in `TensorInfo`."""
    raw = np.dtype(DTYPES[dtype].raw)
    if span[0] == span[1]:
        return np.zeros(tuple(shape), raw)
    return np.frombuffer(mapped, raw, math.prod(shape), span[0]).reshape(tuple(shape))


def checksum_of(data: NDArray[Any]) -> str:
    """The CRC-32 of an array's bytes in C order, as 8 hexadecimal digits."""
    if data.flags.c_contiguous and data.nbytes <= BLOCK:
        return f"{zlib.crc32(data.data):08x}"
    value = 0
    for block in blocks(data):
        value = zlib.crc32(block, value)
    return f"{value:08x}"


def raw_bits(data: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """An array of any type that has the element type's size, as its raw bits: int64 as "<u8", float32 as "<u4"."""
    if data.dtype.byteorder == ">":
        data = data.astype(data.dtype.newbyteorder("<"))
    return data if data.dtype == np.dtype(dtype.raw) else data.view(dtype.raw)


def blocks(data: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in C order, at most about `BLOCK` at a time; copied only where they do not lie in order."""
    if not data.size:
        return
    if data.flags.c_contiguous:
        flat = data.reshape(-1).data.cast("B")
        for at in range(0, len(flat), BLOCK):
            yield flat[at : at + BLOCK]
    elif data[0].nbytes > BLOCK and data.ndim > 1:
        for row in data:
            yield from blocks(row)
    else:
        step = max(1, BLOCK // max(1, data[0].nbytes))
        for at in range(0, len(data), step):
            yield np.ascontiguousarray(data[at : at + step]).reshape(-1).data.cast("B")


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which appears as `path` at the end; on any failure nothing is left."""
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    with writing(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as handle:
                yield handle
                os.fsync(descriptor)
            _publish(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _publish(temporary: Path, path: Path) -> None:
    """Give a file its name unless another has it; `rename` would replace the other without a word."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise DumpError(f"{shown(path)}: is there already and was not replaced; give each run its own folder") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links here. Whoever writes passes holds the rank's lock, so nobody comes between the two steps.
        if path.exists() or path.is_symlink():
            raise DumpError(f"{shown(path)}: is there already and was not replaced; give each run its own folder") from None
        temporary.rename(path)
        return
    temporary.unlink()


def _header(tensors: Sequence[Source], metadata: Mapping[str, str], path: Path) -> bytes:
    """The bytes up to the data: the length of the JSON text, the text, and spaces up to a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, dtype, data in tensors:
        entries[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [begin, begin + data.nbytes]}
        begin += data.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise DumpError(
            f"{shown(path)}: its header would take {len(text)} bytes, over {MAX_HEADER_BYTES}; are the names that long?"
        )
    return len(text).to_bytes(8, "little") + text


def _write_data(handle: BinaryIO, data: NDArray[Any]) -> str:
    """Writes the bytes and returns their CRC-32."""
    checksum = 0
    for block in blocks(data):
        checksum = zlib.crc32(block, checksum)
        _write_all(handle, block)
    return f"{checksum:08x}"


def _write_all(handle: BinaryIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:  # the system may take less than it is given, and takes at most 2 GiB at a time
        rest = rest[handle.write(rest) :]

"""Names, dtypes and shapes of a checkpoint's tensors, out of safetensors headers; the weights are not read.

A safetensors file is an 8-byte little-endian header length, a JSON header, then the data. The first megabyte of a file,
fetched with an HTTP range request and saved as `NAME.safetensors.header`, is enough to know every shape in it, so such
prefixes are read beside whole files. The checks are those of the reference reader (huggingface/safetensors,
`safetensors/src/tensor.rs`, `Metadata::validate`), and two stricter ones: a name that stands twice is refused, and a header
has at most 32 MiB (there: 100 MB).
"""

from __future__ import annotations

import array
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from specalign.layer_ids.files import (
    InputError,
    decode_utf8,
    is_there,
    is_unicode,
    list_names,
    open_regular,
    parse_json_object,
    quoted,
    read_exactly,
    read_json_object,
    shown,
)

MAX_HEADER_BYTES: Final = 32 * 1024 * 1024
"""The longest header that is read, in bytes. A header entry takes about 100 bytes."""

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""The longest `*.safetensors.index.json` that is read, in bytes: with 100,000 experts' tensors they reach 10 MB."""

MAX_INT_TENSOR_BYTES: Final = 8 * 1024 * 1024
"""Default limit of `read_int_tensor`, in bytes. A d2t table of 32,000 I64 takes 256,000."""

DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Every dtype of the format (safetensors 0.8) and the bits of one element."""

_SUFFIX: Final = ".safetensors"
_HEADER_SUFFIX: Final = ".safetensors.header"
_INDEX_SUFFIX: Final = ".safetensors.index.json"
_SHARD_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_U64_END: Final = 2**64
_INT_CODES: Final[Mapping[str, str]] = {"I64": "q", "I32": "i"}


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as a header states it.

    Attributes:
        name: the key in the header.
        dtype: the format's own name, a key of `DTYPE_BITS`.
        shape: elements along each axis; () is a scalar.
        file: the file whose header names it.
        span: first byte and end of the data within `file`, in bytes; None where the file does not hold all of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    span: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of a folder's tensors.

    Attributes:
        tensors: by name, every tensor of every header that was read.
        files: the files whose headers were read, in order of name.
        complete: no header is missing: all shards that the index (or the numbering in the file names) asks for were read.
        listed: the names that the index lists; empty without an index. It may be stale: engines trust the headers.
        unread: safetensors files that the index does not name, which engines skip too.
    """

    tensors: Mapping[str, TensorInfo]
    files: tuple[Path, ...]
    complete: bool
    listed: frozenset[str] = frozenset()
    unread: tuple[Path, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Every tensor that a header or the index names, whether or not its shape is known."""
        return self.listed | self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the tensor of that name, or None where no header names it."""
        info = self.tensors.get(name)
        return None if info is None else info.shape


def read_tensor_facts(folder: Path) -> TensorFacts | None:
    """The tensors of the safetensors files in `folder`; None when it holds none (see `pickled_weights`).

    With an index, the shards that it names are read, each from the file or from its header prefix `SHARD.header`. Where
    some or all shards are prefixes the rest may be missing (`complete` is False). So may all of them in a snapshot of the
    Hugging Face cache, which holds just the files that somebody asked for: then only `listed` is known.

    Raises:
        InputError: a folder or file that cannot be read; a header or index that breaks the format; a shard that is missing
            otherwise; one tensor in two files; several indexes, none of them `model.safetensors.index.json`.
    """
    # Names with a leading dot are other programs' business: macOS writes ._model.safetensors beside the real file.
    present = [name for name in list_names(folder) if not name.startswith(".")]
    index = _choose_index(folder, [name for name in present if name.endswith(_INDEX_SUFFIX)])
    if index is not None:
        return _facts_by_index(folder, index, present)
    whole = {name for name in present if name.endswith(_SUFFIX)}
    prefixes = {name for name in present if name.endswith(_HEADER_SUFFIX) and name.removesuffix(".header") not in whole}
    if not whole and not prefixes:
        return None
    files = tuple(folder / name for name in sorted(whole | prefixes))
    return TensorFacts(_merged(files), files, complete=_numbering_is_full(files))


def pickled_weights(folder: Path) -> tuple[str, ...]:
    """The names of the `pytorch_model*.bin` files in `folder`, sorted: weights that are pickles and are never read here.

    Raises:
        InputError: a folder that cannot be listed.
    """
    return tuple(n for n in list_names(folder) if n.startswith("pytorch_model") and n.endswith(".bin"))


def read_int_tensor(facts: TensorFacts, name: str, *, limit: int = MAX_INT_TENSOR_BYTES) -> array.array[int] | None:
    """The values of one small I64 or I32 tensor, flat, in row-major order; None where its data is not here.

    A header prefix gives the values too where it reaches that far: writers put I64 tensors first, so the first megabyte of a
    draft head often holds d2t whole.

    Args:
        facts: of the folder.
        name: of the tensor.
        limit: the most bytes of data that are read.

    Raises:
        InputError: no tensor of that name, another dtype, more than `limit` bytes, or a file that changed meanwhile.
    """
    info = facts.tensors.get(name)
    if info is None:
        if name in facts.listed:
            return None
        raise InputError(f"no tensor {quoted(name)} in {', '.join(shown(f.name) for f in facts.files) or 'the index'}")
    where = f"{shown(info.file)}: the tensor {quoted(name)}"
    if info.dtype not in _INT_CODES:
        raise InputError(f"{where} is {info.dtype}, not I64 or I32, so it is no table of ids; convert it to int64")
    if info.span is None:
        return None
    begin, end = info.span
    if end - begin > limit:
        raise InputError(f"{where} has {end - begin} bytes, more than the {limit} that are read here; its shape is {info.shape}")
    values = array.array(_INT_CODES[info.dtype])
    with open_regular(info.file) as (handle, _):
        handle.seek(begin)
        values.frombytes(read_exactly(handle, end - begin, info.file))
    if sys.byteorder == "big":  # the format is little-endian everywhere
        values.byteswap()
    return values


def _choose_index(folder: Path, names: Sequence[str]) -> Path | None:
    if not names:
        return None
    usual = "model" + _INDEX_SUFFIX
    if usual not in names and len(names) > 1:
        raise InputError(f"{shown(folder)}: several indexes and no {usual}: {', '.join(map(shown, names))}; keep one")
    return folder / (usual if usual in names else names[0])


def _facts_by_index(folder: Path, index: Path, present: Sequence[str]) -> TensorFacts:
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    found = {shard: file for shard in shards if (file := _shard_file(folder, shard)) is not None}
    missing = [shard for shard in shards if shard not in found]
    if missing and not _may_lack_shards(folder, list(found.values())):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{shown(index)}: names the shard {shown(missing[0])}{more}, which is not in the folder; download it, or its first"
            f" bytes as {shown(missing[0])}.header"
        )
    files = tuple(found.values())
    unread = tuple(folder / name for name in present if name.endswith(_SUFFIX) and name not in found)
    return TensorFacts(_merged(files), files, complete=not missing, listed=frozenset(shard_of), unread=unread)


def _may_lack_shards(folder: Path, found: Sequence[Path]) -> bool:
    if not found:
        return folder.absolute().parent.name == "snapshots"
    return any(file.name.endswith(_HEADER_SUFFIX) for file in found)


def _read_index(index: Path) -> dict[str, str]:
    where = shown(index)
    weight_map = read_json_object(index, limit=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{where}: has no weight_map from tensor names to shards; download the index again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(_SUFFIX) or "/" in shard or "\\" in shard or "\0" in shard:
            raise InputError(
                f"{where}: maps {quoted(name)} to {quoted(shard)}, which is no {_SUFFIX} file in this folder; correct it"
            )
    return weight_map


def _shard_file(folder: Path, shard: str) -> Path | None:
    """The shard, or else its header prefix. A broken link counts as there: reading it says better what is wrong."""
    return next((file for file in (folder / shard, folder / f"{shard}.header") if is_there(file)), None)


def _numbering_is_full(files: Sequence[Path]) -> bool:
    matches = [m for file in files if (m := _SHARD_NAME.fullmatch(file.name.removesuffix(".header")))]
    numbers: dict[tuple[str, int], set[int]] = {}
    for match in matches:
        numbers.setdefault((match["stem"], int(match["count"])), set()).add(int(match["number"]))
    return all(len(seen) >= count for (_, count), seen in numbers.items())


def _merged(files: Sequence[Path]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for info in read_header(file)[1]:
            other = tensors.setdefault(info.name, info)
            if other is not info:
                raise InputError(
                    f"{shown(file)}: the tensor {quoted(info.name)} is also in {shown(other.file.name)}, and engines differ in"
                    " which they load; keep one of the two files, or add an index"
                )
    return tensors


def read_header(file: Path) -> tuple[dict[str, str], list[TensorInfo]]:
    """The metadata and the tensors of one safetensors file, in the order of their data. Raises `InputError` as the others."""
    with open_regular(file) as (handle, size):
        start = 8 + _header_length(file, handle.read(8), size)
        data = read_exactly(handle, start - 8, file)
    where = f"{shown(file)}: the safetensors header"
    header = parse_json_object(decode_utf8(data, where, bom=False), where)
    metadata = _checked_metadata(header.pop("__metadata__", None), where)
    entries = sorted((_parse_entry(name, entry, where) for name, entry in header.items()), key=lambda e: e.offsets)
    _check_layout(entries, where)
    _check_size(entries[-1].offsets[1] if entries else 0, size - start, file)
    spans = [(start + begin, start + end) for *_, (begin, end) in entries]
    return metadata, [
        TensorInfo(entry.name, entry.dtype, entry.shape, file, span if span[1] <= size else None)
        for entry, span in zip(entries, spans, strict=True)
    ]


def _header_length(file: Path, prefix: bytes, size: int) -> int:
    """The length of the JSON header in bytes, checked against the file: nothing is read on the word of a stranger."""
    where = shown(file)
    if len(prefix) < 8:
        raise InputError(f"{where}: only {size} bytes, too short for a safetensors file; download it again")
    if prefix == b"version ":
        raise InputError(f"{where}: is a Git LFS pointer, not the weights; next: git lfs pull")
    length = int.from_bytes(prefix, "little")
    if length < 2:
        raise InputError(f"{where}: its header length is {length}, too short for any header; download it again")
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"{where}: its header length is {length}, over the limit of {MAX_HEADER_BYTES} bytes; is it safetensors?"
        )
    if 8 + length > size:
        again = f"fetch bytes 0-{7 + length}" if file.name.endswith(".header") else "download it again"
        raise InputError(f"{where}: its header length is {length}, but the file has {size} bytes: cut off or damaged; {again}")
    return length


class _Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, int]


def _checked_metadata(metadata: object, where: str) -> dict[str, str]:
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InputError(f"{where} has a __metadata__ that does not map strings to strings; write the file again")
    return metadata


def _parse_entry(name: str, entry: object, where: str) -> _Entry:
    where = f"{where} entry {quoted(name)}"
    if not isinstance(entry, dict) or not is_unicode(name):
        raise InputError(f"{where} is no tensor: it needs dtype, shape and data_offsets; write the file again")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise InputError(f"{where} has the unknown dtype {quoted(dtype)}; known are {', '.join(DTYPE_BITS)}")
    if not _are_sizes(shape):
        raise InputError(f"{where} has the shape {quoted(shape)}, which is no list of sizes; write the file again")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{where} has the data_offsets {quoted(offsets)}, which are no [begin, end]; write the file again")
    bits = _bits(shape, dtype)
    if bits != 8 * (offsets[1] - offsets[0]):
        raise InputError(
            f"{where} spans {8 * (offsets[1] - offsets[0])} bits, but {dtype} of shape {quoted(shape)} takes"
            f" {'over 2^64' if bits is None else bits}; the header is damaged, write the file again"
        )
    return _Entry(name, dtype, tuple(shape), (offsets[0], offsets[1]))


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _U64_END for item in value)


def _bits(shape: Sequence[int], dtype: str) -> int | None:
    """The bits that a tensor takes; None beyond 64 bits of elements, where the reference reader gives up too."""
    elements = 1
    for size in shape:
        elements *= size
        if elements >= _U64_END:
            return None
    return elements * DTYPE_BITS[dtype]


def _check_layout(entries: Sequence[_Entry], where: str) -> None:
    """The format demands data without overlaps and holes: each tensor begins where the one before it ends."""
    end = 0
    for entry in entries:
        begin = entry.offsets[0]
        if begin != end:
            what = "overlaps the tensor before it" if begin < end else f"leaves a hole of {begin - end} bytes before it"
            raise InputError(f"{where} entry {quoted(entry.name)} {what} (at byte {begin} of the data); write the file again")
        end = entry.offsets[1]


def _check_size(needed: int, there: int, file: Path) -> None:
    short = there < needed
    if there == needed or (short and file.name.endswith(_HEADER_SUFFIX)):
        return
    what = "is cut off" if short else "goes on behind its last tensor"
    hint = f" (a prefix without the weights is named {_HEADER_SUFFIX})" if short else ""
    raise InputError(
        f"{shown(file)}: {what}: its header asks for {needed} bytes of data and {there} are there; download it again{hint}"
    )

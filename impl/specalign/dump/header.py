"""The header of a pass file: one JSON document beside what safetensors itself says of the tensors.

It stands as text under the one metadata key `specalign`, and the metadata stand first in the header:

    {"check": "01234567", "schema": "specalign.dump/1", "rank": 0, "pass": 3, "coords": {"tp": 1}, "stage": [0, 12],
     "requests": ["a", "b"],
     "tensors": {"boundary.2": {"site": "pre-block", "axis": "hidden@tp"},
                 "fingerprint.boundary.3": {"dtype": "BF16", "shape": [17, 2880], "counted": true}},
     "crc32": "89abcdef…"}

`tensors` says what the header's other entries do not: `dtype` and `shape` are those of the tensor that was fingerprinted, whose
non-finite elements were `counted`: the counts stand under `nonfinite.<key>`, or nowhere if all of them are 0. `crc32` holds the
CRC-32 of each tensor's data, 8 hexadecimal digits each, in the order of the data. `check` is that of the file's bytes up to the
data, its own digits taken as zeros: no flipped bit in a header goes unnoticed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.fields import (
    check_coords,
    check_crc32,
    check_key,
    check_marks,
    check_number,
    check_requests,
    check_rows,
    check_stage,
)
from specalign.dump.files import reading
from specalign.dump.keys import FINGERPRINT, INDEX_DTYPES, NONFINITE, TOKENS
from specalign.dump.manifest import SCHEMA
from specalign.dump.nonfinite import COUNTED, has_nonfinite
from specalign.dump.passes import TensorSpec
from specalign.layer_ids.files import decode_utf8, open_regular, parse_json_object, quoted, read_exactly, shown
from specalign.layer_ids.tensor_files import MAX_HEADER_BYTES, TensorInfo, read_header

METADATA_KEY: Final = "specalign"

NO_CRC: Final = "0" * 8
"""What stands for a checksum until it is known."""

MAX_AXES: Final = 16
"""Of a tensor; numpy takes 64, and a tensor of [rows, width] has two."""

_OPENING: Final = '{"__metadata__":{"specalign":"'
_PREFIX: Final = (_OPENING + r"{\"check\":\"").encode()
_DIGITS: Final = slice(8 + len(_PREFIX), 8 + len(_PREFIX) + 8)
_FIELDS: Final = frozenset({"check", "schema", "rank", "pass", "coords", "stage", "requests", "tensors", "crc32"})
_TENSOR_FIELDS: Final = frozenset({"site", "axis", "dtype", "shape", "counted"})
_DECODER: Final = json.JSONDecoder()
_FIRST: Final = 4 * 1024  # read at once: nearly every header is shorter, and more would cost more than a second read
_MANY_LAYOUTS: Final = 256
_LONG_LAYOUTS: Final = 4 * 1024 * 1024  # characters of all together


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What passes with the same tensors of the same shapes have in common.

    Attributes:
        rows: number of token rows.
        tensors: what is recorded, by key; of a key stored whole and as fingerprints, the whole.
        stored: every tensor of the file by its name there, in the order of the data.
        spans: first byte and end of each, counted from the start of the data.
        size: bytes of the data.
        said: the document's table `tensors`.
    """

    rows: int
    tensors: Mapping[str, TensorSpec]
    stored: Mapping[str, TensorInfo]
    spans: Mapping[str, tuple[int, int]]
    size: int
    said: Mapping[str, Any]


Layouts: TypeAlias = dict[str, Layout]
"""Layouts that were checked, by the text of the header that states them; a reader keeps one, so that most passes cost little."""


@dataclasses.dataclass(frozen=True, slots=True)
class PassHeader:
    """What the header of one pass file says.

    Attributes:
        rank, number, coords, stage: as in `PassInfo`.
        requests: the request ids of this pass.
        crc32: of the data of each tensor, 8 hexadecimal digits each, in the order of `layout.stored`.
        start: where the data begins in the file.
        layout: the tensors.
    """

    rank: int
    number: int
    coords: tuple[tuple[str, int], ...]
    stage: tuple[int, int] | None
    requests: tuple[str, ...]
    crc32: str
    start: int
    layout: Layout

    def span(self, name: str) -> tuple[int, int]:
        """First byte and end of a stored tensor in the file."""
        begin, end = self.layout.spans[name]
        return self.start + begin, self.start + end

    def checksum(self, name: str) -> str:
        """The CRC-32 of a stored tensor's data."""
        at = 8 * list(self.layout.stored).index(name)
        return self.crc32[at : at + 8]


def stored_name(spec: TensorSpec) -> str:
    """The name of a tensor in the file: its key, or `fingerprint.<key>`."""
    return (FINGERPRINT if spec.fingerprint else "") + spec.key


def build_document(
    *,
    rank: int,
    number: int,
    coords: Sequence[tuple[str, int]],
    stage: tuple[int, int] | None,
    requests: Sequence[str],
    specs: Iterable[TensorSpec],
    checksums: Iterable[str],
) -> dict[str, str]:
    """The metadata of a pass file, with `NO_CRC` for the check of the header.

    Args:
        specs: the recorded tensors.
        checksums: of all tensors of the file, in the order of the data; the length of the text does not depend on their digits.
    """
    tensors: dict[str, dict[str, object]] = {}
    for spec in specs:
        said: dict[str, object] = {name: value for name, value in (("site", spec.site), ("axis", spec.axis)) if value}
        if spec.fingerprint:
            said |= {"dtype": spec.dtype, "shape": list(spec.shape), **({"counted": True} if spec.counted else {})}
        if said:
            tensors[stored_name(spec)] = said
    document: dict[str, object] = {
        "check": NO_CRC,
        "schema": SCHEMA,
        "rank": rank,
        "pass": number,
        "coords": dict(coords),
        "stage": None if stage is None else list(stage),
        "requests": list(requests),
        "tensors": tensors,
        "crc32": "".join(checksums),
    }
    return {METADATA_KEY: json.dumps(document, separators=(",", ":"))}


def seal(header: bytes) -> bytes:
    """A file's bytes up to the data, with the check of the header filled in."""
    return header[: _DIGITS.start] + _check_of(header) + header[_DIGITS.stop :]


def read_pass_header(path: Path, layouts: Layouts | None = None) -> PassHeader:
    """The header of a pass file, checked in itself.

    Args:
        layouts: those that were checked before, by the same reader of the same dump.

    Raises:
        DumpError: the file cannot be read, is no safetensors file, has another schema, is damaged, or contradicts itself.
    """
    where = shown(path)
    layouts = {} if layouts is None else layouts
    with reading(), open_regular(path) as (handle, size):
        header = _read_bytes(handle, size, path)
        text = decode_utf8(header[8:], where)
        document_text, rest = _split(text, where)
        document = parse_json_object(document_text, f"{where}: the document {METADATA_KEY}")
        _check_fields(document, where)
        layout = layouts.get(rest)
        if layout is None or layout.said != document["tensors"] or size != len(header) + layout.size:
            layout = _read_layout(path, document, document_text)
            layouts[rest] = layout
            while len(layouts) > _MANY_LAYOUTS or (len(layouts) > 1 and sum(map(len, layouts)) > _LONG_LAYOUTS):
                del layouts[next(iter(layouts))]
    return PassHeader(
        check_number(document["rank"], "rank", where),
        check_number(document["pass"], "pass", where),
        check_coords(document["coords"], where),
        check_stage(document["stage"], where),
        check_requests(document["requests"], where),
        check_crc32(document["crc32"], len(layout.stored), where),
        len(header),
        layout,
    )


def _read_bytes(handle: BinaryIO, size: int, path: Path) -> bytes:
    """The bytes up to the data, once they are known to be those that were written."""
    header = handle.read(min(size, _FIRST))
    length = int.from_bytes(header[:8], "little")
    if length > MAX_HEADER_BYTES or 8 + length > size:
        read_header(path)  # says what is wrong
    header = header[: 8 + length] + (read_exactly(handle, 8 + length - len(header), path) if 8 + length > len(header) else b"")
    if not header[8:].startswith(_PREFIX):
        metadata, _ = read_header(path)
        raise DumpError(
            f"{shown(path)}: no pass of a dump {SCHEMA}: its metadata has the keys {quoted(sorted(metadata))} and does not begin"
            " with the document of our writer; read it as a plain safetensors file"
        )
    if _check_of(header) != header[_DIGITS]:
        raise DumpError(f"{shown(path)}: the header does not have its checksum: it was damaged; copy the file or record it again")
    return header


def _check_of(header: bytes) -> bytes:
    crc = zlib.crc32(header[_DIGITS.stop :], zlib.crc32(NO_CRC.encode(), zlib.crc32(header[: _DIGITS.start])))
    return f"{crc:08x}".encode()


def _split(text: str, where: str) -> tuple[str, str]:
    """The document, and the rest of the header, which states the tensors."""
    try:
        document, end = _DECODER.raw_decode(text, len(_OPENING) - 1)  # a string: the prefix ends within it
    except json.JSONDecodeError as error:
        raise DumpError(f"{where}: the header is no JSON ({error}); write the dump again") from error
    return document, text[end:]


def _read_layout(path: Path, document: Mapping[str, Any], document_text: str) -> Layout:
    """The slow way: all checks of the safetensors format, then ours."""
    where = shown(path)
    metadata, infos = read_header(path)
    if metadata != {METADATA_KEY: document_text}:
        raise DumpError(f"{where}: its metadata has the keys {quoted(sorted(metadata))}; a pass has the one key {METADATA_KEY}")
    stored = {info.name: info for info in infos}
    said = document["tensors"]
    _check_said(said, stored, where)
    rows = _checked_index(stored, where)
    spans = {info.name: info.span or (0, 0) for info in infos}
    start = min(begin for begin, _ in spans.values())
    relative = {name: (begin - start, end - start) for name, (begin, end) in spans.items()}
    return Layout(rows, _specs(said, stored, rows, where), stored, relative, max(end for _, end in relative.values()), said)


def _check_fields(document: Mapping[str, object], where: str) -> None:
    schema = document.get("schema")
    if schema != SCHEMA:
        raise DumpError(f"{where}: has the schema {quoted(schema)}, and {SCHEMA} is read here; is it of a newer version?")
    if document.keys() != _FIELDS:
        missing, unknown = sorted(_FIELDS - document.keys()), sorted(document.keys() - _FIELDS)
        raise DumpError(
            f"{where}: the header lacks {quoted(missing)} and has the unknown {quoted(unknown)}; write the dump again"
        )


def _check_said(table: object, stored: Mapping[str, TensorInfo], where: str) -> None:
    if not isinstance(table, dict) or not all(isinstance(said, dict) for said in table.values()):
        raise DumpError(f"{where}: tensors is {quoted(table)}, which is no table of tables; write the dump again")
    for name, said in table.items():
        if name not in stored or name in INDEX_DTYPES or name.startswith(NONFINITE):
            raise DumpError(f"{where}: tensors says something of {quoted(name)}, which is no recorded tensor of this file")
        unknown = sorted(said.keys() - _TENSOR_FIELDS)
        if unknown:
            raise DumpError(f"{where}: {quoted(name)} has the unknown field {quoted(unknown[0])}; is it of a newer version?")


def _checked_index(stored: Mapping[str, TensorInfo], where: str) -> int:
    """The number of rows, once the tensors that name the rows are what they must be."""
    for name, dtype in INDEX_DTYPES.items():
        info = stored.get(name)
        if info is None:
            raise DumpError(f"{where}: has no {name}, so nobody knows which row is what; write the dump again")
        if info.dtype != dtype or len(info.shape) != 1 or info.shape != stored[TOKENS].shape:
            raise DumpError(
                f"{where}: {name} is {info.dtype} of shape {list(info.shape)}, not {dtype} of the shape"
                f" {list(stored[TOKENS].shape[:1])} of the tokens"
            )
    return stored[TOKENS].shape[0]


def _specs(said: Mapping[str, Any], stored: Mapping[str, TensorInfo], rows: int, where: str) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    counted: dict[str, TensorSpec] = {}
    recorded = (name for name in stored if name not in INDEX_DTYPES and not name.startswith(NONFINITE))
    for name in sorted(recorded, key=lambda name: (name.startswith(FINGERPRINT), name)):
        spec = _spec(name, said.get(name, {}), stored[name], rows, where)
        whole = specs.setdefault(spec.key, spec)
        if whole is not spec and dataclasses.replace(whole, fingerprint=True, counted=spec.counted) != spec:
            raise DumpError(f"{where}: {name} is of {spec}, and {spec.key} itself is {whole}; they must be of one tensor")
        if spec.counted:
            counted[NONFINITE + spec.key] = spec
    _check_counts(counted, stored, where)
    return specs


def _check_counts(counted: Mapping[str, TensorSpec], stored: Mapping[str, TensorInfo], where: str) -> None:
    """Raises `DumpError` unless all counts of non-finite elements are those of fingerprints that were counted."""
    for name, info in stored.items():
        if not name.startswith(NONFINITE):
            continue
        spec = counted.get(name)
        if spec is None:
            raise DumpError(f"{where}: {quoted(name)} belongs to no fingerprints that say counted; write the dump again")
        shape = (spec.shape[0], len(COUNTED))
        if info.dtype != "U32" or info.shape != shape:
            raise DumpError(f"{where}: {quoted(name)} is {info.dtype} of shape {list(info.shape)}, not U32 of {list(shape)}")


def _spec(name: str, entry: Mapping[str, Any], info: TensorInfo, rows: int, where: str) -> TensorSpec:
    key, fingerprint = check_key(name, where).text, name.startswith(FINGERPRINT)
    dtype, shape = (entry.get("dtype"), entry.get("shape")) if fingerprint else (info.dtype, list(info.shape))
    if not fingerprint and entry.keys() & {"dtype", "shape", "counted"}:
        raise DumpError(f"{where}: {quoted(name)} has a dtype, shape or counted in the document, which fingerprints have alone")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DumpError(f"{where}: {quoted(name)} has the dtype {quoted(dtype)}; a dump holds {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not shape or not all(type(size) is int and size >= 0 for size in shape):
        raise DumpError(f"{where}: {quoted(name)} has the shape {quoted(shape)}, which is no [rows, ...]")
    if len(shape) > MAX_AXES or math.prod(size or 1 for size in shape) >= 2**59:
        raise DumpError(f"{where}: {quoted(name)} has the shape {quoted(shape)}, over {MAX_AXES} axes or 2^59 elements")
    if "counted" in entry and (entry["counted"] is not True or not has_nonfinite(DTYPES[dtype])):
        raise DumpError(f"{where}: {quoted(name)} has counted {quoted(entry['counted'])}, which is true of floats or absent")
    site, axis = entry.get("site", ""), entry.get("axis", "")
    check_marks(name, site, axis, where)
    spec = TensorSpec(key, dtype, tuple(shape), site, axis, fingerprint, "counted" in entry)
    if fingerprint and (info.dtype != "U64" or info.shape != (shape[0], 2)):
        raise DumpError(f"{where}: {quoted(name)} is {info.dtype} of shape {list(info.shape)}, not U64 of [{shape[0]}, 2]")
    check_rows(spec, rows, where)
    return spec

"""The fields of a pass, each with its check: what the writer refuses and what the reader does not believe."""

from __future__ import annotations

import re
from typing import Final

from specalign.dump.errors import DumpError
from specalign.dump.keys import Key, parse_key
from specalign.dump.manifest import AXES, Manifest
from specalign.dump.passes import TensorSpec
from specalign.layer_ids.files import is_unicode, quoted

SITES: Final = ("", "pre-block", "post-block", "post-norm")
"""Where a tensor may have been taken; "" is a module's own output."""

SHARD_AXES: Final = ("", "hidden@tp", "tokens@sp", "tokens@cp", "tokens@cp:zigzag", "partial@tp")
"""How ranks may share a tensor; see `TensorSpec.axis`."""

_HEX: Final = re.compile(r"[0-9a-f]*")


def check_key(text: str, where: str) -> Key:
    """The key of a tensor, with or without the prefix of fingerprints. Raises `DumpError` for anything else."""
    try:
        return parse_key(text)
    except DumpError as error:
        raise DumpError(f"{where}: {error}") from None


def check_marks(key: str, site: object, axis: object, where: str) -> None:
    """Raises `DumpError` unless site and axis are known ones."""
    for field, value, known in (("site", site, SITES), ("axis", axis, SHARD_AXES)):
        if value not in known:
            raise DumpError(f"{where}: {quoted(key)} has the {field} {quoted(value)}; known are {', '.join(filter(None, known))}")


def check_rows(spec: TensorSpec, rows: int, where: str) -> None:
    """Raises `DumpError` unless a tensor has one row for each of the pass, or an equal share under sequence parallelism."""
    if spec.axis == "tokens@sp":
        if (rows % spec.shape[0] if spec.shape[0] else rows) or spec.shape[0] > rows:
            raise DumpError(f"{where}: {spec.key} has {spec.shape[0]} rows, which are no equal share of the {rows} of the pass")
    elif spec.shape[0] != rows:
        raise DumpError(f"{where}: {spec.key} has {spec.shape[0]} rows and the pass has {rows}; each row is one token")


def check_coords(value: object, where: str) -> tuple[tuple[str, int], ...]:
    """A place in the parallel layout, in the order of `AXES`. Raises `DumpError` for anything else."""
    if not isinstance(value, dict) or not all(a in AXES and type(p) is int and p >= 0 for a, p in value.items()):
        raise DumpError(f"{where}: coords is {quoted(value)}; axes are {', '.join(AXES)}, each with a place from 0")
    return tuple((axis, value[axis]) for axis in AXES if axis in value)


def check_place(manifest: Manifest, coords: tuple[tuple[str, int], ...], where: str) -> tuple[tuple[str, int], ...]:
    """Raises `DumpError` unless a place lies within the manifest's layout."""
    for axis, place in coords:
        size = manifest.layout.get(axis, 1)
        if place >= size:
            raise DumpError(f"{where}: is at {axis} {place}, and the manifest's layout has {size} there; correct either")
    return coords


def check_stage(value: object, where: str) -> tuple[int, int] | None:
    """The layers of a rank as [first, end], or None. Raises `DumpError` for anything else."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(layer) is int for layer in value):
        raise DumpError(f"{where}: stage is {quoted(value)}, which is no [first layer, end]")
    if not 0 <= value[0] <= value[1]:
        raise DumpError(f"{where}: stage is {quoted(value)}, and [first layer, end] go up from 0")
    return (value[0], value[1])


def check_requests(value: object, where: str) -> tuple[str, ...]:
    """Request ids. Raises `DumpError` unless all are different texts."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and is_unicode(item) for item in value):
        raise DumpError(f"{where}: requests is {quoted(value)}, which is no list of texts")
    if len(set(value)) != len(value):
        raise DumpError(f"{where}: a request id stands twice in {quoted(value)}: whose rows are they?")
    return tuple(value)


def check_number(value: object, field: str, where: str) -> int:
    """A rank or a pass. Raises `DumpError` for anything else."""
    if type(value) is not int or value < 0:
        raise DumpError(f"{where}: {field} is {quoted(value)}, which is no number from 0")
    return value


def check_crc32(value: object, count: int, where: str) -> str:
    """The checksums of `count` tensors. Raises `DumpError` for anything else."""
    if not isinstance(value, str) or len(value) != 8 * count or not _HEX.fullmatch(value):
        raise DumpError(f"{where}: crc32 is {quoted(value)}, which are no 8 hexadecimal digits for each of {count} tensors")
    return value

"""Reading our own format: headers once, tensors by mapping the file. numpy only."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import mmap
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specalign.dump.errors import DumpError
from specalign.dump.fields import check_place
from specalign.dump.files import checksum_of, map_file, reading, view
from specalign.dump.folders import pass_name, pass_number, rank_name, rank_number, read_end
from specalign.dump.header import Layouts, PassHeader, read_pass_header
from specalign.dump.keys import FINGERPRINT, NONFINITE, POSITIONS, REQUESTS, ROW_KIND, TOKENS
from specalign.dump.manifest import Manifest, read_manifest
from specalign.dump.nonfinite import COUNTED
from specalign.dump.passes import Dump, PassInfo, RawTensor, TensorSpec
from specalign.dump.rows import Rows, make_rows
from specalign.layer_ids.files import list_names, open_regular, read_exactly, shown, unreadable

COLUMNS: Final[Mapping[str, str]] = {TOKENS: "<i8", POSITIONS: "<i8", REQUESTS: "<i4", ROW_KIND: "<u1"}
"""The tensors that say which row is what, in the order of `make_rows`, and numpy's types of them."""

RECENT_HEADERS: Final = 512
"""Headers that are kept for when the rows and the values of a pass are read: about 2 KB each."""

_Signature: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change: another file of the same name has another one."""


class SpecalignDump(Dump):
    """A dump of our own format. Headers are read when `infos` is first called, values when they are asked for.

    Memory: about 250 bytes a pass for the infos. What `load` returns are views of the mapped file, which is unmapped when the
    last of them is gone; no other file stays open. A file that is cut off while it is mapped ends the process (SIGBUS), so
    read dumps that nobody changes.
    """

    def __init__(self, path: Path, manifest: Manifest, passes: Mapping[int, Sequence[int]]) -> None:
        """`passes` are the numbers of the passes of each rank; use `open_specalign`."""
        self.path = path
        self.manifest = manifest
        self._passes = passes
        self._infos: tuple[PassInfo, ...] | None = None
        self._layouts: Layouts = {}
        self._recent: collections.OrderedDict[Path, tuple[_Signature, PassHeader]] = collections.OrderedDict()

    def infos(self) -> Sequence[PassInfo]:
        """Every pass of every rank, by rank, then number. Raises `DumpError` for any header that cannot be trusted."""
        if self._infos is None:
            self._infos = tuple(self._read_infos())
        return self._infos

    def rows(self, info: PassInfo) -> Rows:
        """The rows of one pass, copied out of the file and held against their checksums."""
        path, header = self._header(info)
        columns = {}
        with reading(), open_regular(path) as (handle, _):
            for name, kind in COLUMNS.items():
                begin, end = header.span(name)
                handle.seek(begin)
                columns[name] = np.frombuffer(read_exactly(handle, end - begin, path), kind)
                _check_data(columns[name], header, name, path)
        tokens, positions, requests, kinds = columns.values()
        return make_rows(tokens, positions, requests, kinds, header.requests, where=shown(path))

    def load(self, info: PassInfo, keys: Collection[str] | None = None, *, check: bool = False) -> Mapping[str, RawTensor]:
        """The tensors of one pass as views of the mapped file.

        Args:
            keys: those that are wanted; None for all.
            check: hold the data against the checksums, which reads all of it.

        Raises:
            DumpError: as `Dump.load`; with `check`, data that was damaged.
        """
        return self._load(info, info.tensors, keys, check)

    def fingerprints(self, info: PassInfo, keys: Collection[str] | None = None) -> Mapping[str, RawTensor]:
        """The stored fingerprints of one pass by key, also those of tensors that are stored whole beside them."""
        _, header = self._header(info)
        specs = {
            key: dataclasses.replace(spec, fingerprint=True, counted="counted" in header.layout.said[FINGERPRINT + key])
            for key, spec in info.tensors.items()
            if FINGERPRINT + key in header.layout.stored
        }
        return self._load(info, specs, keys, check=False)

    def _load(
        self, info: PassInfo, specs: Mapping[str, TensorSpec], keys: Collection[str] | None, check: bool
    ) -> dict[str, RawTensor]:
        path, header = self._header(info)
        wanted = [spec for key, spec in specs.items() if keys is None or key in keys]
        if not wanted:
            return {}
        mapped = map_file(path)
        loaded = {}
        for spec in wanted:
            name = (FINGERPRINT if spec.fingerprint else "") + spec.key
            stored = header.layout.stored[name]
            data = view(mapped, stored.dtype, stored.shape, header.span(name))
            if check:
                _check_data(data, header, name, path)
            loaded[spec.key] = RawTensor(spec, data, _counts(mapped, header, spec, path, check) if spec.counted else None)
        return loaded

    def _read_infos(self) -> Iterator[PassInfo]:
        shared: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        places: dict[object, object] = {}
        for rank, numbers in self._passes.items():
            for number in numbers:
                path = self._path(rank, number)
                layout = (header := self._read_header(path, rank, number)).layout
                tensors = shared.setdefault(tuple(layout.tensors.values()), layout.tensors)
                coords, stage = (places.setdefault(item, item) for item in (header.coords, header.stage))
                yield PassInfo(rank, number, layout.rows, tensors, coords, stage, shown(path))  # type: ignore[arg-type]

    def _path(self, rank: int, number: int) -> Path:
        return self.path / rank_name(rank) / pass_name(number)

    def _read_header(self, path: Path, rank: int, number: int) -> PassHeader:
        """The header, out of memory if the file is the one that it was read from: rows and values follow soon after it."""
        signature = _signature(path)
        known = self._recent.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        header = read_checked_header(path, rank, number, self.manifest, self._layouts)
        self._recent[path] = (signature, header)
        if len(self._recent) > RECENT_HEADERS:
            self._recent.popitem(last=False)
        return header

    def _header(self, info: PassInfo) -> tuple[Path, PassHeader]:
        """The header of a pass once more: nothing is read on the word of one that was read earlier and has changed since."""
        path = self._path(info.rank, info.number)
        header = self._read_header(path, info.rank, info.number)
        same = header.layout.tensors is info.tensors or dict(header.layout.tensors) == dict(info.tensors)
        if header.layout.rows != info.rows or not same:
            raise DumpError(f"{shown(path)}: was replaced since the dump was opened; open it again when nobody writes to it")
        return path, header


def _counts(mapped: mmap.mmap, header: PassHeader, spec: TensorSpec, path: Path, check: bool) -> NDArray[np.uint32]:
    """The non-finite elements of each row of a tensor that was counted; they are not stored if all of them are 0."""
    name = NONFINITE + spec.key
    stored = header.layout.stored.get(name)
    if stored is None:
        return np.broadcast_to(np.zeros((), np.uint32), (spec.shape[0], len(COUNTED)))
    data = view(mapped, stored.dtype, stored.shape, header.span(name))
    if check:
        _check_data(data, header, name, path)
    return data


def _signature(path: Path) -> _Signature:
    with reading():
        try:
            status = os.stat(path)  # noqa: PTH116  # much faster than Path.stat
        except OSError as error:
            raise unreadable(path, error) from error
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_specalign(folder: str | os.PathLike[str], *, partial: bool = False) -> SpecalignDump:
    """A dump of our own format.

    Args:
        folder: that holds `manifest.json`.
        partial: take a dump in which passes or ranks are missing. A rank without its end mark is taken in any case, since every
            pass that is there is whole; `validate` tells it.

    Raises:
        DumpError: no dump, another schema, a gap in the pass numbers, a missing rank, passes that the end mark counts and that
            are gone, or a file that stands where a pass or a rank might (unread data is never passed over).
    """
    path = Path(folder)
    with reading():
        manifest = read_manifest(path)
        names = list_names(path)
    ranks = {rank: list_passes(path / name) for name in names if (rank := rank_number(name)) is not None}
    ranks = dict(sorted(ranks.items()))
    odd = [name for name in names if name.startswith("rank") and rank_number(name) is None]
    if odd:
        raise DumpError(f"{shown(path / odd[0])}: is no name of a rank ({rank_name(0)}) and would stay unread; move it away")
    if not partial:
        _check_whole(path, manifest, ranks)
    dump = SpecalignDump(path, manifest, ranks)
    dump.unfinished = ("it was opened in part",) if partial else _unfinished(path, ranks)
    return dump


def _unfinished(path: Path, ranks: Mapping[int, Sequence[int]]) -> tuple[str, ...]:
    """What `validate` calls `no-end` and `pass-count`: every pass that is there is whole, and others may be missing."""
    found = [f"{rank_name(rank)} has no end mark" for rank in ranks if read_end(path / rank_name(rank)) is None]
    counts = {len(numbers) for numbers in ranks.values()}
    if len(counts) > 1:
        found.append(f"its ranks wrote between {min(counts)} and {max(counts)} passes")
    return tuple(found)


def list_passes(folder: Path) -> list[int]:
    """The numbers of the passes in a rank's folder, ascending.

    Raises:
        DumpError: it cannot be listed, or holds a safetensors file that is no pass.
    """
    with reading():
        names = [name for name in list_names(folder) if not name.startswith(".")]
    odd = [name for name in names if name.endswith(".safetensors") and pass_number(name) is None]
    if odd:
        raise DumpError(f"{shown(folder / odd[0])}: is no name of a pass ({pass_name(0)}) and would stay unread; move it away")
    return sorted(number for name in names if (number := pass_number(name)) is not None)


def read_checked_header(path: Path, rank: int, number: int, manifest: Manifest, layouts: Layouts) -> PassHeader:
    """The header of a pass, held against the file's name and the manifest. Raises `DumpError`."""
    header = read_pass_header(path, layouts)
    if (header.rank, header.number) != (rank, number):
        raise DumpError(
            f"{shown(path)}: is of rank {header.rank} pass {header.number}, as its header says, and stands where rank {rank} pass"
            f" {number} belongs; was it copied or renamed?"
        )
    check_place(manifest, header.coords, shown(path))
    return header


def missing_below(end: int, there: Collection[int]) -> tuple[int, list[int]]:
    """How many of the numbers below `end` are not there, and the first few: a file's name may hold any number."""
    known = set(there)
    first = itertools.islice((number for number in range(end) if number not in known), 8)
    return end - sum(number < end for number in known), list(first)


def _check_data(data: NDArray[Any], header: PassHeader, name: str, path: Path) -> None:
    if checksum_of(data) != header.checksum(name):
        raise DumpError(
            f"{shown(path)}: the data of {name} does not have its checksum: it was damaged; copy the file or record it again"
        )


def _check_whole(path: Path, manifest: Manifest, ranks: Mapping[int, Sequence[int]]) -> None:
    hint = "; open it with partial=True to look at the rest, `specalign dump validate` lists all that is missing"
    if not ranks:
        raise DumpError(f"{shown(path)}: no rank wrote anything{hint}")
    count, absent = missing_below(manifest.world, ranks)
    if absent:
        raise DumpError(f"{shown(path)}: rank {absent[0]} of {manifest.world} wrote nothing ({count} in all){hint}")
    for rank, numbers in ranks.items():
        _, gaps = missing_below(max(numbers, default=0), numbers)
        if gaps:
            raise DumpError(f"{shown(path / rank_name(rank))}: pass {gaps[0]} is missing and pass {numbers[-1]} is there{hint}")
        if manifest.world and rank >= manifest.world:
            raise DumpError(f"{shown(path / rank_name(rank))}: is of rank {rank}, and the manifest's world has {manifest.world}")
        end = read_end(path / rank_name(rank))
        if end is not None and end.passes != len(numbers):
            raise DumpError(
                f"{shown(path / rank_name(rank))}: {len(numbers)} passes are there and {end.passes} were written{hint}"
            )

"""Writing a dump: one writer a rank, one file a pass, each whole or not there."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.fields import check_coords, check_key, check_marks, check_place, check_requests, check_rows, check_stage
from specalign.dump.files import TEMPORARY, Source, reading, sync_folder, write_json, write_tensors, writing
from specalign.dump.folders import END, EndMark, pass_name, pass_number, rank_name, read_end, take_lock, write_end
from specalign.dump.header import Layouts, build_document, read_pass_header, seal, stored_name
from specalign.dump.keys import NONFINITE, POSITIONS, REQUESTS, ROW_KIND, TOKENS
from specalign.dump.manifest import MANIFEST, Manifest, read_manifest
from specalign.dump.nonfinite import COUNTED, has_nonfinite
from specalign.dump.passes import RawTensor
from specalign.dump.rows import Rows, make_rows
from specalign.layer_ids.files import is_unicode, list_names, quoted, shown


class DumpWriter:
    """Writes the passes of one rank. Every rank has its own writer, in whatever process; all give the same manifest.

    A context manager. Left without an exception (or by `close`) it writes the end mark `end.json`, without which the validator
    takes the rank for unfinished. A killed process leaves whole passes, and perhaps a temporary file that nothing reads. A writer
    that failed once writes nothing more and leaves no end mark, so that a run that swallowed the error does not look whole.

    Calls from several threads exclude each other. What is not guaranteed: a lock between hosts, on a network file system that has
    none; anything in a forked child, which must not use its parent's writer and is refused.

    Attributes:
        folder: of the rank.
        rank: the global rank.
        passes: number of passes written, those of a run that was resumed included: the next pass gets this number.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        manifest: Manifest,
        *,
        rank: int = 0,
        coords: Sequence[tuple[str, int]] = (),
        stage: tuple[int, int] | None = None,
        resume: bool = False,
    ) -> None:
        """Make the folder if need be, write the manifest or hold it against the one there, and lock the rank.

        Args:
            folder: of the dump.
            rank: from 0, below `manifest.world` unless that is 0.
            coords: place in the parallel layout, ("tp", 1), …
            stage: first block and end of the range of global layers that this rank runs.
            resume: go on behind the last whole pass of an earlier run; else passes that are there already are an error.

        Raises:
            DumpError: another manifest, another writer on this rank, passes from an earlier run, or a folder that cannot be
                written to.
        """
        self.rank, self.passes, self._rows = rank, 0, 0
        self._coords, self._stage = _checked_place(manifest, rank, coords, stage)
        self._layout = dict(manifest.layout)
        self._mutex, self._closed, self._failed = threading.Lock(), False, ""
        top = Path(folder)
        self.folder = top / rank_name(rank)
        with writing(top):
            top.mkdir(parents=True, exist_ok=True)
        _write_manifest(top, manifest)
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            sync_folder(top)
        self._lock = take_lock(self.folder)
        try:
            self._begin(resume)
        except BaseException:
            self._release()
            raise

    def write_pass(
        self, rows: Rows, tensors: Sequence[RawTensor], number: int | None = None, *, stage: tuple[int, int] | None = None
    ) -> int:
        """Write one pass and return its number, once all of it is on the disk.

        Args:
            rows: what each row is; none is legal, for a rank that idled.
            tensors: bits of any strides, or fingerprints; one key may come as both.
            number: only a check: the number that this pass must get, the next one.
            stage: the layers of this pass, where they differ from the writer's.

        Raises:
            DumpError: a tensor that the format does not take, a pass that is there already, or a disk that does not take it.
        """
        with self._mutex:
            self._check_usable()
            try:
                self._write(rows, tensors, self.passes if number is None else number, stage or self._stage)
            except BaseException as error:
                self._failed = f"pass {self.passes} failed ({type(error).__name__}: {error})"[:500]
                raise
            self.passes += 1
            self._rows += len(rows)
            return self.passes - 1

    def close(self, *, complete: bool = True) -> None:
        """End: write the end mark, unless a pass failed or `complete` is False, and free the rank. Does nothing the second time.

        Raises:
            DumpError: the mark cannot be written.
        """
        with self._mutex:
            if self._closed:
                return
            try:
                if complete and not self._failed and self._lock.owned:
                    write_end(self.folder, self.rank, EndMark(self.passes, self._rows))
            finally:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.close(complete=kind is None)

    def _begin(self, resume: bool) -> None:
        with reading():
            names = list_names(self.folder)
        numbers = sorted(number for name in names if (number := pass_number(name)) is not None)
        if (numbers or END in names) and not resume:
            raise DumpError(
                f"{shown(self.folder)}: holds {len(numbers)} passes of an earlier run; give a new folder, or resume=True to go on"
                " behind them"
            )
        if numbers != list(range(len(numbers))):
            gap = next(at for at, number in enumerate(numbers) if at != number)
            raise DumpError(f"{shown(self.folder)}: pass {gap} is missing and pass {numbers[-1]} is there; give a new folder")
        layouts: Layouts = {}
        for number in numbers:
            self._rows += read_pass_header(self.folder / pass_name(number), layouts).layout.rows
        self.passes = len(numbers)
        end = read_end(self.folder)
        if end is not None and (end.passes, end.rows) != (self.passes, self._rows):
            raise DumpError(
                f"{shown(self.folder / END)}: says {end.passes} passes with {end.rows} rows, and {self.passes} with {self._rows}"
                " are there: some were lost. Give a new folder"
            )
        with writing(self.folder):
            for name in names:
                if name == END or TEMPORARY.fullmatch(name):  # of a writer that is gone: this one holds the lock
                    (self.folder / name).unlink()

    def _check_usable(self) -> None:
        if not self._lock.owned:
            raise DumpError(f"{shown(self.folder)}: this process was forked from the writer's; make the writer where it is used")
        if self._closed:
            raise DumpError(f"{shown(self.folder)}: the writer was closed; write before, or make another with resume=True")
        if self._failed:
            raise DumpError(
                f"{shown(self.folder)}: nothing more is written, since {self._failed}; correct that and go on with resume=True"
            )

    def _write(self, rows: Rows, tensors: Sequence[RawTensor], number: int, stage: tuple[int, int] | None) -> None:
        path = self.folder / pass_name(number)
        if number != self.passes:
            what = "is there already" if number < self.passes else f"would leave out pass {self.passes}"
            raise DumpError(f"{shown(path)}: pass {number} {what}; the passes of a rank count up by one. Leave the number out")
        sources = _index_sources(rows, shown(path))
        names = set()
        for tensor in tensors:
            _check_tensor(tensor, len(rows), self._layout, shown(path))
            names.add(stored_name(tensor.spec))
            spec, counts = tensor.spec, tensor.nonfinite
            sources.append(Source(stored_name(spec), "U64" if spec.fingerprint else spec.dtype, tensor.data))
            if counts is not None and counts.any():
                sources.append(Source(NONFINITE + spec.key, "U32", counts))
        if len(names) != len(tensors):
            twice = sorted(
                stored_name(t.spec) for t in tensors if sum(stored_name(o.spec) == stored_name(t.spec) for o in tensors) > 1
            )
            raise DumpError(f"{shown(path)}: {twice[0]} comes twice in one pass; which one is meant? Give every key once")
        describe = functools.partial(
            build_document,
            rank=self.rank,
            number=number,
            coords=self._coords,
            stage=check_stage(stage, shown(path)),
            requests=check_requests(rows.request_ids, shown(path)),
            specs=[tensor.spec for tensor in tensors],
        )
        write_tensors(path, sources, lambda checksums: describe(checksums=checksums), seal)

    def _release(self) -> None:
        self._closed = True
        self._lock.release()


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest if it is not there, else hold it against the one there."""
    path = folder / MANIFEST
    if not path.exists():
        try:
            write_json(path, json.loads(manifest.to_json()))
        except DumpError:
            if not path.exists():  # else another rank was faster
                raise
    with reading():
        other = read_manifest(folder)
    if other == manifest:
        return
    ours, theirs = dataclasses.asdict(manifest), dataclasses.asdict(other)
    differ = [
        f"{name} is {quoted(theirs[name])} there and {quoted(ours[name])} here" for name in ours if ours[name] != theirs[name]
    ]
    raise DumpError(
        f"{shown(path)}: was written with another manifest: {'; '.join(differ)}. All ranks of a run give the same one; give each"
        " run its own folder"
    )


def _checked_place(
    manifest: Manifest, rank: int, coords: Sequence[tuple[str, int]], stage: tuple[int, int] | None
) -> tuple[tuple[tuple[str, int], ...], tuple[int, int] | None]:
    if type(rank) is not int or rank < 0 or (manifest.world and rank >= manifest.world):
        raise DumpError(
            f"rank={quoted(rank)} is none of the {manifest.world or 'ranks'} of the manifest's world, which count from 0"
        )
    table = dict(coords)
    if len(table) != len(coords):
        raise DumpError(f"coords={quoted(coords)} name an axis twice")
    return check_place(manifest, check_coords(table, f"rank {rank}"), f"rank {rank}"), check_stage(stage, f"rank {rank}")


def _index_sources(rows: Rows, where: str) -> list[Source]:
    checked = make_rows(rows.tokens, rows.positions, rows.requests, rows.kinds, rows.request_ids, where=where)
    return [
        Source(TOKENS, "I64", checked.tokens.astype("<i8", copy=False).view("<u8")),
        Source(POSITIONS, "I64", checked.positions.astype("<i8", copy=False).view("<u8")),
        Source(REQUESTS, "I32", checked.requests.astype("<i4", copy=False).view("<u4")),
        Source(ROW_KIND, "U8", checked.kinds),
    ]


def _check_tensor(tensor: RawTensor, rows: int, layout: Mapping[str, int], where: str) -> None:
    spec, data = tensor.spec, tensor.data
    if check_key(spec.key, where).text != spec.key or not is_unicode(spec.key):
        raise DumpError(f"{where}: {quoted(spec.key)} is no key; a fingerprint is told by TensorSpec.fingerprint, not by the key")
    if spec.dtype not in DTYPES:
        raise DumpError(f"{where}: {spec.key} is of the type {quoted(spec.dtype)}; a dump holds {', '.join(DTYPES)}")
    check_marks(spec.key, spec.site, spec.axis, where)
    if not spec.shape:
        raise DumpError(f"{where}: {spec.key} is a single number; a tensor of a dump is [rows, ...]")
    raw, shape = (np.dtype("<u8"), (spec.shape[0], 2)) if spec.fingerprint else (np.dtype(DTYPES[spec.dtype].raw), spec.shape)
    if data.dtype != raw or tuple(data.shape) != tuple(shape):
        raise DumpError(
            f"{where}: {spec.key} is {data.dtype}{list(data.shape)}, and its raw bits are {raw}{list(shape)}; pass a view of"
            " the bits"
        )
    _check_counts(tensor, where)
    check_rows(spec, rows, where)
    if spec.axis == "tokens@sp" and spec.shape[0] * layout.get("tp", 1) != rows:
        raise DumpError(
            f"{where}: {spec.key} has {spec.shape[0]} rows on each of {layout.get('tp', 1)} ranks, and the pass has {rows}"
        )


def _check_counts(tensor: RawTensor, where: str) -> None:
    spec, counts = tensor.spec, tensor.nonfinite
    if spec.counted != (counts is not None) or (spec.counted and not (spec.fingerprint and has_nonfinite(DTYPES[spec.dtype]))):
        raise DumpError(
            f"{where}: {spec.key} is counted={spec.counted} and comes {'without' if counts is None else 'with'} counts; counts of"
            " non-finite elements belong to fingerprints of floats that say counted"
        )
    shape = (spec.shape[0], len(COUNTED))
    if counts is not None and (counts.dtype != np.dtype("<u4") or counts.shape != shape):
        raise DumpError(f"{where}: the counts of {spec.key} are {counts.dtype}{list(counts.shape)}, not uint32{list(shape)}")

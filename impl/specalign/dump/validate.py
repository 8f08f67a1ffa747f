"""Is a dump whole and undamaged? Every problem is named; a bad dump raises nothing."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.fields import check_place
from specalign.dump.files import BLOCK, TEMPORARY, reading
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.folders import END, LOCK, pass_name, pass_number, rank_name, rank_number, read_end
from specalign.dump.header import Layouts, PassHeader, read_pass_header
from specalign.dump.keys import FINGERPRINT, NONFINITE, parse_key
from specalign.dump.manifest import MANIFEST, Manifest, read_manifest
from specalign.dump.nonfinite import COUNTED, count_nonfinite
from specalign.dump.passes import TensorSpec
from specalign.dump.problems import DumpProblem, Severity, ValidationReport
from specalign.dump.reader import COLUMNS, missing_below
from specalign.dump.rows import make_rows
from specalign.dump.shards import first_byte, full_width
from specalign.layer_ids.files import list_names, open_regular, read_exactly, shown

Progress = Callable[[int, int], None]


def validate(folder: str | os.PathLike[str], *, progress: Progress = lambda done, total: None) -> ValidationReport:
    """Read every file of a dump and tell all that is wrong with it.

    What is not looked at: whether values are finite, which is the comparer's business (counts of them that are wrong are an
    error), and the times of files, since clocks differ; only numbers count.

    Args:
        folder: of a dump of our own format.
        progress: called with the number of passes that were read, and of all.
    """
    path = Path(folder)
    run = _Validation(path, progress)
    with run.reporting("manifest", path / MANIFEST, "record it again; a foreign dump is made one by `specalign dump convert`"):
        run.check_folder(read_manifest(path))
    return ValidationReport(path, tuple(run.problems), len(run.numbers), run.passes, run.rows, run.size)


class _Validation:
    """One look at a dump: collects problems and counts what was read."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.problems: list[DumpProblem] = []
        self.numbers: dict[int, list[int]] = {}
        self.passes = self.rows = self.size = 0
        self._manifest = Manifest("")
        self._layouts: Layouts = {}
        self._width: tuple[int, str] | None = None
        self._places: dict[tuple[tuple[str, int], ...], int] = {}
        self._place_of: dict[int, tuple[tuple[str, int], ...]] = {}
        self._told: set[tuple[object, ...]] = set()

    def report(self, code: str, file: Path, what: str, hint: str, severity: Severity = "error") -> None:
        """Add a problem."""
        self.problems.append(DumpProblem(code, shown(file), what, hint, severity))

    @contextlib.contextmanager
    def reporting(self, code: str, file: Path, hint: str) -> Iterator[None]:
        """Makes what goes wrong inside a problem of the file."""
        try:
            with reading():
                yield
        except DumpError as error:
            self._report_error(code, file, error, hint)

    def _report_error(self, code: str, file: Path, error: DumpError, hint: str) -> None:
        self.report(code, file, str(error).removeprefix(f"{shown(file)}: "), hint)

    def check_folder(self, manifest: Manifest) -> None:
        """Everything under the manifest."""
        self._manifest = manifest
        hidden = manifest.model.get("hidden_size")
        self._width = (hidden, "hidden_size in the manifest") if isinstance(hidden, int) else None
        for name in list_names(self.folder):
            rank = rank_number(name)
            if rank is not None:
                with self.reporting("foreign", self.folder / name, "move it away"):
                    self.numbers[rank] = self._list_rank(self.folder / name)
            elif name != MANIFEST:
                self._report_odd(self.folder / name, unread=name.startswith("rank"))
        self.numbers = dict(sorted(self.numbers.items()))
        self._check_ranks()
        total = sum(map(len, self.numbers.values()))
        for rank, numbers in self.numbers.items():
            rows = 0
            for number in numbers:
                rows += self._check_pass(rank, number)
                self.passes += 1
                self.progress(self.passes, total)
            self.rows += rows
            self._check_end(rank, numbers, rows)

    def _list_rank(self, folder: Path) -> list[int]:
        numbers = []
        for name in list_names(folder):
            number = pass_number(name)
            if number is not None:
                numbers.append(number)
            elif name not in (END, LOCK):
                self._report_odd(folder / name, unread=name.endswith(".safetensors"))
        return sorted(numbers)

    def _report_odd(self, path: Path, unread: bool) -> None:
        if TEMPORARY.fullmatch(path.name):
            self.report("leftover", path, "is of a writer that was killed", "delete it; nothing reads it", "warning")
        elif unread:
            self.report("foreign", path, "would stay unread: its name is that of no rank or pass", "rename it or move it away")
        else:
            self.report("foreign", path, "is no part of a dump", "move it away", "warning")

    def _check_ranks(self) -> None:
        manifest, again = self._manifest, "record again with every rank, or copy the rest of the dump"
        if not any(self.numbers.values()):
            self.report("empty", self.folder, "no rank wrote any pass", again)
        count, absent = missing_below(manifest.world, self.numbers)
        if absent:
            listed = ", ".join(map(str, absent)) + (", …" if count > len(absent) else "")
            self.report("rank-missing", self.folder, f"{count} of {manifest.world} ranks wrote nothing: {listed}", again)
        for rank, numbers in self.numbers.items():
            if manifest.world and rank >= manifest.world:
                what = f"is of rank {rank}, and the manifest's world has {manifest.world}"
                self.report("rank-unknown", self.folder / rank_name(rank), what, "correct world, or move the folder away")
            count, gaps = missing_below(max(numbers, default=0), numbers)
            if gaps:
                what = f"{count} passes below {numbers[-1]} are missing, the first is {gaps[0]}"
                self.report("pass-missing", self.folder / rank_name(rank), what, "copy them from where they were written")
        counts = collections.Counter({rank: len(numbers) for rank, numbers in self.numbers.items()})
        if len(set(counts.values())) > 1:
            (most, high), (least, low) = counts.most_common()[0], counts.most_common()[-1]
            what = f"rank {most} has {high} passes and rank {least} has {low}; ranks give one forward the same number"
            self.report("pass-count", self.folder, what, "cut all ranks to the passes that they share, or record again")

    def _check_end(self, rank: int, numbers: Sequence[int], rows: int) -> None:
        folder = self.folder / rank_name(rank)
        with self.reporting("end", folder / END, "record again, or finish the run with resume=True"):
            end = read_end(folder)
            if end is None:
                what = f"has {len(numbers)} passes and no {END}: its writer was killed, failed, or is still at work"
                self.report("no-end", folder, what, "wait for it, or go on with resume=True")
            elif end.passes != len(numbers):
                what = f"{end.passes} passes were written and {len(numbers)} are there"
                self.report("pass-missing", folder, what, "copy the rest from where they were written")
            elif end.rows != rows:
                self.report("end", folder / END, f"{end.rows} rows were written and {rows} could be read", "see the other errors")

    def _check_pass(self, rank: int, number: int) -> int:
        """Everything in one file; its number of rows."""
        path = self.folder / rank_name(rank) / pass_name(number)
        try:
            header = read_pass_header(path, self._layouts)
        except DumpError as error:
            self._report_error("header", path, error, "copy the file again, or record again")
            return 0
        if (header.rank, header.number) != (rank, number):
            what = f"its header says rank {header.rank} pass {header.number}"
            self.report("misplaced", path, what, "put it where it belongs; was it copied or renamed?")
        self._check_place(path, rank, header)
        for spec in header.layout.tensors.values():
            self._check_stage(path, rank, spec, header)
            self._check_width(path, rank, spec)
        with self.reporting("data", path, "copy the file again, or record again"), open_regular(path) as (handle, size):
            self.size += size
            self._check_data(path, header, handle)
        return header.layout.rows

    def _check_place(self, path: Path, rank: int, header: PassHeader) -> None:
        coords, layout = header.coords, self._manifest.layout
        with self.reporting("place", path, "correct coords, or layout in the manifest"):
            check_place(self._manifest, coords, shown(path))
        before = self._place_of.setdefault(rank, coords)
        if before != coords:
            self.report("place", path, f"is at {dict(coords)}, and earlier passes of the rank at {dict(before)}", "record again")
        # Only a layout that accounts for every rank says that no two of them stand at one place.
        if math.prod(layout.values()) == self._manifest.world and self._places.setdefault(coords, rank) != rank:
            what = f"is at {dict(coords) or 'the only place'}, as is rank {self._places[coords]}"
            self._once("place", path, what, "give each rank its own coords", rank)

    def _check_stage(self, path: Path, rank: int, spec: TensorSpec, header: PassHeader) -> None:
        key, layers = parse_key(spec.key), self._manifest.model.get("num_layers")
        first, end = header.stage or (0, layers if isinstance(layers, int) else None)
        last = key.number if key.kind == "boundary" else None if key.number is None else key.number + 1
        outside = key.number is not None and (key.number < first or (end is not None and last is not None and last > end))
        early = key.kind in ("post_norm", "logits", "logprobs") and isinstance(layers, int) and end != layers
        if outside or early:
            what = f"holds {spec.key}, and the rank ran the layers {first} to {end} (end) of {layers or 'an unknown number'}"
            self._once("stage", path, what, "use global layer numbers, and give each rank its own stage", rank, spec.key)

    def _check_width(self, path: Path, rank: int, spec: TensorSpec) -> None:
        if parse_key(spec.key).kind != "boundary":
            return
        width = full_width(spec, self._manifest.layout)
        if self._width is None:
            self._width = (width, f"{spec.key} of rank {rank}")
        if width != self._width[0]:
            what = f"{spec.key} is {width} wide, and {self._width[1]} is {self._width[0]}"
            self._once(
                "width", path, what, "correct the axis of the tensor or the layout; is a shard missing?", rank, spec.key, width
            )

    def _once(self, code: str, path: Path, what: str, hint: str, *about: object) -> None:
        """Report only the first pass of a run in which the same is wrong in all."""
        if (code, *about) not in self._told:
            self._told.add((code, *about))
            self.report(code, path, f"{what} (told once for rank {about[0]})", hint)

    def _check_data(self, path: Path, header: PassHeader, handle: BinaryIO) -> None:
        index: dict[str, NDArray[Any]] = {}
        stored: dict[str, NDArray[Any]] = {}
        made: dict[str, tuple[NDArray[Any], NDArray[np.uint32]]] = {}
        known = len(self.problems)
        for name in header.layout.stored:
            blocks = self._checked_blocks(path, header, name, handle)
            if FINGERPRINT + name in header.layout.stored:
                made[name] = _fingerprints(blocks, header, self._manifest, name, path)
            elif name in COLUMNS:
                index[name] = np.frombuffer(b"".join(blocks), COLUMNS[name])
            elif name.startswith(FINGERPRINT):
                stored[name] = np.frombuffer(b"".join(blocks), "<u8").reshape(-1, 2)
            elif name.startswith(NONFINITE):
                stored[name] = np.frombuffer(b"".join(blocks), "<u4").reshape(-1, 2)
            else:
                collections.deque(blocks, maxlen=0)
        if len(self.problems) > known:
            return  # what follows from damaged data need not be told too
        for key, (prints, counts) in made.items():
            self._check_rows_of("fingerprint", path, FINGERPRINT + key, stored[FINGERPRINT + key], prints)
            if "counted" in header.layout.said[FINGERPRINT + key]:
                self._check_rows_of(
                    "nonfinite", path, NONFINITE + key, stored.get(NONFINITE + key, np.zeros_like(counts)), counts
                )
        self._check_counts(path, header, stored)
        with self.reporting("rows", path, "record again; the program that wrote it is wrong"):
            tokens, positions, requests, kinds = (index[name] for name in COLUMNS)
            make_rows(tokens, positions, requests, kinds, header.requests, where=shown(path))

    def _check_rows_of(self, code: str, path: Path, name: str, stored: NDArray[Any], made: NDArray[Any]) -> None:
        wrong = (made != stored).any(axis=1)
        if wrong.any():
            what = f"{name} is not that of the tensor itself in {wrong.sum()} rows, the first is {wrong.argmax()}"
            self.report(code, path, what, "record again; the program that wrote it is wrong")

    def _check_counts(self, path: Path, header: PassHeader, stored: Mapping[str, NDArray[Any]]) -> None:
        """Counts that no row of the tensor's width and type can have."""
        for name, counts in stored.items():
            if not name.startswith(NONFINITE):
                continue
            spec = header.layout.tensors[name.removeprefix(NONFINITE)]
            wrong = counts.sum(axis=1, dtype=np.uint64) > spec.width
            if DTYPES[spec.dtype].specials != "ieee":  # it has no infinity
                wrong |= counts[:, 1] > 0
            if wrong.any():
                what = (
                    f"{name} says {counts[wrong.argmax()].tolist()} ({', '.join(COUNTED)}) of row {wrong.argmax()}, and a row of"
                )
                what += f" {spec.key} has {spec.width} elements of {spec.dtype}"
                self.report("nonfinite", path, what, "record again; the program that wrote it is wrong")

    def _checked_blocks(self, path: Path, header: PassHeader, name: str, handle: BinaryIO) -> Iterator[bytes]:
        """The data of a tensor, whole rows at a time; reports at the end if it is not what was written."""
        begin, end = header.span(name)
        rows = header.layout.stored[name].shape[0]
        row = (end - begin) // rows if rows else 0
        step = max(row, BLOCK // row * row) if row else BLOCK
        checksum = 0
        handle.seek(begin)
        for at in range(begin, end, step):
            block = read_exactly(handle, min(step, end - at), path)
            checksum = zlib.crc32(block, checksum)
            yield block
        if f"{checksum:08x}" != header.checksum(name):
            self.report("data", path, f"{name} does not have its checksum: the data was damaged", "copy the file again")


def _fingerprints(
    blocks: Iterator[bytes], header: PassHeader, manifest: Manifest, name: str, path: Path
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The fingerprints of a tensor's rows, and their non-finite elements, while it is read."""
    spec = header.layout.tensors[name]
    width, dtype = math.prod(spec.shape[1:]), DTYPES[spec.dtype]
    begin = first_byte(spec, header.coords, manifest.layout, shown(path))
    empty = spec.shape[0] if not width else 0
    prints, counts = [np.zeros((empty, 2), np.uint64)], [np.zeros((empty, len(COUNTED)), np.uint32)]
    for block in blocks:
        rows = np.frombuffer(block, dtype.raw).reshape(-1, width)
        prints.append(fingerprint_rows(rows, first_byte=begin))
        counts.append(count_nonfinite(rows, dtype))
    return np.concatenate(prints), np.concatenate(counts)

"""The work: rows of one forward against rows of another, key by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.bits import BlockResult, compare_rows, ulp_distance
from specalign.compare.modes import BITS, Mode
from specalign.compare.pairing import Located
from specalign.compare.result import Problem
from specalign.compare.shelf import CACHE_BYTES, Shelf
from specalign.compare.tally import NO_CHANNEL, Place, Tally
from specalign.dump.dtypes import DTYPES, DType
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.keys import MAY_BE_INFINITE
from specalign.dump.nonfinite import AllowNonfinite, any_illegal, illegal, illegal_counts
from specalign.dump.passes import RawTensor

GATHER_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of one side that are gathered from scattered rows at a time."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """What holds for all rows.

    Attributes:
        mode: what counts as equal.
        edges: of the cells, in positions.
    """

    mode: Mode
    edges: tuple[int, ...]


class Worker:
    """Compares the pairs of one pairing: left and right are the two sides of it."""

    def __init__(self, left: Shelf, right: Shelf, positions: NDArray[np.int32], settings: Settings) -> None:
        self.left, self.right, self.positions, self.settings = left, right, positions, settings

    def run(self, pairs: Located) -> dict[str, Tally]:
        """One tally a key."""
        tallies = {key: Tally(len(self.settings.edges) - 1) for key in pairs.pairs.keys}
        left_is_outer = len(np.unique(pairs.left_forwards)) <= len(np.unique(pairs.right_forwards))
        for batch in pairs.batches(self._batch_rows(pairs)):
            several = len(batch.blocks()) > 1
            for key in pairs.pairs.keys:
                if several and self._compare_batch(tallies[key], key, batch):
                    continue
                for start, end in batch.blocks():
                    self._compare_block(tallies[key], key, batch.at(slice(start, end)), left_is_outer)
        return tallies

    def _batch_rows(self, pairs: Located) -> int:
        """Rows whose tensors, over all keys, take half of what may be open; large forwards are batches of their own."""
        sizes = []
        for shelf, forwards in ((self.left, pairs.left_forwards), (self.right, pairs.right_forwards)):
            first = int(forwards[0])
            sizes.append(shelf.size(first) // max(1, shelf.forwards[first].rows))
        return max(1, CACHE_BYTES // 2 // max(1, *sizes))

    def _compare_batch(self, tally: Tally, key: str, batch: Located) -> bool:
        """Small blocks together; False if they are too different for that."""
        a = self.left.gather(batch.left_forwards, batch.left_rows, key)
        b = None if a is None else self.right.gather(batch.right_forwards, batch.right_rows, key)
        if a is None or b is None or not self._comparable(a, b, key, batch):
            return False
        self._compare(tally, key, a, b, batch)
        return True

    def _compare_block(self, tally: Tally, key: str, block: Located, left_is_outer: bool) -> None:
        a = self.left.tensor(int(block.left_forwards[0]), key, whole=left_is_outer)
        b = self.right.tensor(int(block.right_forwards[0]), key, whole=not left_is_outer)
        if a is None or b is None or not self._comparable(a, b, key, block):
            return
        step = max(1, GATHER_BYTES // max(1, a.spec.width * a.dtype.size))
        hashed = a.spec.fingerprint or b.spec.fingerprint
        for start, end in block.stretches(step, split_runs=hashed):
            part = block.at(slice(start, end))
            self._compare(tally, key, _rows_of(a, part.left_rows), _rows_of(b, part.right_rows), part)

    def _comparable(self, a: RawTensor, b: RawTensor, key: str, block: Located) -> bool:
        if a.spec.dtype == b.spec.dtype and a.spec.width == b.spec.width:
            return True
        names = (f"side {side}" for side in block.pairs.sides)
        where = " against ".join(
            shelf.forwards[int(forwards[0])].where
            for shelf, forwards in ((self.left, block.left_forwards), (self.right, block.right_forwards))
        )
        if a.spec.dtype != b.spec.dtype:
            code, what = (
                "dtype-mismatch",
                " and ".join(f"{t.spec.dtype} on {name}" for t, name in zip((a, b), names, strict=True)),
            )
            next = "record both in one element type: a cast would hide the difference that it makes"
        else:
            code, what = (
                "width-mismatch",
                " and ".join(f"{t.spec.width} wide on {name}" for t, name in zip((a, b), names, strict=True)),
            )
            next = "is one of them a shard of a tensor-parallel model? Record all ranks, and which axis they share"
        self.left.problems.setdefault((code, key), Problem(code, f"{key} is {what}", where, "these forwards and more", next))
        return False

    def _compare(self, tally: Tally, key: str, a: RawTensor, b: RawTensor, part: Located) -> None:
        """Rows against rows: `a` and `b` have one row for each pair of `part`."""
        hashed = a.spec.fingerprint or b.spec.fingerprint
        x, y = a.data, b.data
        if hashed:
            self._look_for_nonfinite(tally, key, (("a", a), ("b", b)), part)
            x, y = (t.data if t.spec.fingerprint else fingerprint_rows(t.data) for t in (a, b))
        dtype = DTYPES["U64"] if hashed else a.dtype
        # A tolerance is for numbers that are rounded: routes and tokens are equal or not.
        mode = self.settings.mode if dtype.is_float else BITS
        tally.dtypes, tally.width, tally.fingerprint = (a.spec.dtype, b.spec.dtype), a.spec.width, hashed
        found = compare_rows(x, y, dtype, mode, allow_nonfinite=_allowed(key))
        self._count(tally, key, found, x, y, dtype, part)

    def _look_for_nonfinite(self, tally: Tally, key: str, sides: tuple[tuple[str, RawTensor], ...], part: Located) -> None:
        """Fingerprints do not tell infinities and NaN: the counts beside them do, and the side that has values."""
        positions = self.positions[part.pairs.numbers]
        for name, tensor in sides:
            if tensor.spec.fingerprint:
                found = _note_counts(tally, name, tensor, part, positions, _allowed(key))
            elif any_illegal(tensor.data, tensor.dtype, _allowed(key)):
                bad = illegal(tensor.data, tensor.dtype, _allowed(key))
                found = int(bad.sum())
                _note_bad(tally, name, bad, part, positions)
            else:
                found = 0
            tally.nonfinite_a += found if name == "a" else 0
            tally.nonfinite_b += found if name == "b" else 0

    def _count(
        self, tally: Tally, key: str, found: BlockResult, x: NDArray[Any], y: NDArray[Any], dtype: DType, part: Located
    ) -> None:
        mask, positions = found.row_mask, self.positions[part.pairs.numbers]
        tally.rows += found.rows
        tally.mismatching_elements += found.mismatches
        tally.max_ulp = max(tally.max_ulp, found.max_ulp)
        tally.max_abs = float(np.maximum(tally.max_abs, found.max_abs))
        tally.zero_signs += found.zero_signs
        tally.nonfinite_a += found.nonfinite_a
        tally.nonfinite_b += found.nonfinite_b
        ulps = None
        if found.mismatches:
            tally.mismatching_rows += int(np.count_nonzero(mask))
            tally.wrong.append(part.pairs.numbers[mask])
            tally.first = min(filter(None, (tally.first, _first(x, y, found, dtype, part, positions, tally.fingerprint))))
            fold = not found.mode.is_bits  # under a tolerance −0 is +0
            ulps = None if tally.fingerprint else ulp_distance(x[mask], y[mask], dtype, fold_zeros=fold).max(axis=1)
        if found.nonfinite_a or found.nonfinite_b:
            _note_nonfinite(tally, x, y, dtype, part, positions, key)
        tally.add_cells(np.searchsorted(np.asarray(self.settings.edges), positions, side="right") - 1, mask, ulps)


def _is_run(rows: NDArray[np.int32]) -> bool:
    return bool(rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all())


def _rows_of(tensor: RawTensor, rows: NDArray[np.int32]) -> RawTensor:
    chosen: Any = slice(int(rows[0]), int(rows[-1]) + 1) if _is_run(rows) else rows
    return RawTensor(tensor.spec, tensor.data[chosen], None if tensor.nonfinite is None else tensor.nonfinite[chosen])


def _allowed(key: str) -> AllowNonfinite:
    return "inf" if key in MAY_BE_INFINITE else "no"


def _first(
    x: NDArray[Any],
    y: NDArray[Any],
    found: BlockResult,
    dtype: DType,
    part: Located,
    positions: NDArray[np.int32],
    fingerprint: bool,
) -> Place:
    row = _lowest(np.flatnonzero(found.row_mask), part, positions)
    one = compare_rows(x[row : row + 1], y[row : row + 1], dtype, found.mode).first
    if one is None:
        raise RuntimeError(f"row {row} differs among others and not alone: a fault of specalign")
    bits_a, bits_b = (np.array([bits], dtype.raw) for bits in (one.bits_a, one.bits_b))
    meaningful = not fingerprint and np.isfinite([one.value_a, one.value_b]).all()
    return Place(
        int(positions[row]),
        int(part.pairs.numbers[row]),
        one.column,
        one.bits_a,
        one.bits_b,
        float("nan") if fingerprint else one.value_a,
        float("nan") if fingerprint else one.value_b,
        int(ulp_distance(bits_a, bits_b, dtype, fold_zeros=not found.mode.is_bits)[0]) if meaningful else -1,
        (int(part.left_forwards[row]), int(part.left_rows[row])),
        (int(part.right_forwards[row]), int(part.right_rows[row])),
    )


def _lowest(rows: NDArray[Any], part: Located, positions: NDArray[np.int32]) -> int:
    return int(rows[np.lexsort((part.pairs.numbers[rows], positions[rows]))[0]])


def _note_nonfinite(
    tally: Tally, x: NDArray[Any], y: NDArray[Any], dtype: DType, part: Located, positions: NDArray[np.int32], key: str
) -> None:
    for side, data in (("a", x), ("b", y)):
        _note_bad(tally, side, illegal(data, dtype, _allowed(key)), part, positions)


def _note_bad(tally: Tally, side: str, bad: NDArray[np.bool_], part: Located, positions: NDArray[np.int32]) -> None:
    if bad.any():
        row = _lowest(np.flatnonzero(bad.any(axis=1)), part, positions)
        place = Place(int(positions[row]), int(part.pairs.numbers[row]), int(bad[row].argmax()))
        tally.first_nonfinite = min(filter(None, (tally.first_nonfinite, (place, side))))


def _note_counts(
    tally: Tally, side: str, tensor: RawTensor, part: Located, positions: NDArray[np.int32], allow: AllowNonfinite
) -> int:
    """The illegal elements that were counted beside fingerprints; 0 if they were not counted, which a note of the report says."""
    if tensor.nonfinite is None or not tensor.nonfinite.any():
        return 0
    counts = illegal_counts(tensor.nonfinite, allow)
    if counts.any():
        row = _lowest(np.flatnonzero(counts), part, positions)
        place = Place(int(positions[row]), int(part.pairs.numbers[row]), NO_CHANNEL)
        tally.first_nonfinite = min(filter(None, (tally.first_nonfinite, (place, side))))
    return int(counts.sum())


def merge_tallies(parts: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    """One tally a key out of several processes' ones."""
    merged: dict[str, Tally] = {}
    for part in parts:
        for key, tally in part.items():
            merged.setdefault(key, Tally(tally.cells)).merge(tally)
    return merged

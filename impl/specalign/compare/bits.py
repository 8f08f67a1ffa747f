"""Raw-bit comparison of two tensors, row by row: one fast pass while everything is equal, figures where it is not.

Both sides are `[rows, width]` unsigned integers that hold the bits of one element type (`specalign.dump.dtypes`). Work goes in
blocks that stay in a core's second-level cache. A block with the same bits costs one comparison and one look for non-finite
values; only other blocks are decoded.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from specalign.compare.modes import BITS, Mode
from specalign.compare.values import (
    NAN_DISTANCE,
    abs_difference,
    decode,
    is_nan,
    opposite_zeros,
    ulp_distance,
    within,
)
from specalign.dump.dtypes import DType
from specalign.dump.nonfinite import AllowNonfinite, Raw, any_illegal, check_raw, illegal, nonfinite

__all__ = [
    "BLOCK_BYTES",
    "NAN_DISTANCE",
    "AllowNonfinite",
    "BlockResult",
    "Mismatch",
    "compare_rows",
    "decode",
    "nonfinite",
    "ulp_distance",
]

Bool = npt.NDArray[np.bool_]

BLOCK_BYTES: Final = 512 * 1024
"""Most bytes of one side that are looked at together."""

DECODED_ELEMENTS: Final = 8 * 1024
"""Most elements that are decoded together. Temporary arrays of float64 then stay in the cache and below the size from which
malloc asks the kernel for fresh pages each time, which made a differing tensor ten times slower."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One pair of elements that the mode does not call equal.

    Attributes:
        row, column: place in the compared arrays.
        bits_a, bits_b: the raw bits of each side.
        value_a, value_b: the same decoded to float64 (integers beyond 2^53 are rounded).
        digits: hexadecimal digits of one element.
    """

    row: int
    column: int
    bits_a: int
    bits_b: int
    value_a: float
    value_b: float
    digits: int

    def format(self) -> str:
        """`row 3, column 7: 0x3f80 (1.0) against 0x3f81 (1.0078125)`."""
        a, b = f"0x{self.bits_a:0{self.digits}x}", f"0x{self.bits_b:0{self.digits}x}"
        return f"row {self.row}, column {self.column}: {a} ({self.value_a!r}) against {b} ({self.value_b!r})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockResult:
    """What `compare_rows` found.

    Attributes:
        dtype: name of the element type.
        mode: how elements were compared.
        rows, elements: how many were compared, of one side.
        row_mask: bool `[rows]`, True where a row has a mismatching element; read-only.
        mismatches: elements that `mode` does not call equal.
        max_ulp: largest `ulp_distance` over all elements whose bits differ, those within the tolerance too; 0 if none differ;
            `NAN_DISTANCE` if one of such a pair is NaN. Under a tolerance −0 counts as +0.
        max_abs: largest abs(a − b) over the same elements, float64: nan if one of such a pair is NaN, inf if one is infinite or
            the difference of two F64 is beyond float64.
        nonfinite_a, nonfinite_b: non-finite elements that `allow_nonfinite` does not make legal, of each side; equal ones count.
        first: first mismatching element in row-major order, or None.
        zero_signs: elements that are −0 on one side and +0 on the other. Mismatches in mode bits, equal under a tolerance.
        nan_equal_bits: elements that are the same NaN on both sides: equal, but also counted as non-finite.
    """

    dtype: str
    mode: Mode
    rows: int
    elements: int
    row_mask: Bool
    mismatches: int
    max_ulp: int
    max_abs: float
    nonfinite_a: int
    nonfinite_b: int
    first: Mismatch | None
    zero_signs: int
    nan_equal_bits: int

    @property
    def equal(self) -> bool:
        """Whether `mode` calls every element equal; says nothing about non-finite values."""
        return self.mismatches == 0

    @property
    def ok(self) -> bool:
        """Whether something was compared, all of it is equal and none of it is an illegal non-finite value."""
        return self.equal and self.elements > 0 and not (self.nonfinite_a or self.nonfinite_b)

    def format(self) -> str:
        """One to four lines of plain text: the verdict, then where and by how much."""
        lines = [f"{self._verdict()}: {self.rows} rows, {self.elements} elements of {self.dtype}, compared by {self.mode}"]
        if self.first is not None:
            lines.append(f"    {self.mismatches} elements in {int(self.row_mask.sum())} rows; first at {self.first.format()}")
        if self.max_ulp:
            ulp = "a NaN" if self.max_ulp == NAN_DISTANCE else f"{self.max_ulp} ulp"
            zeros = f"; {self.zero_signs} differ in the sign of zero" if self.zero_signs else ""
            lines.append(f"    largest difference: {ulp}, {self.max_abs!r} absolute{zeros}")
        if self.nonfinite_a or self.nonfinite_b:
            same = f", {self.nan_equal_bits} the same NaN on both" if self.nan_equal_bits else ""
            lines.append(f"    non-finite: {self.nonfinite_a} elements of a, {self.nonfinite_b} of b{same}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.elements == 0:
            return "nothing compared"
        if not self.equal:
            return "mismatch"
        return "equal" if self.ok else "equal, but not finite"


def compare_rows(a: Raw, b: Raw, dtype: DType, mode: Mode = BITS, *, allow_nonfinite: AllowNonfinite = "no") -> BlockResult:
    """Compare two tensors of one element type.

    Args:
        a, b: raw bits `[rows, width]` in `dtype.raw`; views with any strides, but rows whose elements lie side by side are fast.
        dtype: the element type of both.
        mode: what counts as equal.
        allow_nonfinite: "no" counts every NaN and infinity as non-finite; "inf" is for logits and log-probs, where −inf is
            legal. The counts never change what is equal: whoever calls decides with `ok`.

    Memory beyond the arguments: the row mask, one block, and less than another one while parts of a block are decoded.

    Raises:
        ValueError: shapes differ, an array is not two-dimensional, or its numpy dtype is not `dtype.raw`.
    """
    a, b = np.asarray(a), np.asarray(b)
    _check_pair(a, b, dtype, allow_nonfinite)
    tally = _Tally(dtype, mode, allow_nonfinite, np.zeros(a.shape[0], dtype=np.bool_))
    scratch = _scratch.get(min(a.size, BLOCK_BYTES))
    for rows, columns in _blocks(a.shape, BLOCK_BYTES // dtype.size):
        x, y = a[rows, columns], b[rows, columns]
        if same_bits(x, y, scratch):
            tally.add_same(x)
        else:
            tally.add_different(x, y, rows.start, columns.start)
    return tally.result(a.size)


class _Scratch(threading.local):
    """Memory that a thread keeps: fresh pages from the system, block after block, would cost more than the comparison."""

    def __init__(self) -> None:
        self.flags = np.empty(0, np.bool_)

    def get(self, size: int) -> Bool:
        """So many flags, of any values."""
        if len(self.flags) < size:
            self.flags = np.empty(size, np.bool_)
        return self.flags[:size]


_scratch: Final = _Scratch()


def _check_pair(a: Raw, b: Raw, dtype: DType, allow_nonfinite: str) -> None:
    if a.dtype != b.dtype:
        raise ValueError(f"compare_rows: a holds {a.dtype.name}, b holds {b.dtype.name}; raw bits of one type are needed")
    check_raw(a, dtype)
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"compare_rows: a is {list(a.shape)}, b is {list(b.shape)}; both must be the same [rows, width]")
    if allow_nonfinite not in get_args(AllowNonfinite):
        raise ValueError(f"compare_rows: allow_nonfinite is {allow_nonfinite!r}, not one of {get_args(AllowNonfinite)}")


def _blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of at most `most` elements in row-major order: some rows, or a part of one row that is longer than a block."""
    rows, width = shape
    if rows == 0 or width == 0:
        return
    tall = max(1, most // width)
    if tall > 8:
        tall -= tall % 8  # rows of any width then add up to whole 64-bit words
    for row in range(0, rows, tall):
        for column in range(0, width, most):
            yield slice(row, min(row + tall, rows)), slice(column, min(column + most, width))


def same_bits(x: Raw, y: Raw, scratch: Bool | None = None) -> bool:
    """Whether two arrays of one shape and type hold the same bits; as long words where they can be read so."""
    if x.flags.c_contiguous and y.flags.c_contiguous and x.nbytes % 8 == 0:
        x, y = x.reshape(-1).view(np.uint64), y.reshape(-1).view(np.uint64)
    out = None if scratch is None else scratch[: x.size].reshape(x.shape)
    return not np.not_equal(x, y, out=out).any()


@dataclasses.dataclass(slots=True)
class _Tally:
    """The figures so far."""

    dtype: DType
    mode: Mode
    allow: AllowNonfinite
    row_mask: Bool
    mismatches: int = 0
    max_ulp: int = 0
    max_abs: float = 0.0
    nonfinite_a: int = 0
    nonfinite_b: int = 0
    first: Mismatch | None = None
    zero_signs: int = 0
    nan_equal_bits: int = 0

    def add_same(self, x: Raw) -> None:
        """A block with the same bits on both sides: one side is enough."""
        if any_illegal(x, self.dtype, self.allow):
            count = int(illegal(x, self.dtype, self.allow).sum())
            self.nonfinite_a += count
            self.nonfinite_b += count
            self.nan_equal_bits += int(is_nan(x, self.dtype).sum())

    def add_different(self, x: Raw, y: Raw, row: int, column: int) -> None:
        """A block that begins at `row`, `column` and has at least one element whose bits differ."""
        for rows, columns in _blocks(x.shape, DECODED_ELEMENTS):
            self._add_part(x[rows, columns], y[rows, columns], row + rows.start, column + columns.start)

    def _add_part(self, x: Raw, y: Raw, row: int, column: int) -> None:
        differ = np.not_equal(x, y)
        if any_illegal(x, self.dtype, self.allow):
            self.nonfinite_a += int(illegal(x, self.dtype, self.allow).sum())
            self.nan_equal_bits += int((is_nan(x, self.dtype) & ~differ).sum())
        if any_illegal(y, self.dtype, self.allow):
            self.nonfinite_b += int(illegal(y, self.dtype, self.allow).sum())
        wrong = self._measure(x, y, differ) if differ.any() else differ
        rows: Bool = np.any(wrong, axis=1)
        if rows.any():
            self.row_mask[row : row + rows.size] |= rows
            self.mismatches += int(wrong.sum())
            if self.first is None:
                self.first = self._mismatch(x, y, int(wrong.argmax()), row, column)

    def _measure(self, x: Raw, y: Raw, differ: Bool) -> Bool:
        """Take the distances where bits differ; returns where `mode` does not call them equal."""
        pairs = x[differ], y[differ]
        ulp = ulp_distance(*pairs, self.dtype, fold_zeros=not self.mode.is_bits)
        self.max_ulp = max(self.max_ulp, int(ulp.max()))
        self.max_abs = float(np.maximum(self.max_abs, abs_difference(*pairs, self.dtype).max()))  # keeps a NaN
        self.zero_signs += int(opposite_zeros(*pairs, self.dtype).sum())
        if self.mode.is_bits:
            return differ
        wrong = np.zeros_like(differ)
        wrong[differ] = ~within(*pairs, self.dtype, self.mode)
        return wrong

    def _mismatch(self, x: Raw, y: Raw, index: int, row: int, column: int) -> Mismatch:
        i, j = divmod(index, x.shape[1])
        value_a, value_b = (float(decode(side[i, j : j + 1], self.dtype)[0]) for side in (x, y))
        return Mismatch(row + i, column + j, int(x[i, j]), int(y[i, j]), value_a, value_b, 2 * self.dtype.size)

    def result(self, elements: int) -> BlockResult:
        """The figures, frozen."""
        self.row_mask.flags.writeable = False
        return BlockResult(
            dtype=self.dtype.name,
            mode=self.mode,
            rows=self.row_mask.size,
            elements=elements,
            row_mask=self.row_mask,
            mismatches=self.mismatches,
            max_ulp=self.max_ulp,
            max_abs=self.max_abs,
            nonfinite_a=self.nonfinite_a,
            nonfinite_b=self.nonfinite_b,
            first=self.first,
            zero_signs=self.zero_signs,
            nan_equal_bits=self.nan_equal_bits,
        )

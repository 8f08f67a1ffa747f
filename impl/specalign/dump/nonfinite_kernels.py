"""Non-finite elements in Triton, for the kernel that fingerprints rows. Class *exact*: the counts of `nonfinite_torch.py`.

They are counted in two steps, since rows have none as a rule. While a row is read, a carry tells whether any of its elements may
be non-finite: three operations a word, whatever the number of elements in it. Only a program that saw such a carry reads its rows
once more and counts. Codes are compared as integers, for no cast of a NaN is the same on every device.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,unused-ignore"

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import triton
import triton.language as tl

from specalign.dump.dtypes import DType
from specalign.dump.nonfinite import has_nonfinite

_SPECIALS: Final = {"": 0, "ieee": 1, "nan": 2, "negative_zero": 3}
"""How the kernel is told which codes are not finite; 0: none is counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codes:
    """How the kernel finds non-finite elements in units of so many bits.

    Attributes:
        specials: one of `_SPECIALS`.
        element: bits of an element.
        first: the smallest non-finite code without a sign, of F64 its high half; of FNUZ types the one such code.
        signs: the signs of a unit's elements.
        carry: what lifts the smallest non-finite magnitude of each element (of FNUZ types: every one but zero) to its sign.
    """

    specials: int = 0
    element: int = 0
    first: int = 0
    signs: int = 0
    carry: int = 0

    @staticmethod
    @functools.cache  # each call of a kernel asks, and there are as many answers as element types and units
    def of(dtype: DType | None, bits: int) -> Codes:
        """Those of a type in units of `bits`; nothing is counted for a type that has no non-finite codes, or without a type."""
        if dtype is None or not has_nonfinite(dtype):
            return Codes()
        size = 8 * dtype.size
        unit = min(bits, size)  # the high half of F64 holds its sign and exponent
        sign = 1 << (unit - 1)
        zero = dtype.specials == "negative_zero"
        first = sign if zero else dtype.first_nonfinite >> (size - unit)
        carry = sign - 1 if zero else sign - first
        signs, carries = (sum(value << at for at in range(0, bits, unit)) for value in (sign, carry))
        return Codes(_SPECIALS[dtype.specials], size, first, signs, carries)


@triton.jit
def load_units(place: tl.tensor, mask: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Units as uint32, 0 where the mask is not set."""
    unit = tl.load(place, mask=mask, other=0, eviction_policy="evict_first")
    if BITS == 32:
        u = unit.to(tl.uint32, bitcast=True)
    else:
        u = unit.to(tl.uint32) & ((1 << BITS) - 1)
    return u


@triton.jit
def any_of_four(u: tl.tensor) -> tl.tensor:
    """The bits that any of each four neighbours has: uint32 [ROWS, BLOCK] to [ROWS, BLOCK // 4], in one thread."""
    even, odd = tl.split(tl.reshape(u, [u.shape[0], u.shape[1] // 2, 2]))
    pairs = even | odd
    even, odd = tl.split(tl.reshape(pairs, [u.shape[0], u.shape[1] // 4, 2]))
    return even | odd


@triton.jit
def count_units(
    row_units: tl.tensor,
    ours: tl.tensor,
    count: tl.tensor,
    BITS: tl.constexpr,
    SPECIALS: tl.constexpr,
    ELEMENT: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The non-finite elements of rows: int64 [ROWS, 1], NaN and +inf in the low half, -inf in the high half."""
    never = tl.zeros([ROWS, BLOCK // 4], tl.uint32)
    negative = tl.zeros([ROWS, BLOCK // 4], tl.uint32)
    for start in tl.range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        u = load_units(row_units + at, (at < count) & ours, BITS)
        if ELEMENT == 64:  # a unit is half an element; the low half only tells infinity from NaN
            low, high = tl.split(tl.reshape(u, [ROWS, BLOCK // 2, 2]))
            special, infinite = (high & 0x7FFFFFFF) >= FIRST, (high == 0x80000000 + FIRST) & (low == 0)
            never += _sum_each(special & (infinite == 0), 2)
            negative += _sum_each(infinite, 2)
        else:
            for shift in tl.range(0, BITS, ELEMENT):
                code = (u >> shift) & ((1 << ELEMENT) - 1)
                if SPECIALS == 1:
                    infinite = code == (1 << (ELEMENT - 1)) + FIRST
                    never += _sum_each(((code & ((1 << (ELEMENT - 1)) - 1)) >= FIRST) & (infinite == 0), 4)
                    negative += _sum_each(infinite, 4)
                elif SPECIALS == 2:
                    never += _sum_each((code & ((1 << (ELEMENT - 1)) - 1)) >= FIRST, 4)
                else:
                    never += _sum_each(code == FIRST, 4)
    low_half = tl.sum(never.to(tl.uint64), axis=1, keep_dims=True)
    high_half = tl.sum(negative.to(tl.uint64), axis=1, keep_dims=True)
    return (low_half + (high_half << 32)).to(tl.int64, bitcast=True)


@triton.jit
def _sum_each(mask: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """How many of each COUNT neighbours are set: uint32 [ROWS, columns] to [ROWS, columns // COUNT], in one thread."""
    return tl.sum(tl.reshape(mask.to(tl.uint32), [mask.shape[0], mask.shape[1] // COUNT, COUNT]), axis=2)

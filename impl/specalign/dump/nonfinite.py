"""Infinities and NaN among raw bits: which codes they are, which of them are legal, how many a row has. Integers, numpy only.

A fingerprint tells equal bits from others and nothing of what they mean, so the non-finite elements of each row are counted
beside it: `[rows, 2]`, in the order of `COUNTED`. Like fingerprints, the counts of a row's shards add up.

`nonfinite_torch.py` holds the counts of tensors, on any device.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from specalign.dump.dtypes import DType
from specalign.dump.errors import DumpError

Raw: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Bits of elements, one unsigned integer each."""

UInt32s: TypeAlias = npt.NDArray[np.uint32]

AllowNonfinite: TypeAlias = Literal["no", "inf"]
"""Which non-finite values are legal: none, or -inf (a logit or log-prob that was masked out). NaN and +inf never are."""

COUNTED: Final = ("NaN and +inf", "-inf")
"""What each column counts: what is legal nowhere, and what is legal in logits and log-probs."""

COUNT_LIMIT: Final = 1 << 32
"""Rows of so many elements or more are not counted: a count is a uint32."""

_BLOCK: Final = 1 << 18  # elements: stays in the cache of one core


def check_raw(raw: Raw, dtype: DType) -> None:
    """Refuse an array that does not hold raw bits of `dtype`.

    Raises:
        ValueError: the numpy dtype differs from `dtype.raw`.
    """
    if raw.dtype != np.dtype(dtype.raw):
        raise ValueError(f"raw bits of {dtype.name} are {np.dtype(dtype.raw).name}, this array holds {raw.dtype.name}")


def nonfinite(raw: Raw, dtype: DType) -> npt.NDArray[np.bool_]:
    """Where an element is infinite or NaN; nowhere for integers and BOOL."""
    check_raw(raw, dtype)
    word = raw.dtype.type
    if dtype.specials == "":
        return np.zeros(raw.shape, dtype=np.bool_)
    if dtype.specials == "negative_zero":
        return np.equal(raw, word(dtype.sign))
    top = word(dtype.first_nonfinite)
    return np.equal(np.bitwise_and(raw, top), top)


def illegal(raw: Raw, dtype: DType, allow: AllowNonfinite) -> npt.NDArray[np.bool_]:
    """Where an element is non-finite and `allow` does not make it legal."""
    special = nonfinite(raw, dtype)
    if allow == "inf" and dtype.specials == "ieee":
        special &= raw != raw.dtype.type(dtype.sign | dtype.first_nonfinite)
    return special


def any_illegal(raw: Raw, dtype: DType, allow: AllowNonfinite) -> bool:
    """`illegal(raw, dtype, allow).any()`, without a temporary array.

    The codes of a sign are in order of magnitude, so that the non-finite ones are the largest: as signed integers among the
    positive, as unsigned integers among the negative. Two maxima decide.
    """
    check_raw(raw, dtype)
    if dtype.specials == "" or raw.size == 0:
        return False
    signed = raw.view(signed_type(dtype))
    if dtype.specials == "negative_zero":
        return bool(signed.min() == np.iinfo(signed.dtype).min)
    top = dtype.first_nonfinite
    legal_infinity = allow == "inf" and dtype.specials == "ieee"
    return int(signed.max()) >= top or int(raw.max()) >= (dtype.sign | top) + legal_infinity


def has_nonfinite(dtype: DType) -> bool:
    """Whether a type has infinities or NaN at all: floats do."""
    return dtype.specials != ""


def count_nonfinite(rows: Raw, dtype: DType) -> UInt32s:
    """The non-finite elements of each row: uint32 `[rows, 2]`, one column for each of `COUNTED`.

    Args:
        rows: `[rows, ...]` raw bits in `dtype.raw`, of any strides; everything behind the first axis is the row.
        dtype: the element type; integers and BOOL give zeros.

    Raises:
        ValueError: the numpy dtype differs from `dtype.raw`.
        DumpError: rows of 2^32 elements or more.
    """
    check_raw(rows, dtype)
    counts = np.zeros((len(rows), len(COUNTED)), np.uint32)
    if not has_nonfinite(dtype) or not rows.size:
        return counts
    check_width(rows.size // len(rows))
    step = max(1, _BLOCK * len(rows) // rows.size)
    for at in range(0, len(rows), step):
        block = rows[at : at + step].reshape(min(step, len(rows) - at), -1)
        if any_illegal(block, dtype, "no"):
            never = illegal(block, dtype, "inf")
            counts[at : at + step, 0] = np.count_nonzero(never, axis=1)
            counts[at : at + step, 1] = np.count_nonzero(nonfinite(block, dtype) & ~never, axis=1)
    return counts


def check_width(elements: int) -> None:
    """Raises `DumpError` unless the elements of a row can be counted."""
    if elements >= COUNT_LIMIT:
        raise DumpError(
            f"a row has {elements} elements, and non-finite ones are counted in rows of fewer than {COUNT_LIMIT}. Cut the rows"
        )


def illegal_counts(counts: UInt32s, allow: AllowNonfinite) -> npt.NDArray[np.uint64]:
    """The elements of each row that `allow` does not make legal, out of `[rows, 2]` counts: uint64 `[rows]`."""
    total: npt.NDArray[np.uint64] = counts[:, : 1 if allow == "inf" else 2].sum(axis=1, dtype=np.uint64)
    return total


def unpack_counts(packed: npt.NDArray[Any]) -> UInt32s:
    """Counts that come as one 64-bit integer a row, the first column in its low half (see `nonfinite_torch.py`)."""
    return np.ascontiguousarray(packed).astype("<u8", copy=False).view("<u4").reshape(-1, len(COUNTED))


def signed_type(dtype: DType) -> str:
    """numpy's name of the signed integer of a type's size."""
    return f"<i{dtype.size}"

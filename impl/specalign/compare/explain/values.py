"""Causes that show in the values: another boundary, the norm, the residual, an addend."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.bits import ulp_distance
from specalign.compare.explain.sample import SIDES, Sample
from specalign.compare.result import Explanation, Side
from specalign.compare.values import decode, is_nan
from specalign.dump.dtypes import DType
from specalign.dump.keys import POST_NORM_KEY, boundary_key
from specalign.dump.sums import add_rounded

MOST_ULP: Final = 2
"""How far a sum that is taken here in another order than the engine's may be from the engine's, in ULP of the largest addend."""


def boundary_shifted(sample: Sample) -> Explanation | None:
    """One side's boundary b has the bits of the other side's boundary b + 1 or b − 1, in every row."""
    if sample.key.kind != "boundary" or sample.key.number is None:
        return None
    b = sample.key.number
    for side, other in SIDES:
        for step in (1, -1):
            if b + step >= 0 and sample.same(side, boundary_key(b), other, boundary_key(b + step)):
                return sample.explanation(
                    "boundary-shifted",
                    f"boundary {b} of side {side} is boundary {b + step} of side {other}, bit for bit in {len(sample.rows)} rows",
                    f"side {side} counts layers differently by {step:+d}: are its ids outputs of blocks or boundaries?",
                )
    return None


def post_norm(sample: Sample) -> Explanation | None:
    """One side's last boundary has the bits of the other side's state after the final norm."""
    if sample.key.kind != "boundary":
        return None
    for side, other in SIDES:
        if sample.same(side, sample.key.text, other, POST_NORM_KEY):
            return sample.explanation(
                "post-norm",
                f"{sample.key.text} of side {side} is post_norm of side {other}, bit for bit in {len(sample.rows)} rows",
                f"side {side} captures behind the final norm: take the state that the norm reads",
            )
    return None


def residual_unadded(sample: Sample) -> Explanation | None:
    """One side's value plus the stream before the block gives the other side's value."""
    return _residual(
        sample,
        "residual-not-added",
        lambda mine, other, before, dtype: (add_rounded(mine, before, dtype.name), other),
        "{key} of side {side} plus boundary {before} gives {key} of side {other} in {rows} rows: the residual is not in it",
        "side {side} captures what the block adds: add the residual that the block hands on",
    )


def residual_twice(sample: Sample) -> Explanation | None:
    """One side's value is the other's plus the stream before the block once more."""
    return _residual(
        sample,
        "residual-twice",
        lambda mine, other, before, dtype: (mine, add_rounded(other, before, dtype.name)),
        "{key} of side {side} is that of side {other} plus boundary {before} once more, in {rows} rows",
        "side {side} adds the residual to a sum that already holds it",
    )


def _residual(sample: Sample, cause: str, sums: Any, text: str, next: str) -> Explanation | None:
    if sample.key.kind != "boundary" or not sample.key.number:
        return None
    before_key = boundary_key(sample.key.number - 1)
    for side, other in SIDES:
        mine, theirs, before = (
            sample.aligned.tensor(where, key, sample.rows)
            for where, key in ((side, sample.key.text), (other, sample.key.text), (other, before_key))
        )
        if mine is None or theirs is None or before is None or not _alike(mine, theirs, before):
            continue
        dtype = mine[1]
        if dtype.name not in ("BF16", "F16", "F32"):
            return None
        parts = (mine[0], theirs[0], before[0])
        left, right = sums(*parts, dtype)
        # Where the stream is too small to tell, it fits whatever happened.
        if _near(mine[0], theirs[0], dtype, parts) or not _near(left, right, dtype, parts):
            continue
        # "Not in the one" and "twice in the other" are the same sum: the stream is in the smaller value or it is not.
        smaller = mine if cause == "residual-not-added" else theirs
        if (_share(decode(before[0], dtype), decode(smaller[0], dtype)) >= 0.5) == (cause == "residual-twice"):
            words = {
                "key": sample.key.text,
                "side": side,
                "other": other,
                "before": sample.key.number - 1,
                "rows": len(sample.rows),
            }
            return sample.explanation(cause, text.format(**words), next.format(**words))
    return None


def _share(stream: NDArray[np.float64], value: NDArray[np.float64]) -> float:
    """How much of the stream is in a value, by least squares: about 1 if it was added, about 0 if not."""
    return float((stream * value).sum() / max(float((stream * stream).sum()), np.finfo(np.float64).tiny))


def partial_sums(sample: Sample) -> Explanation | None:
    """The ranks of one side hold different values of one tensor, and these add up to what the other side has."""
    for side, other in SIDES:
        rows = sample.aligned.in_one_forward(side, sample.key.text, sample.rows)
        theirs = sample.aligned.tensor(other, sample.key.text, rows)
        copies = sample.aligned.copies(side, sample.key.text, rows)
        if theirs is None or len(copies) < 2 or not _alike(theirs, *copies) or np.array_equal(copies[0][0], copies[1][0]):
            continue
        dtype = theirs[1]
        addends = np.stack([decode(data, dtype) for data, _ in copies])
        before = _before(sample, other, rows)
        wanted = decode(theirs[0], dtype)
        # The residual is in every rank's value, in one rank's, or in none.
        for extra in (0.0, *(() if before is None else ((len(copies) - 1) * before, -before))):
            if _close(addends.sum(axis=0) - extra, wanted, dtype, np.concatenate([addends, wanted[None]])):
                return sample.explanation(
                    "partial-sum",
                    f"{sample.key.text} of the {len(copies)} ranks of side {side} adds up to that of side {other} in"
                    f" {len(rows)} rows",
                    f"side {side} captures before the all-reduce: record behind it",
                    len(rows),
                    len(rows),
                )
    return None


def _before(sample: Sample, side: Side, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
    if sample.key.kind != "boundary" or not sample.key.number:
        return None
    found = sample.aligned.tensor(side, boundary_key(sample.key.number - 1), rows)
    return None if found is None else decode(*found)


def _alike(*tensors: tuple[NDArray[Any], DType]) -> bool:
    return len({(data.shape, dtype.name) for data, dtype in tensors}) == 1


def _near(left: NDArray[Any], right: NDArray[Any], dtype: DType, parts: tuple[NDArray[Any], ...]) -> bool:
    """Equal but for the rounding of one sum: the values cancel, so that the distance counts in ULP of the largest part."""
    if is_nan(left, dtype).any() or is_nan(right, dtype).any():
        return False
    if (ulp_distance(left, right, dtype) <= 1).all():
        return True
    return _close(decode(left, dtype), decode(right, dtype), dtype, np.stack([decode(part, dtype) for part in parts]))


def _close(left: NDArray[np.float64], right: NDArray[np.float64], dtype: DType, parts: NDArray[np.float64]) -> bool:
    largest = np.maximum(np.abs(parts).max(axis=0), np.finfo(np.float64).tiny)
    unit = 2.0 ** (np.floor(np.log2(largest)) - dtype.mantissa)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(left - right) <= MOST_ULP * len(parts) * unit).all())

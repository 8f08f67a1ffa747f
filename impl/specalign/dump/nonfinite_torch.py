"""Non-finite elements of tensors, counted on the device where they lie. Class *exact*: the counts of `nonfinite.py`.

Nothing is cast to a float: codes are compared as integers, since devices and emulators differ in what a cast makes of a NaN.
Both counts of a row travel as one int64, a column beside the two lanes of its fingerprint: the low half counts NaN and +inf, the
high half −inf. The halves do not run into each other, for a row has fewer than 2^32 elements; so they add up over shards.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specalign.dump.dtypes import BY_TORCH_NAME, DType
from specalign.dump.errors import DumpError
from specalign.dump.nonfinite import check_width, has_nonfinite

_BLOCK: Final = 1 << 20  # elements, 8 MiB as int64
_RAW: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def element_type(tensor: Tensor) -> DType:
    """The element type, as a dump names it.

    Raises:
        DumpError: a type that no dump holds, whose non-finite codes are unknown.
    """
    dtype = BY_TORCH_NAME.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise DumpError(f"the non-finite elements of {tensor.dtype} are not known: a dump holds {', '.join(BY_TORCH_NAME)}")
    return dtype


def packed_counts(rows: Tensor) -> Tensor:
    """The non-finite elements of each row of `[rows, width]`: int64 `[rows]`, NaN and +inf in the low half, −inf in the high one.

    Args:
        rows: as `fingerprint_torch.flat_rows` gives them.

    Raises:
        DumpError: a type that no dump holds, or rows of 2^32 elements or more.
    """
    dtype = element_type(rows)
    result = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    if not has_nonfinite(dtype):
        return result
    check_width(rows.shape[1])
    for left in range(0, rows.shape[1], _BLOCK):
        chunk = rows[:, left : left + _BLOCK]
        step = max(1, _BLOCK // chunk.shape[1])
        for top in range(0, len(chunk), step):
            block = chunk[top : top + step].clone(memory_format=torch.contiguous_format).view(_RAW[dtype.size])
            never, negative_infinity = _specials(block.to(torch.int64), dtype)
            result[top : top + step] += never.sum(dim=1) + (negative_infinity.sum(dim=1) << 32)
    return result


def _specials(codes: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    """Which of the codes, int64 with any bits above those of the type, are NaN or +inf, and which are −inf."""
    magnitude = codes & (dtype.sign - 1)
    negative = (codes >> (8 * dtype.size - 1) & 1) == 1
    if dtype.specials == "negative_zero":
        return (magnitude == 0) & negative, torch.zeros_like(negative)
    special = magnitude >= dtype.first_nonfinite
    infinity = magnitude == dtype.first_nonfinite if dtype.specials == "ieee" else torch.zeros_like(special)
    return special & ~(infinity & negative), infinity & negative

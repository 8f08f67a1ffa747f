"""Rows of Megatron's packed sequences: several after each other in one batch row, cut by `cu_seqlens`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specalign.dump.errors import DumpError
from specalign.dump.keys import RowKind
from specalign.dump.readers.entries import FileTensor
from specalign.dump.rows import NO_REQUEST, Rows, make_rows


def packed_rows(tokens: NDArray[np.int64], cu_seqlens: NDArray[np.int64] | None, prefix: str, where: str) -> Rows:
    """One request a sequence, `<prefix>/<sequence>`, with positions from 0. What lies behind the last sequence and sequences of
    nothing but token 0 are padding, as slime's comparer takes them.

    Args:
        tokens: int64 `[rows]`.
        cu_seqlens: where each sequence begins, and the end of the last, int64; None if all rows are one sequence.

    Raises:
        DumpError: bounds that do not begin at 0, fall, or end behind the last row.
    """
    bounds = np.array([0, len(tokens)]) if cu_seqlens is None else cu_seqlens
    if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise DumpError(f"{where}: cu_seqlens is {bounds.tolist()[:12]}; it must begin at 0 and never fall")
    if bounds[-1] > len(tokens):
        raise DumpError(
            f"{where}: cu_seqlens ends at {int(bounds[-1])}, and there are {len(tokens)} tokens: under context parallel a rank"
            " holds slices, and which ones is not recorded; dump with context parallel size 1"
        )
    positions = np.zeros(len(tokens), np.int64)
    requests = np.full(len(tokens), NO_REQUEST, np.int32)
    kinds = np.full(len(tokens), RowKind.PADDING, np.uint8)
    ids: list[str] = []
    for sequence, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        positions[begin:end] = np.arange(end - begin)
        if tokens[begin:end].any():
            requests[begin:end] = len(ids)
            kinds[begin:end] = RowKind.PREFILL
            ids.append(f"{prefix}/{sequence}")
    return make_rows(tokens, positions, requests, kinds, ids, where=where)


def sequence_first(tensor: FileTensor, rows: int, name: str, where: str) -> FileTensor:
    """A tensor `[s, 1, h]` or `[s, h]` of Megatron as `[rows, h]`.

    Raises:
        DumpError: a batch of several, batch first, or another number of rows than tokens (sequence parallel).
    """
    shape = tensor.shape
    if len(shape) == 3 and shape[1] == 1 and shape[0] == rows:
        return FileTensor(tensor.dtype, tensor.data.reshape(rows, shape[2]))
    if len(shape) == 2 and shape[0] == rows:
        return tensor
    reason = "is no [s, 1, h] or [s, h]"
    if len(shape) == 3 and shape[0] == 1 and shape[1] == rows:
        reason = "is batch first, where Megatron puts the sequence first"
    elif len(shape) == 3 and shape[1] > 1:
        reason = f"holds a batch of {shape[1]}, whose rows are interleaved; dump with packed sequences (micro-batch size 1)"
    elif shape and rows % max(shape[0], 1) == 0 and shape[0] < rows:
        reason = f"has {shape[0]} rows: sequence parallel splits them over the ranks, and the file does not say how; turn it off"
    raise DumpError(f"{where}: {name} has shape {list(shape)} for {rows} tokens: it {reason}")

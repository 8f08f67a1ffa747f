"""Which token, position and request each row of a forward is, as tensors that may still be on their way from the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specalign.dump.keys import POSITIONS, REQUESTS, ROW_KIND, TOKENS, RowKind
from specalign.dump.rows import Rows, make_rows
from specalign.recorder.errors import RecordError

COLUMNS = (TOKENS, POSITIONS, REQUESTS, ROW_KIND)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """The rows of one forward. Nothing here is read back from the GPU while the model runs: the columns travel like the layers.

    Attributes:
        tokens: the input token of each row: integers `[batch, seq]`, or `[rows]` in the order in which the model's tensors hold
            them. A list will do.
        positions: its position in its request, from 0; anything in padding. Same shape, as are the next two.
        requests: index into `request_ids`; -1 in padding.
        kinds: a `RowKind` for each row.
        request_ids: the requests of this forward.
        repeats: positions of one request may stand twice (a tree of draft tokens).

    Raises:
        RecordError: columns of different shapes, or of other than integers.
    """

    tokens: Tensor
    positions: Tensor
    requests: Tensor
    kinds: Tensor
    request_ids: tuple[str, ...]
    repeats: bool = False

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "requests", "kinds"):
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        object.__setattr__(self, "request_ids", tuple(self.request_ids))
        shapes = {tuple(column.shape) for column in self._columns()}
        if len(shapes) != 1 or self.tokens.ndim not in (1, 2):
            raise RecordError(
                f"the columns of a RowBatch have the shapes {[list(column.shape) for column in self._columns()]}: tokens,"
                " positions, requests and kinds must all be [rows] or all [batch, seq]"
            )
        floats = [column.dtype for column in self._columns() if column.is_floating_point() or column.is_complex()]
        if floats:
            raise RecordError(f"the columns of a RowBatch are integers, and one is {floats[0]}")

    def __len__(self) -> int:
        return self.tokens.numel()

    @property
    def grid(self) -> tuple[int, int] | None:
        """`(batch, seq)` where every sequence has a row of its own; None for rows that are listed one after another."""
        return (self.tokens.shape[0], self.tokens.shape[1]) if self.tokens.ndim == 2 else None

    def columns(self, *, sequence_first: bool = False) -> dict[str, Tensor]:
        """tokens, positions, requests and row_kind, each `[rows]`, in the order in which the layers' tensors hold the rows.

        Args:
            sequence_first: tensors are `[seq, batch, width]`: then rows go through the batch first.
        """
        flat = {}
        for name, column in zip(COLUMNS, self._columns(), strict=True):
            turned = column.t() if sequence_first and column.ndim == 2 else column
            flat[name] = turned.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        return flat

    def _columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.tokens, self.positions, self.requests, self.kinds


def rows_of(columns: Mapping[str, NDArray[Any]], request_ids: Sequence[str], where: str, *, repeats: bool) -> Rows:
    """The rows as a dump holds them, once their columns have arrived.

    Raises:
        DumpError: see `make_rows`.
        RecordError: one position of one request stands twice, so that its rows could not be told apart.
    """
    tokens, positions, requests, kinds = (columns[name] for name in COLUMNS)
    rows = make_rows(tokens, positions, requests, kinds, request_ids, where=where)
    if not repeats:
        _check_distinct(rows, where)
    return rows


def _check_distinct(rows: Rows, where: str) -> None:
    counted = np.flatnonzero(rows.counted)
    pairs = np.stack([rows.requests[counted].astype(np.int64), rows.positions[counted]], axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    twice = np.flatnonzero((pairs[order][1:] == pairs[order][:-1]).all(axis=1))
    if len(twice):
        one, other = sorted(counted[order[twice[0] : twice[0] + 2]].tolist())
        raise RecordError(
            f"{where}: rows {one} and {other} are both position {int(rows.positions[one])} of request"
            f" {rows.request_ids[int(rows.requests[one])]!r}: several sequences are packed into one. Pass cu_seqlens to the"
            " model, or rows= to the recorder"
        )


def padding_kinds(real: Tensor, kind: RowKind) -> Tensor:
    """`kind` where a row is real, padding elsewhere; uint8, same shape."""
    kinds = torch.full(real.shape, int(RowKind.PADDING), dtype=torch.uint8, device=real.device)
    return kinds.masked_fill(real, int(kind))

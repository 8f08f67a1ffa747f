"""The rows that both sides have, to look closer at some of them: what explanations work on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.compare.comparison import Comparison
from specalign.compare.groups import observe
from specalign.compare.result import Side
from specalign.dump.dtypes import DType
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.passes import RawTensor


class AlignedRows:
    """The rows of two dumps, also those that one side lacks, numbered from 0 by position (then by the tokens before them).

    Attributes:
        positions, tokens: int32 `[rows]`.
        requests_a, requests_b: a request that has the row, int32 `[rows]`, −1 where the side lacks it; `names_a`, `names_b`.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        universe = comparison.universe
        self.positions, self.tokens = universe.positions, universe.tokens
        self.requests_a, self.requests_b = universe.a.requests, universe.b.requests
        self.names_a, self.names_b = (index.request_ids for index in comparison.indexes)

    def wrong(self, key: str) -> NDArray[np.bool_]:
        """Rows that differ under a key, bool `[rows]`."""
        return self._comparison.wrong.get(key, np.zeros(len(self.positions), np.bool_))

    def compared(self, key: str) -> NDArray[np.bool_]:
        """Rows that were compared under a key, bool `[rows]`."""
        group = self._comparison.group_of(key)
        return np.zeros(len(self.positions), np.bool_) if group is None else group.a.has & group.b.has

    def decoded(self, side: Side) -> NDArray[np.bool_]:
        """Rows that the side ran in a decode step (its first observation of them), bool `[rows]`."""
        base, index = self._comparison.base, self._comparison.indexes[_number(side)]
        primary = (base.a if side == "a" else base.b).primary
        return np.where(primary >= 0, index.decode[np.maximum(primary, 0)], False) if len(index) else primary >= 0

    def tensor(self, side: Side, key: str, rows: NDArray[Any]) -> tuple[NDArray[Any], DType] | None:
        """The raw bits of some rows, `[len(rows), width]`, and their element type; None if the side does not have the key for
        all of these rows, or holds only its fingerprints.

        Raises:
            DumpError: the dump changed meanwhile.
        """
        found = self._gather(side, key, np.asarray(rows))
        return None if found is None or found.spec.fingerprint else (found.data, found.dtype)

    def identity(self, side: Side, key: str, rows: NDArray[Any]) -> NDArray[np.uint64] | None:
        """The fingerprints of some rows, uint64 `[len(rows), 2]`: equal where the bits are. None as `tensor`."""
        found = self._gather(side, key, np.asarray(rows))
        if found is None:
            return None
        return found.data if found.spec.fingerprint else fingerprint_rows(found.data)

    def in_one_forward(self, side: Side, key: str, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Those of the rows that the side ran in one forward, the one with most of them."""
        found = self._locate(side, key, np.asarray(rows))
        if found is None:
            return np.empty(0, np.int64)
        forwards, counts = np.unique(found[0], return_counts=True)
        return np.asarray(rows[found[0] == forwards[counts.argmax()]])

    def copies(self, side: Side, key: str, rows: NDArray[Any]) -> list[tuple[NDArray[Any], DType]]:
        """What each rank that holds the whole width of a key says of some rows of one forward; [] where that does not apply."""
        found = self._locate(side, key, np.asarray(rows))
        if found is None or len(np.unique(found[0])) != 1:  # also no rows at all
            return []
        forward = self._comparison.forwards[_number(side)][int(found[0][0])]
        dump, held = self._comparison.dumps[_number(side)], []
        for info in forward.infos:
            tensor = dump.load(info, {key}).get(key)
            if tensor is not None and not tensor.spec.fingerprint and len(tensor.data) == forward.rows:
                held.append((tensor.data.reshape(forward.rows, -1)[found[1]], tensor.dtype))
        return held

    def _gather(self, side: Side, key: str, rows: NDArray[Any]) -> RawTensor | None:
        found = self._locate(side, key, rows)
        if found is None:
            return None
        # Forward by forward, then back into the order that was asked for.
        order = np.argsort(found[0], kind="stable")
        tensor = self._comparison.shelf(side, (key,)).gather(found[0][order], found[1][order], key)
        if tensor is None:
            return None
        data = np.empty_like(tensor.data)
        data[order] = tensor.data
        return RawTensor(tensor.spec, data)

    def _locate(self, side: Side, key: str, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Forward and row of the first observation of each row under a key."""
        comparison = self._comparison
        holders = np.array([key in forward.keys for forward in comparison.forwards[_number(side)]], np.bool_)
        index, view = comparison.indexes[_number(side)], comparison.universe.side(side)
        if not holders.any():
            return None
        at = observe(holders, index, view).primary[rows]
        return None if (at < 0).any() else (index.forwards[at], index.rows[at])


def _number(side: Side) -> int:
    return 0 if side == "a" else 1

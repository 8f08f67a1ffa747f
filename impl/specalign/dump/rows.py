"""Which token, position and request each row of a pass is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specalign.dump.errors import DumpError
from specalign.dump.keys import RowKind

NO_REQUEST = -1
"""What `requests` holds for a row of padding."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one pass, in the order in which its tensors hold them.

    Attributes:
        tokens: the input token of each row, int64 `[rows]`.
        positions: its position in its request, from 0, int64 `[rows]`; anything in padding.
        requests: index into `request_ids`, int32 `[rows]`; `NO_REQUEST` in padding.
        kinds: a `RowKind` for each row, uint8 `[rows]`.
        request_ids: the requests of this pass.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    requests: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    request_ids: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows belong to a user's request: neither padding nor a health check; bool `[rows]`."""
        return np.asarray(self.kinds <= RowKind.DECODE)


def make_rows(
    tokens: ArrayLike,
    positions: ArrayLike,
    requests: ArrayLike,
    kinds: ArrayLike,
    request_ids: Sequence[str],
    *,
    where: str = "this pass",
) -> Rows:
    """Rows out of anything that numpy takes, checked.

    Args:
        where: how messages name the pass.

    Raises:
        DumpError: lengths that differ, something that is no list of integers, a negative position or an unknown request of a
            row that is no padding, an unknown kind, a request id that stands twice.
    """
    columns = {"tokens": tokens, "positions": positions, "requests": requests, "row_kind": kinds}
    arrays = {name: _column(name, value, where) for name, value in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise DumpError(f"{where}: the columns have different lengths: {lengths}; each names every row once")
    ids = tuple(request_ids)
    if len(set(ids)) != len(ids):
        raise DumpError(f"{where}: a request id stands twice in {list(ids)[:8]}: whose rows are they?")
    if not all(isinstance(item, str) for item in ids):
        raise DumpError(f"{where}: request ids must be strings, not {[type(item).__name__ for item in ids][:8]}")
    _check(arrays, len(ids), where)
    return Rows(
        arrays["tokens"].astype(np.int64, copy=False),
        arrays["positions"].astype(np.int64, copy=False),
        arrays["requests"].astype(np.int32, copy=False),
        arrays["row_kind"].astype(np.uint8, copy=False),
        ids,
    )


def _column(name: str, value: ArrayLike, where: str) -> NDArray[Any]:
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DumpError(f"{where}: {name} has shape {array.shape} and type {array.dtype}; it must be integers, one a row")
    return array


_LAST_KIND: Final = int(max(RowKind))


def _lie_within(values: NDArray[Any], last: int | None) -> bool:
    """Whether all of some values are from 0 to `last`."""
    return int(values.min()) >= 0 and (last is None or int(values.max()) <= last)


def _check(arrays: dict[str, NDArray[Any]], requests: int, where: str) -> None:
    kinds = arrays["row_kind"]
    limits = ((kinds, _LAST_KIND), (arrays["positions"], None), (arrays["requests"], requests - 1))
    if not len(kinds) or all(_lie_within(values, last) for values, last in limits):
        return
    unknown = (kinds < 0) | (kinds > max(RowKind))
    if unknown.any():
        raise DumpError(
            f"{where}: row {int(unknown.argmax())} has row_kind {int(kinds[unknown][0])}; known are"
            f" {', '.join(f'{k.value} {k.name.lower()}' for k in RowKind)}"
        )
    real = kinds != RowKind.PADDING
    for name, wrong in (
        ("positions", real & (arrays["positions"] < 0)),
        ("requests", real & ((arrays["requests"] < 0) | (arrays["requests"] >= requests))),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            limit = f", and this pass lists {requests} requests" if name == "requests" else ""
            raise DumpError(f"{where}: row {row} has {name} {int(arrays[name][row])}{limit}; only padding may")

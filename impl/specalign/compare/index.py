"""All rows of one side in memory: a few integers each, and none of the tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.forwards import Forward, read_rows
from specalign.compare.result import Side
from specalign.dump.errors import DumpError
from specalign.dump.keys import RowKind
from specalign.dump.passes import Dump
from specalign.dump.rows import Rows

Ints = NDArray[np.int32]

TOGETHER: Final = 256
"""Most forwards whose rows are put into the index at a time, """
TOGETHER_ROWS: Final = 4096
"""and no more of them than have so many rows."""


@dataclasses.dataclass(slots=True, eq=False)
class RowIndex:
    """The rows of one side that belong to requests of users, in the order of their forwards.

    Attributes:
        side: "a" or "b".
        tokens, positions: int32 `[observations]`.
        requests: index into `request_ids`.
        forwards, rows: where it was observed: index into the forwards, row within them.
        decode: whether it ran in a decode step.
        request_ids: of the requests; one id in two data-parallel places is two requests.
        padding, health_checks: rows that are left out, for each forward, int32 `[forwards]`.
    """

    side: Side
    tokens: Ints
    positions: Ints
    requests: Ints
    forwards: Ints
    rows: Ints
    decode: NDArray[np.bool_]
    request_ids: tuple[str, ...]
    padding: Ints
    health_checks: Ints

    def __len__(self) -> int:
        return len(self.tokens)


def index_rows(dump: Dump, side: Side, forwards: Sequence[Forward]) -> RowIndex:
    """The index of a dump.

    Raises:
        DumpError: rows that cannot be read, or a token or position beyond 32 bits.
    """
    total = sum(forward.rows for forward in forwards)
    columns = {name: np.empty(total, np.int32) for name in ("tokens", "positions", "requests", "forwards", "rows")}
    decode = np.empty(total, np.bool_)
    numbers: dict[tuple[int, str], int] = {}
    padding, health = np.zeros(len(forwards), np.int32), np.zeros(len(forwards), np.int32)
    filled = 0
    for first, several in _together(dump, forwards):
        where, at, rows = _below_each_other([rows for _, rows in several])
        those = slice(first, first + len(several))
        padding[those] = np.bincount(where[rows.kinds == RowKind.PADDING], minlength=len(several))
        health[those] = np.bincount(where[rows.kinds == RowKind.HEALTH_CHECK], minlength=len(several))
        counted = np.flatnonzero(rows.counted)
        of_request = _numbered(several, where[counted], numbers)
        for name, kind in (("tokens", "token"), ("positions", "position")):
            _check_narrow(getattr(rows, name)[counted], kind, several, where[counted])
        here = slice(filled, filled + len(counted))
        columns["tokens"][here] = rows.tokens[counted]
        columns["positions"][here] = rows.positions[counted]
        columns["requests"][here] = of_request[rows.requests[counted]]
        columns["forwards"][here] = first + where[counted]
        columns["rows"][here] = at[counted]
        decode[here] = rows.kinds[counted] == RowKind.DECODE
        filled = here.stop
    kept = {name: column[:filled] for name, column in columns.items()}
    return RowIndex(side, **kept, decode=decode[:filled], request_ids=_names(numbers), padding=padding, health_checks=health)


_Several = list[tuple[Forward, Rows]]


def _together(dump: Dump, forwards: Sequence[Forward]) -> Iterator[tuple[int, _Several]]:
    """Forwards and their rows, small ones together, and the number of the first: decode steps have few rows each."""
    several: _Several = []
    rows = 0
    for number, forward in enumerate(forwards):
        several.append((forward, read_rows(dump, forward)))
        rows += forward.rows
        if len(several) == TOGETHER or rows >= TOGETHER_ROWS:
            yield number + 1 - len(several), several
            several, rows = [], 0
    if several:
        yield len(forwards) - len(several), several


def _below_each_other(several: Sequence[Rows]) -> tuple[NDArray[np.int64], NDArray[np.int64], Rows]:
    """Which of several forwards each row is of, which row of it, and all rows, with `requests` counted through."""
    lengths = np.array([len(rows) for rows in several])
    where = np.repeat(np.arange(len(several)), lengths)
    at = np.arange(len(where)) - (np.cumsum(lengths) - lengths)[where]
    ids = np.array([len(rows.request_ids) for rows in several])
    columns = (np.concatenate([getattr(rows, name) for rows in several]) for name in ("tokens", "positions", "requests", "kinds"))
    tokens, positions, requests, kinds = columns
    return where, at, Rows(tokens, positions, requests + (np.cumsum(ids) - ids)[where], kinds, ())


def _numbered(several: _Several, counted: NDArray[Any], numbers: dict[tuple[int, str], int]) -> NDArray[np.int32]:
    """The number of each request of each forward; those of a forward without counted rows get none."""
    found: list[int] = []
    for (forward, rows), has in zip(several, np.bincount(counted, minlength=len(several)).tolist(), strict=True):
        scope = forward.scope
        names = rows.request_ids
        found += [numbers.setdefault((scope, name), len(numbers)) for name in names] if has else [0] * len(names)
    return np.array(found, np.int32)


def _names(numbers: dict[tuple[int, str], int]) -> tuple[str, ...]:
    twice = len({name for _, name in numbers}) != len(numbers)
    return tuple(f"dp{scope}:{name}" if twice else name for scope, name in numbers)


def _check_narrow(values: NDArray[Any], what: str, several: _Several, where: NDArray[Any]) -> None:
    """Raises `DumpError` for a token or position beyond 32 bits; `where` tells which of several forwards each value is of."""
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < 2**31):
        return
    of = where[int(((values < 0) | (values >= 2**31)).argmax())]
    values = values[where == of]
    raise DumpError(
        f"{several[of][0].where}: a {what} is {int(values.min())} or {int(values.max())}, which no vocabulary or text has"
    )

"""All rows of one side in memory: a few integers each, and none of the tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.compare.forwards import Forward, read_rows
from specalign.compare.result import Side
from specalign.dump.errors import DumpError
from specalign.dump.keys import RowKind
from specalign.dump.passes import Dump

Ints = NDArray[np.int32]


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
    for number, forward in enumerate(forwards):
        rows = read_rows(dump, forward)
        counted = np.flatnonzero(rows.counted)
        padding[number] = np.count_nonzero(rows.kinds == RowKind.PADDING)
        health[number] = np.count_nonzero(rows.kinds == RowKind.HEALTH_CHECK)
        if not len(counted):
            continue
        here = slice(filled, filled + len(counted))
        of_request = np.array([numbers.setdefault((forward.scope, name), len(numbers)) for name in rows.request_ids], np.int32)
        columns["tokens"][here] = _narrow(rows.tokens[counted], "token", forward)
        columns["positions"][here] = _narrow(rows.positions[counted], "position", forward)
        columns["requests"][here] = of_request[rows.requests[counted]]
        columns["forwards"][here] = number
        columns["rows"][here] = counted
        decode[here] = rows.kinds[counted] == RowKind.DECODE
        filled = here.stop
    kept = {name: column[:filled] for name, column in columns.items()}
    return RowIndex(side, **kept, decode=decode[:filled], request_ids=_names(numbers), padding=padding, health_checks=health)


def _names(numbers: dict[tuple[int, str], int]) -> tuple[str, ...]:
    twice = len({name for _, name in numbers}) != len(numbers)
    return tuple(f"dp{scope}:{name}" if twice else name for scope, name in numbers)


def _narrow(values: NDArray[Any], what: str, forward: Forward) -> NDArray[Any]:
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= 2**31):
        raise DumpError(
            f"{forward.where}: a {what} is {int(values.min())} or {int(values.max())}, which no vocabulary or text has"
        )
    return values

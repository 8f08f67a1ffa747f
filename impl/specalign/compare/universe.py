"""The rows of both sides as one numbered set: what each side observed of it, and which rows only one of them has."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specalign.compare.identity import Located, locate, sequences_of
from specalign.compare.index import RowIndex
from specalign.compare.result import Problem, RequestMatch, Side

NOBODY = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SideRows:
    """One side's view of the numbered rows.

    Attributes:
        ids: the row that each observation is, int32 `[observations]`; `NOBODY` where that cannot be told.
        requests: a request that has the row, int32 `[rows]`; `NOBODY` where this side does not have it.
        terminal: the last row of a request that only this side ran, bool `[rows]`.
    """

    ids: NDArray[np.int32]
    requests: NDArray[np.int32]
    terminal: NDArray[np.bool_]

    @property
    def has(self) -> NDArray[np.bool_]:
        """Which rows this side observed."""
        return np.asarray(self.requests != NOBODY)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Universe:
    """All rows of both sides, numbered by position, so that lower numbers are earlier.

    Attributes:
        positions, tokens: int32 `[rows]`.
        a, b: the sides.
        matches: requests that share rows; `rows_mismatching` is filled in after the comparison.
        problems: requests that could not be placed.
        unmatched: requests that share no row with the other side: the side, the number of the request, and what to say of it.
    """

    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    a: SideRows
    b: SideRows
    matches: tuple[RequestMatch, ...]
    problems: tuple[Problem, ...]
    unmatched: tuple[tuple[Side, int, Problem], ...]

    def side(self, side: Side) -> SideRows:
        """One side."""
        return self.a if side == "a" else self.b


def match_rows(a: RowIndex, b: RowIndex) -> Universe:
    """Number the rows of both sides."""
    own, problems_a = sequences_of(a)
    other, problems_b = sequences_of(b)
    located_a, lost_a = locate(a, own, b, other)
    located_b, lost_b = locate(b, other, a, own)
    placed = [item for located in (located_a, located_b) for item in located]
    numbers, size = _number(placed)
    positions, tokens = np.empty(size, np.int32), np.empty(size, np.int32)
    views = []
    mine_of = np.split(numbers, np.cumsum([len(item.hashes) for item in placed])[:-1]) if placed else []
    parts = mine_of[: len(located_a)], mine_of[len(located_a) :]
    for index, located, part in ((a, located_a, parts[0]), (b, located_b, parts[1])):
        ids, requests = np.full(len(index), NOBODY, np.int32), np.full(size, NOBODY, np.int32)
        for item, mine in zip(located, part, strict=True):
            sequence = item.sequence
            positions[mine], tokens[mine] = sequence.positions, sequence.tokens
            ids[sequence.observations] = sequence.spread(mine)
            requests[mine] = np.where(requests[mine] == NOBODY, sequence.number, requests[mine])
        views.append((ids, requests))
    sides = [
        SideRows(ids, requests, _terminal(parts[n], parts[1 - n], views[1 - n][1] != NOBODY, positions))
        for n, (ids, requests) in enumerate(views)
    ]
    matches, unmatched = _pair_requests((a, b), (located_a, located_b), parts, sides)
    problems = (*problems_a, *problems_b, *lost_a, *lost_b)
    return Universe(positions, tokens, sides[0], sides[1], matches, problems, unmatched)


def _number(items: Sequence[Located]) -> tuple[NDArray[np.int32], int]:
    """A number for each (request, position), equal where the hashes are, ascending by position; and how many there are."""
    if not items:
        return np.empty(0, np.int32), 0
    hashes = np.concatenate([item.hashes for item in items])
    positions = np.concatenate([item.sequence.positions for item in items])
    order = np.lexsort((hashes, positions)).astype(np.int32)
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (np.diff(positions[order]) != 0) | (np.diff(hashes[order]) != 0)
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.cumsum(fresh, dtype=np.int32) - 1
    return numbers, int(np.count_nonzero(fresh))


def _terminal(
    mine: Sequence[NDArray[np.int32]],
    others: Sequence[NDArray[np.int32]],
    other_has: NDArray[np.bool_],
    positions: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """The last rows of requests of which the other side ran everything but that row.

    The other side must have a request that ends right before it, and each such request excuses one row: otherwise the two sides
    went on with different tokens, or a whole answer is missing.
    """
    terminal = np.zeros(len(other_has), np.bool_)
    ends = collections.Counter(int(numbers[-1]) for numbers in others)
    for last in sorted({tuple(numbers[-2:].tolist()) for numbers in mine if len(numbers) > 1}):
        before, row = last
        if not other_has[row] and ends[before] > 0 and positions[row] == positions[before] + 1:
            ends[before] -= 1
            terminal[row] = True
    return terminal


def _pair_requests(
    indexes: tuple[RowIndex, RowIndex],
    located: tuple[Sequence[Located], Sequence[Located]],
    parts: tuple[Sequence[NDArray[np.int32]], Sequence[NDArray[np.int32]]],
    sides: Sequence[SideRows],
) -> tuple[tuple[RequestMatch, ...], tuple[tuple[Side, int, Problem], ...]]:
    """Requests of both sides that share rows: each with the one whose rows reach furthest into it."""
    matches: dict[tuple[int, int], RequestMatch] = {}
    unmatched: list[tuple[Side, int, Problem]] = []
    for side, (index, items) in enumerate(zip(indexes, located, strict=True)):
        for item, mine in zip(items, parts[side], strict=True):
            partners = sides[1 - side].requests[mine]
            shared = partners[partners != NOBODY]
            if not len(shared):
                unmatched.append((index.side, item.sequence.number, _unmatched(index, item, indexes[1 - side])))
                continue
            pair = (item.sequence.number, int(shared[-1])) if side == 0 else (int(shared[-1]), item.sequence.number)
            names = (indexes[0].request_ids[pair[0]], indexes[1].request_ids[pair[1]])
            known = matches.get(pair)
            how = "continuation" if item.how == "continuation" or (known and known.how == "continuation") else "tokens"
            matches[pair] = RequestMatch(*names, max(len(shared), known.rows if known else 0), 0, how)
    return tuple(matches.values()), tuple(unmatched)


def _unmatched(index: RowIndex, item: Located, other: RowIndex) -> Problem:
    name = index.request_ids[item.sequence.number]
    start = ", ".join(str(token) for token in item.sequence.tokens[:6])
    return Problem(
        "unmatched-request",
        f"side {index.side}: no request of side {other.side} begins as request {name} does",
        f"request {name}, tokens {start}{', …' if len(item.sequence.tokens) > 6 else ''}",
        f"{len(item.sequence.positions)} rows",
        f"compare dumps of the same prompts, or declare request {name} missing on side {other.side}",
    )

"""Which row is which: a row is the position it stands at and all tokens up to it, whatever its request is called.

So identical prompts are one row that was observed several times, a request that continues a cached prompt is found again, and a
retracted request that is prefilled anew repeats its rows. The tokens up to a position are told apart by a 64-bit sum over
(token + 1) · multiplier(position), the sum of the fingerprints, which is a running sum and needs no loop. Two beginnings with the
same sum, one chance in 10^13 for a million rows, would be compared as one row, and differ.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from specalign.compare.index import Ints, RowIndex
from specalign.compare.result import Problem
from specalign.dump.fingerprint import multipliers

Hashes = NDArray[np.uint64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One request of one side. It holds no more than which observations are its; the rest is looked up.

    Attributes:
        index: of the side.
        number: of the request, among the ids of its side.
        observations: indices into the `RowIndex`, ascending by position, int32.
        firsts: which of them observe a position for the first time; None if all do, as they mostly do.
    """

    index: RowIndex
    number: int
    observations: Ints
    firsts: NDArray[np.bool_] | None

    @property
    def distinct(self) -> Ints:
        """One observation for each position."""
        return self.observations if self.firsts is None else self.observations[self.firsts]

    @property
    def positions(self) -> Ints:
        """The distinct positions, ascending."""
        return self.index.positions[self.distinct]

    @property
    def tokens(self) -> Ints:
        """Their tokens."""
        return self.index.tokens[self.distinct]

    @property
    def is_complete(self) -> bool:
        """Every position from 0 to the last one was observed."""
        distinct = self.distinct
        first, last = (int(self.index.positions[distinct[at]]) for at in (0, -1))
        return first == 0 and last == len(distinct) - 1

    def spread(self, values: Ints) -> Ints:
        """Values of the distinct positions, one for each observation."""
        return values if self.firsts is None else values[np.cumsum(self.firsts) - 1]


def sequences_of(index: RowIndex) -> tuple[list[Sequence], list[Problem]]:
    """The requests of one side; those that contradict themselves are reported and left out."""
    order = np.lexsort((index.positions, index.requests)).astype(np.int32)
    cuts = np.flatnonzero(np.diff(index.requests[order])) + 1
    found: list[Sequence] = []
    problems: list[Problem] = []
    for part in np.split(order, cuts) if len(order) else []:
        positions, tokens = index.positions[part], index.tokens[part]
        firsts = np.concatenate([[True], positions[1:] != positions[:-1]])
        sequence = Sequence(index, int(index.requests[part[0]]), part, None if firsts.all() else firsts)
        same = sequence.spread(sequence.tokens)
        if (tokens != same).any():
            problems.append(_contradiction(index, sequence.number, positions, tokens, same))
        else:
            found.append(sequence)
    return found, problems


def _contradiction(index: RowIndex, number: int, positions: Ints, tokens: Ints, first: Ints) -> Problem:
    at = int((tokens != first).argmax())
    two = f"tokens {int(first[at])} and {int(tokens[at])}"
    return Problem(
        "contradicting-tokens",
        f"side {index.side}: request {index.request_ids[number]} has {two} at one position",
        f"request {index.request_ids[number]}, position {int(positions[at])}",
        f"{int(np.count_nonzero(tokens != first))} rows",
        "turn speculative decoding off while recording (rejected drafts are rows too), or give each sample its own request id",
    )


def prefix_hashes(tokens: Ints) -> Hashes:
    """For each position, the hash of all tokens up to it: uint64 `[positions]` out of the tokens from position 0 on."""
    return np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * multipliers(0, 0, len(tokens)), dtype=np.uint64)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Located:
    """A request whose tokens are known from position 0 on.

    Attributes:
        sequence: the request.
        hashes: of its own positions, uint64 `[positions]`.
        how: as in `RequestMatch`.
    """

    sequence: Sequence
    hashes: Hashes
    how: str


def locate(index: RowIndex, own: list[Sequence], other: RowIndex, others: list[Sequence]) -> tuple[list[Located], list[Problem]]:
    """The hashes of every request of one side. The tokens of a cached prefix, which nobody observed, are those of the complete
    requests that it is consistent with; if these differ among themselves, the request of the same id decides, or nothing does.
    """
    located, problems = [], []
    complete = [item for item in others if item.is_complete], [item for item in own if item.is_complete]
    for sequence in own:
        if sequence.is_complete:
            located.append(Located(sequence, prefix_hashes(sequence.tokens), "tokens"))
            continue
        fits = [(fill, True, item) for item in complete[0] if (fill := _filled(sequence, item)) is not None]
        fits += [(fill, False, item) for item in complete[1] if (fill := _filled(sequence, item)) is not None]
        distinct = {fill.tobytes(): fill for fill, _, _ in fits}
        if len(distinct) > 1:
            name = index.request_ids[sequence.number]
            same = {fill.tobytes(): fill for fill, is_other, item in fits if is_other and other.request_ids[item.number] == name}
            distinct = same if len(same) == 1 else distinct
        if len(distinct) == 1:
            tokens = next(iter(distinct.values()))
            located.append(Located(sequence, prefix_hashes(tokens)[sequence.positions], "continuation"))
        else:
            problems.append(_unlocated(index, sequence, [item for _, _, item in fits], other, len(distinct)))
    return located, problems


def _filled(sequence: Sequence, candidate: Sequence) -> Ints | None:
    """The tokens of `sequence` from position 0 on, its gaps filled from `candidate`; None if the two contradict each other, have
    no observed position in common, or a gap stays open.
    """
    positions, own, theirs = sequence.positions, sequence.tokens, candidate.tokens
    length = len(theirs)
    shared = positions < length
    if not shared.any() or (theirs[positions[shared]] != own[shared]).any():
        return None
    # Every position behind the candidate must be its own; looked at before memory is taken for what a file says.
    if int(positions[-1]) + 1 - length > np.count_nonzero(~shared):
        return None
    tokens = np.full(int(positions[-1]) + 1, -1, np.int32)
    tokens[: min(length, len(tokens))] = theirs[: len(tokens)]
    tokens[positions] = own
    return None if (tokens < 0).any() else tokens


def _unlocated(index: RowIndex, sequence: Sequence, fits: list[Sequence], other: RowIndex, distinct: int) -> Problem:
    name = index.request_ids[sequence.number]
    where = f"request {name}, positions {int(sequence.positions[0])}..{int(sequence.positions[-1])}"
    if distinct:
        names = ", ".join(other.request_ids[item.number] for item in fits[:4] if item.number < len(other.request_ids))
        return Problem(
            "ambiguous-request",
            f"side {index.side}: request {name} was observed without its beginning, and {distinct} different beginnings fit it",
            where,
            f"{len(fits)} candidates: {names}",
            "flush the prefix cache before recording, or give the requests the same ids on both sides",
        )
    return Problem(
        "unmatched-request",
        f"side {index.side}: request {name} was observed without its beginning, and no complete request has these tokens",
        where,
        f"{len(sequence.positions)} rows",
        "record the request that filled the cache too, or flush the prefix cache before recording",
    )

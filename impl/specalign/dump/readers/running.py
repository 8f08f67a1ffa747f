"""The requests of a run without request ids: which one a stretch of rows continues, if that can be told."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specalign.dump.errors import DumpError


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in one pass.

    Attributes:
        sequence: its place in the batch.
        at, rows: first row and number of rows.
        first: position of the first row.
        slot: row in the request pool; None if it is not known.
    """

    sequence: int
    at: int
    rows: int
    first: int
    slot: int | None = None


@dataclasses.dataclass(slots=True, eq=False)
class _Request:
    """One request so far. `start` is its first recorded position: larger than 0 where a cached prefix gave no rows. `over`: the
    last decode pass left it out. `gone`: another has its slot."""

    name: str
    start: int
    slot: int | None
    tokens: list[int]
    decoded: bool = False
    over: bool = False
    gone: bool = False

    @property
    def due(self) -> int:
        return self.start + len(self.tokens)

    def has_prefix_of(self, other: _Request, length: int) -> bool:
        """Whether the first `length` tokens of both are recorded and equal."""
        return self.start == other.start == 0 and self.tokens[:length] == other.tokens[:length]


class Running:
    """The requests seen so far.

    Args:
        microbatches: see `Segmenter`.
    """

    def __init__(self, *, microbatches: bool) -> None:
        self._microbatches = microbatches
        self._all: list[_Request] = []

    def name(self, tokens: NDArray[np.int64], segments: Sequence[Segment], mode: str, where: str) -> tuple[list[str], list[bool]]:
        """The request of each segment, and whether it decodes.

        Raises:
            DumpError: it cannot be told, or a decode row continues nothing that was recorded.
        """
        found: dict[int, tuple[_Request, bool]] = {}
        if mode == "decode":
            for group in _by_position(segments):
                for segment, request in zip(group, self._continued(group, where), strict=True):
                    found[segment.sequence] = (request, True)
        else:
            taken: set[int] = set()
            for segment in segments:
                request = self._prefilled(segment, taken, mode, where)
                taken.add(id(request))
                found[segment.sequence] = (request, mode != "extend" and segment.rows == 1 and bool(request.tokens))
        self._advance(tokens, segments, found)
        if mode == "decode" and not self._microbatches:
            # SGLang runs every live request in each decode pass; one that is left out has ended, was retracted, or waits for
            # its next chunk.
            present = {id(request) for request, _ in found.values()}
            for request in self._all:
                request.over = id(request) not in present
        made = [found[segment.sequence] for segment in segments]
        return [request.name for request, _ in made], [decodes for _, decodes in made]

    def _due(self, position: int, slot: int | None) -> list[_Request]:
        return [r for r in self._all if r.due == position and not r.gone and (slot is None or r.slot in (None, slot))]

    def _continued(self, group: Sequence[Segment], where: str) -> list[_Request]:
        """One request for each of several decode rows at one position."""
        position = group[0].first
        if all(segment.slot is not None for segment in group):
            return [self._one(self._live(position, segment.slot), 1, position, where)[0] for segment in group]
        return self._one(self._live(position, None), len(group), position, where)

    def _live(self, position: int, slot: int | None) -> list[_Request]:
        return [r for r in self._due(position, slot) if not r.over]

    @staticmethod
    def _one(due: list[_Request], rows: int, position: int, where: str) -> list[_Request]:
        if len(due) < rows:
            raise DumpError(
                f"{where}: {rows} decode rows at position {position}, and {len(due)} running requests have come that far: passes"
                " are missing, or requests went on that another pass left out. Record from the start, with rids"
            )
        if len(due) > 1 and not all(due[0].has_prefix_of(other, position) for other in due[1:]):
            raise DumpError(
                f"{where}: a row at position {position} could continue {' or '.join(r.name for r in due[:4])}: which one cannot"
                " be told; record rids (or req_pool_indices), or send one request at a time"
            )
        return due[:rows]

    def _prefilled(self, segment: Segment, taken: set[int], mode: str, where: str) -> _Request:
        """A new request, or the next chunk of one. A stretch from position p > 0 may also be a new one with a cached prefix."""
        due = [r for r in self._due(segment.first, segment.slot) if id(r) not in taken and self._may_go_on(r, mode)]
        if not due or not segment.first:
            return self._new(segment)
        if len(due) == 1 and self._must_be(due[0], segment):
            if mode:
                self._keep_double(due[0])
            return due[0]
        raise DumpError(
            f"{where}: the rows from position {segment.first} may go on with {' or '.join(r.name for r in due[:4])}, or be a new"
            " request whose prefix was cached: which cannot be told; record rids"
        )

    @staticmethod
    def _may_go_on(request: _Request, mode: str) -> bool:
        # A request that waits for its next chunk has not decoded, and decode passes leave it out.
        return not request.decoded or (mode != "extend" and not request.over)

    def _keep_double(self, request: _Request) -> None:
        """Should the stretch be a new request after all, this one still decodes from here: it must not take another's place."""
        self._all.append(_Request(f"request-{len(self._all)}", request.start, request.slot, list(request.tokens), decoded=True))

    def _must_be(self, request: _Request, segment: Segment) -> bool:
        """Whether every recorded sequence that is long enough has this one's tokens: then so has any cached prefix."""
        long = [r for r in self._all if r is not request and r.due >= segment.first]
        return all(request.has_prefix_of(other, segment.first) for other in long)

    def _new(self, segment: Segment) -> _Request:
        for other in self._all:
            other.gone |= segment.slot is not None and other.slot == segment.slot
        request = _Request(f"request-{len(self._all)}", segment.first, segment.slot, [])
        self._all.append(request)
        return request

    def _advance(self, tokens: NDArray[np.int64], segments: Sequence[Segment], found: dict[int, tuple[_Request, bool]]) -> None:
        for segment in segments:
            request, decodes = found[segment.sequence]
            request.tokens.extend(tokens[segment.at : segment.at + segment.rows].tolist())
            request.decoded |= decodes
            request.over = False


def _by_position(segments: Sequence[Segment]) -> list[list[Segment]]:
    groups: dict[int, list[Segment]] = collections.defaultdict(list)
    for segment in segments:
        groups[segment.first].append(segment)
    return list(groups.values())

"""Which request each row of an SGLang pass belongs to.

With request ids (`rids`) the pass says it. Without them it is worked out, and only where there is one answer: SGLang's prefill
rows are cut by `seq_lens`, each decode row continues the one running request whose next position it is, and everything that
could mean two requests is an error. What can be told either way with the same result is no error: requests with the same
tokens so far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specalign.dump.errors import DumpError
from specalign.dump.keys import RowKind
from specalign.dump.readers.running import Running, Segment
from specalign.dump.rows import NO_REQUEST, Rows, make_rows
from specalign.layer_ids.files import quoted

HEALTH_CHECK: Final = "HEALTH_CHECK"
"""How the request ids of SGLang's own health checks begin."""

_MODES: Final = {"1": "extend", "2": "decode", "3": "mixed", "4": "idle"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What an SGLang `ForwardBatch` says of the rows of one pass.

    Attributes:
        tokens, positions: of each row, int64 `[rows]`.
        seq_lens: length of each sequence after the pass, int64 `[sequences]`.
        extend: rows of each sequence in a prefill, int64 `[sequences]`.
        slots: row of each sequence in the request pool, int64 `[sequences]`.
        rids: request id of each sequence.
        mode: "extend", "decode", "mixed", "idle", or "" if it is not known; see `forward_mode`.
        where: how messages name the pass.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    seq_lens: NDArray[np.int64] | None = None
    extend: NDArray[np.int64] | None = None
    slots: NDArray[np.int64] | None = None
    rids: tuple[str, ...] | None = None
    mode: str = ""
    where: str = "this pass"


def forward_mode(value: object, where: str) -> str:
    """SGLang's `ForwardMode` as text: of its number, its name, or `ForwardMode.NAME`; "" for None.

    Raises:
        DumpError: a mode of speculative decoding, whose rows may be rejected drafts, or an unknown one.
    """
    if value is None:
        return ""
    text = str(value).strip().lower().removeprefix("forwardmode.")
    mode = _MODES.get(text, text)
    if mode not in _MODES.values():
        raise DumpError(
            f"{where}: the forward mode is {quoted(value)}; rows are told apart in {', '.join(_MODES.values())}. Verify and draft"
            " passes hold rejected tokens: record with speculation turned off, and the draft apart from the target"
        )
    return mode


class Segmenter:
    """Tells the rows of one rank's passes, in their order.

    Args:
        microbatches: whether a decode pass may leave out running requests, as pipeline parallel does. Otherwise a request that a
            decode pass leaves out has ended.
    """

    def __init__(self, *, microbatches: bool = False) -> None:
        self._next: dict[str, int] = {}
        self._seen: set[str] = set()
        self._running = Running(microbatches=microbatches)
        self.notes: dict[str, None] = {}

    def rows(self, batch: Batch) -> Rows:
        """The rows of the next pass.

        Raises:
            DumpError: the pass contradicts itself, positions are missing, or a request cannot be told.
        """
        segments = _cut(batch)
        if batch.rids is None:
            if segments:
                self.notes["no request ids were recorded: health checks cannot be told from requests, and ids are made up"] = None
            names, decoding = self._running.name(batch.tokens, segments, batch.mode, batch.where)
        else:
            names, decoding = self._by_rids(batch, segments)
        if any(segment.first and name not in self._seen for segment, name in zip(segments, names, strict=True)):
            self.notes["some requests begin behind position 0: their prefix was cached, or passes are missing"] = None
        self._seen.update(names)
        return _rows(batch, segments, names, decoding)

    def _by_rids(self, batch: Batch, segments: Sequence[Segment]) -> tuple[list[str], list[bool]]:
        rids = batch.rids or ()
        names, decoding = [], []
        for segment in segments:
            rid = rids[segment.sequence]
            due = self._next.get(rid)
            decodes = batch.mode == "decode" or (batch.mode != "extend" and segment.rows == 1 and due == segment.first > 0)
            _check_due(rid, due, segment, decodes, batch.where)
            self._next[rid] = segment.first + segment.rows
            names.append(rid)
            decoding.append(decodes)
        return names, decoding


def _check_due(rid: str, due: int | None, segment: Segment, decodes: bool, where: str) -> None:
    if due is not None and (segment.first > due or (decodes and segment.first != due)):
        raise DumpError(
            f"{where}: request {quoted(rid)} goes on at position {segment.first}, and {due} is its next: passes between them"
            " are missing, or two requests have this id"
        )


def _cut(batch: Batch) -> list[Segment]:
    """The rows of each sequence; what is left at the end must be padding."""
    counts = _counts(batch)
    if batch.rids is not None:
        _check_rids(batch.rids, len(counts), batch.where)
    segments, at = [], 0
    for sequence, count in enumerate(counts):
        if count < 0 or at + count > len(batch.tokens):
            raise DumpError(f"{batch.where}: sequence {sequence} should have {count} rows, and {len(batch.tokens) - at} are left")
        if count and not _is_padding(batch, slice(at, at + count), sequence):
            segments.append(_segment(batch, sequence, at, count))
        at += count
    left = len(batch.tokens) - at
    if left and (batch.tokens[at:].any() or batch.positions[at:].any()):
        raise DumpError(
            f"{batch.where}: {left} rows behind the last sequence are neither a request's nor padding (token 0, position 0)"
        )
    return segments


def _is_padding(batch: Batch, rows: slice, sequence: int) -> bool:
    # Nobody decodes at position 0: the batch was filled up for another rank or a CUDA graph.
    if batch.mode != "decode" or (batch.rids is not None and sequence < len(batch.rids)):
        return batch.mode == "idle"
    return not batch.positions[rows].any() and not batch.tokens[rows].any()


def _segment(batch: Batch, sequence: int, at: int, count: int) -> Segment:
    first = int(batch.positions[at])
    jumps = np.flatnonzero(np.diff(batch.positions[at : at + count]) != 1).tolist() if count > 1 else []
    if first < 0 or jumps:
        bad = at + (jumps[0] if jumps else 0)
        raise DumpError(
            f"{batch.where}: the positions of sequence {sequence} do not follow on: row {bad} is {int(batch.positions[bad])},"
            f" then {batch.positions[bad + 1 : bad + 2].tolist()}; {count} rows were expected to be one stretch"
        )
    last = first + count - 1
    if batch.seq_lens is not None and (sequence >= len(batch.seq_lens) or int(batch.seq_lens[sequence]) != last + 1):
        raise DumpError(
            f"{batch.where}: sequence {sequence} ends at position {last}, and seq_lens is {batch.seq_lens.tolist()[:8]}: a pass's"
            " last position is its length less 1"
        )
    slot = None if batch.slots is None or sequence >= len(batch.slots) else int(batch.slots[sequence])
    return Segment(sequence, at, count, first, slot)


def _counts(batch: Batch) -> list[int]:
    rows = len(batch.tokens)
    if batch.mode == "idle":
        return [rows] if rows else []
    if batch.mode == "decode":
        known = batch.rids if batch.rids is not None else batch.seq_lens
        return [1] * (rows if known is None else len(known))
    if batch.extend is not None:
        return [int(count) for count in batch.extend]
    if batch.seq_lens is not None:
        return _counts_by_length(batch, batch.seq_lens)
    raise DumpError(
        f"{batch.where}: {rows} rows, and nothing says where one request ends and the next begins: record seq_lens, or rids with"
        " extend_seq_lens"
    )


def _counts_by_length(batch: Batch, seq_lens: NDArray[np.int64]) -> list[int]:
    """A sequence that begins at position p and is n long after the pass has n − p rows in it."""
    counts, at = [], 0
    for sequence, length in enumerate(seq_lens.tolist()):
        if at >= len(batch.positions):
            raise DumpError(f"{batch.where}: seq_lens lists {len(seq_lens)} sequences, and the rows end after {sequence} of them")
        count = length - int(batch.positions[at])
        if count < 1:
            raise DumpError(f"{batch.where}: sequence {sequence} is {length} long and begins at position {length - count}")
        counts.append(count)
        at += count
    return counts


def _check_rids(rids: Sequence[str], sequences: int, where: str) -> None:
    if len(rids) != sequences:
        raise DumpError(f"{where}: {len(rids)} request ids for {sequences} sequences; which rows are whose?")
    if len(set(rids)) != len(rids):
        raise DumpError(f"{where}: a request id stands twice in {quoted(list(rids))}: whose rows are they?")


def _rows(batch: Batch, segments: Sequence[Segment], names: Sequence[str], decoding: Sequence[bool]) -> Rows:
    requests = np.full(len(batch.tokens), NO_REQUEST, np.int32)
    kinds = np.full(len(batch.tokens), RowKind.PADDING, np.uint8)
    of_each = [
        RowKind.HEALTH_CHECK if name.startswith(HEALTH_CHECK) else RowKind.DECODE if decodes else RowKind.PREFILL
        for name, decodes in zip(names, decoding, strict=True)
    ]
    if segments and all(segment.rows == 1 for segment in segments):  # a decode step: all at once
        places = [segment.at for segment in segments]
        requests[places], kinds[places] = np.arange(len(segments)), of_each
    else:
        for index, (segment, kind) in enumerate(zip(segments, of_each, strict=True)):
            here = slice(segment.at, segment.at + segment.rows)
            requests[here], kinds[here] = index, kind
    return make_rows(batch.tokens, batch.positions, requests, kinds, tuple(names), where=batch.where)

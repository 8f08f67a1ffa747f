"""What a comparison found: layer by layer, row account by row account, and why it fails if it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal

Side = Literal["a", "b"]

PROBLEMS: Final[Mapping[str, str]] = {
    "nothing-compared": "no row of any key was compared",
    "rows-missing": "rows that one side has and the other lacks",
    "key-missing": "a tensor that one side has and the other lacks",
    "unmatched-request": "a request that no request of the other side fits",
    "ambiguous-request": "a request that fits more than one of the other side, with different values",
    "contradicting-tokens": "one request has two tokens at one position",
    "repeat-differs": "a row was observed more than once, with different values",
    "replica-differs": "ranks that hold copies of one tensor hold different values",
    "shard-missing": "a rank that holds a part of a tensor wrote none",
    "dtype-mismatch": "the two sides hold different element types",
    "width-mismatch": "the two sides hold rows of different width",
    "non-finite": "infinities or NaN where none may be",
    "stale-declaration": "a declared gap that is none",
    "not-finished": "the run that wrote a dump may not have come to its end",
    "expected-rows": "another number of rows than the caller expects",
}
"""Code → what it means. Each of them fails a comparison, whether or not the values that were compared agree."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a comparison cannot pass.

    Attributes:
        code: a key of `PROBLEMS`.
        what, where, how_much, next: as messages say it; `next` is what the reader can do.
    """

    code: str
    what: str
    where: str
    how_much: str
    next: str


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """One element that differs.

    Attributes:
        key: tensor key; `layer` the block that made it, None outside of blocks.
        request_a, request_b: request ids on either side.
        position, token, channel: of the row in its request, its input token, the column.
        dtype: element type, or "U64" for fingerprints, where `channel` is the lane.
        bits_a, bits_b: the bits of the element, as unsigned integers.
        value_a, value_b: their values; NaN where the bits are a fingerprint.
        ulp: representable numbers between them; None where that has no meaning (fingerprints, NaN).
        where_a, where_b: file and row.
    """

    key: str
    layer: int | None
    request_a: str
    request_b: str
    position: int
    token: int
    channel: int
    dtype: str
    bits_a: int
    bits_b: int
    value_a: float
    value_b: float
    ulp: int | None
    where_a: str
    where_b: str


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One square of the layer × position map: rows compared, rows that differ, their largest ULP distance (None: unknown)."""

    compared: int = 0
    mismatching: int = 0
    max_ulp: int | None = 0


@dataclasses.dataclass(frozen=True, slots=True)
class KeyResult:
    """All that was compared under one key.

    Attributes:
        key, layer: as in `Divergence`.
        dtype_a, dtype_b: element types; different ones are never compared.
        width: elements of a row.
        fingerprint: the rows' fingerprints were compared, not their values: `max_ulp` and `max_abs` are None.
        rows_expected: rows that both sides should have, without padding, health checks, terminal and declared rows.
        rows_compared: of these, how many were compared.
        rows_mismatching, elements_mismatching: what differs, under the mode that was asked for.
        elements_compared: `rows_compared * width`.
        max_ulp, max_abs: largest distance of any compared element, also of those within the tolerance.
        zero_signs: elements that are +0 on one side and −0 on the other.
        nonfinite_a, nonfinite_b: infinities and NaN; of fingerprints as they were counted, 0 if they were not.
        first: the mismatch at the lowest position, then at the lowest channel of its row; of several rows always the same.
        cells: along `CompareReport.position_edges`.
    """

    key: str
    layer: int | None
    dtype_a: str
    dtype_b: str
    width: int
    fingerprint: bool
    rows_expected: int
    rows_compared: int
    rows_mismatching: int
    elements_compared: int
    elements_mismatching: int
    max_ulp: int | None
    max_abs: float | None
    zero_signs: int
    nonfinite_a: int
    nonfinite_b: int
    first: Divergence | None
    cells: tuple[Cell, ...]

    @property
    def ok(self) -> bool:
        """Every expected row was compared and none differs."""
        return (
            self.rows_compared == self.rows_expected
            and not self.rows_mismatching
            and min(self.rows_compared, self.elements_compared) > 0
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """Where the rows of one side went. `rows` is the sum of the others: no row is unaccounted for.

    Attributes:
        dump: path of the dump; `producer` who wrote it.
        passes, requests: how many.
        rows: token rows over all passes, a forward's rows once (not once a rank).
        compared: compared with the other side.
        repeated: observed again (retracted, prefilled again, the same prompt once more); compared with the first observation.
        padding, health_checks: never compared.
        terminal: the last row of a request, which only this side ran (the other never ran the last token).
        declared: missing on the other side, and declared to be.
        missing: missing on the other side.
    """

    dump: str
    producer: str
    passes: int
    requests: int
    rows: int
    compared: int
    repeated: int
    padding: int
    health_checks: int
    terminal: int
    declared: int
    missing: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestMatch:
    """Two requests that are one.

    Attributes:
        request_a, request_b: their ids.
        rows: rows they share.
        rows_mismatching: rows of them that differ under any key.
        how: "tokens" (the same tokens from position 0), "continuation" (cached prefix: the only request that fits).
    """

    request_a: str
    request_b: str
    rows: int
    rows_mismatching: int
    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """A known cause that fits what was seen.

    Attributes:
        cause: its code, a key of `specalign.compare.explain.CAUSES`.
        text: one sentence with the figures that prove it.
        next: what to look at.
        fits, tried: rows that it explains, of those on which it was tried.
    """

    cause: str
    text: str
    next: str
    fits: int
    tried: int


@dataclasses.dataclass(frozen=True, slots=True)
class CompareReport:
    """The result of a comparison.

    Attributes:
        a, b: where the rows of each side went.
        mode: "bits", "ulp:1", …
        keys: in the order in which a forward makes them.
        problems: what fails the comparison besides values that differ.
        declared: one line for each declared gap that was used, with its reason.
        requests: who was who.
        notes: what the formats cannot tell, of either side.
        position_edges: edges of the cells, in positions: cell i holds `position_edges[i] <= position < position_edges[i + 1]`.
        explanation: the known cause that fits, if any does.
    """

    a: Account
    b: Account
    mode: str
    keys: tuple[KeyResult, ...]
    problems: tuple[Problem, ...]
    declared: tuple[str, ...]
    requests: tuple[RequestMatch, ...]
    notes: tuple[str, ...]
    position_edges: tuple[int, ...]
    explanation: Explanation | None = None

    @property
    def ok(self) -> bool:
        """Everything that was asked for was compared, and nothing differs."""
        return not self.problems and bool(self.keys) and all(key.ok for key in self.keys)

    @property
    def first(self) -> Divergence | None:
        """The first divergence: of the first key, in the order of the forward, that has one."""
        return next((key.first for key in self.keys if key.first is not None), None)

    @property
    def last_equal(self) -> str | None:
        """The last key before the first divergence, which agrees; None if there is no such key."""
        before = None
        for key in self.keys:
            if key.first is not None:
                return before
            before = key.key if key.ok else before
        return before

    def format(self) -> str:
        """One screen of text: where, since when, by how much, why."""
        from specalign.compare.report.text import format_text  # the report imports this module

        return format_text(self)

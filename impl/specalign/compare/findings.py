"""What the figures mean: results a key, and the problems that fail a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specalign.compare.comparison import Comparison
from specalign.compare.coverage import Coverage, Expect, describe_rows, sequence_of
from specalign.compare.declared import Declared
from specalign.compare.groups import Group
from specalign.compare.result import Cell, Divergence, KeyResult, Problem, RequestMatch, Side
from specalign.compare.tally import NO_CHANNEL, Place, Tally
from specalign.compare.universe import NOBODY
from specalign.dump.keys import in_order, parse_key


def key_results(
    comparison: Comparison, coverage: Coverage, tallies: Mapping[str, Tally]
) -> tuple[tuple[KeyResult, ...], list[Problem]]:
    """The result of each key of both sides, and the rows that a key lacks beyond those that all keys lack."""
    results, problems = {}, []
    base = comparison.base
    common = coverage.expected("", base) & ~(base.a.has & base.b.has)
    for group in comparison.groups:
        both = group.a.has & group.b.has
        for key in group.keys:
            expected = coverage.expected(key, group)
            tally = tallies.get(key)
            results[key] = _key_result(
                comparison, key, int(np.count_nonzero(expected)), int(np.count_nonzero(both & ~expected)), tally
            )
            lacking = expected & ~both & ~common
            if lacking.any():
                problems.append(_lacking(comparison, key, group, lacking, int(np.count_nonzero(expected))))
    return tuple(results[key] for key in in_order(results)), problems


def _key_result(comparison: Comparison, key: str, expected: int, excused: int, tally: Tally | None) -> KeyResult:
    if tally is None or not tally.rows:
        tally = Tally(0)
    rows = max(0, tally.rows - excused)
    cells = zip(tally.compared.tolist(), tally.mismatching.tolist(), tally.ulps.tolist(), strict=True)
    return KeyResult(
        key=key,
        layer=parse_key(key).layer,
        dtype_a=tally.dtypes[0],
        dtype_b=tally.dtypes[1],
        width=tally.width,
        fingerprint=tally.fingerprint,
        rows_expected=expected,
        rows_compared=rows,
        rows_mismatching=tally.mismatching_rows,
        elements_compared=rows * tally.width,
        elements_mismatching=tally.mismatching_elements,
        max_ulp=tally.ulp_or_none,
        max_abs=None if tally.fingerprint else tally.max_abs,
        zero_signs=tally.zero_signs,
        nonfinite_a=tally.nonfinite_a,
        nonfinite_b=tally.nonfinite_b,
        first=None if tally.first is None else divergence(comparison, key, tally, tally.first),
        cells=tuple(Cell(c, m, None if tally.fingerprint and m else u) for c, m, u in cells),
    )


def divergence(comparison: Comparison, key: str, tally: Tally, place: Place) -> Divergence:
    """The first difference of a key, in words that a person can look up."""
    universe, (a, b) = comparison.universe, comparison.indexes
    return Divergence(
        key,
        parse_key(key).layer,
        a.request_ids[universe.a.requests[place.row]],
        b.request_ids[universe.b.requests[place.row]],
        place.position,
        int(universe.tokens[place.row]),
        place.channel,
        "U64" if tally.fingerprint else tally.dtypes[0],
        place.bits_a,
        place.bits_b,
        place.value_a,
        place.value_b,
        None if place.ulp < 0 else place.ulp,
        _standing(comparison, "a", place.left),
        _standing(comparison, "b", place.right),
    )


def _standing(comparison: Comparison, side: Side, at: tuple[int, int]) -> str:
    forward, row = at
    return f"{comparison.forwards[0 if side == 'a' else 1][forward].where}, row {row}"


def _lacking(comparison: Comparison, key: str, group: Group, lacking: NDArray[np.bool_], expected: int) -> Problem:
    side: Side = "b" if (group.a.has & lacking).any() else "a"
    rows = comparison.universe.a if side == "b" else comparison.universe.b
    index = comparison.indexes[0 if side == "b" else 1]
    known = lacking & rows.has
    where = describe_rows(known, rows, index, comparison.universe.positions) if known.any() else "all rows"
    return Problem(
        "rows-missing",
        f"{key} has no values on side {side} for rows that other keys have",
        f"{key}: {where}",
        f"{int(np.count_nonzero(lacking))} of {expected} rows",
        f'record {key} in every forward, or declare it missing (keys = "{key}")',
    )


def value_problems(comparison: Comparison, kind: str, tallies: Mapping[str, Tally]) -> list[Problem]:
    """Non-finite values between the sides; differences between observations of one side."""
    if kind == "a-b":
        return [_nonfinite(comparison, key, tally) for key, tally in tallies.items() if tally.nonfinite_a or tally.nonfinite_b]
    differing = {key: tally for key, tally in tallies.items() if tally.mismatching_rows}
    return [_repeats(comparison, kind[0], differing)] if differing else []


def _nonfinite(comparison: Comparison, key: str, tally: Tally) -> Problem:
    where = key
    if tally.first_nonfinite is not None:
        place, side = tally.first_nonfinite
        rows, index = (
            (comparison.universe.a, comparison.indexes[0]) if side == "a" else (comparison.universe.b, comparison.indexes[1])
        )
        name = index.request_ids[rows.requests[place.row]]
        column = "an unknown channel (fingerprints count)" if place.channel == NO_CHANNEL else f"channel {place.channel}"
        where = f"{key}, side {side}, request {name}, position {place.position}, {column}"
    return Problem(
        "non-finite",
        f"{key} holds infinities or NaN",
        where,
        f"{tally.nonfinite_a} elements on side a, {tally.nonfinite_b} on side b",
        "find what made them: equal NaN on both sides prove nothing about the layers behind",
    )


def _repeats(comparison: Comparison, side: str, tallies: Mapping[str, Tally]) -> Problem:
    key = in_order(tallies)[0]
    first, rows = tallies[key].first, sum(tally.mismatching_rows for tally in tallies.values())
    where = key
    if first is not None:
        here: Side = "a" if side == "a" else "b"
        where = (
            f"{key}, position {first.position}, channel {first.channel}: {_standing(comparison, here, first.left)}"
            f" and {_standing(comparison, here, first.right)}"
        )
    return Problem(
        "repeat-differs",
        f"side {side} observed rows more than once, with different values, so it is not batch-invariant, or its cache is wrong",
        where,
        f"{rows} rows over {len(tallies)} keys ({sequence_of(in_order(tallies))})",
        f"make side {side} agree with itself first: the other side can equal one of the observations at most",
    )


def key_problems(comparison: Comparison, declared: Sequence[Declared]) -> list[Problem]:
    """Keys that only one side has, and layers that were asked for and that nobody has."""
    problems = []
    sides: tuple[tuple[Side, Side, tuple[str, ...]], ...] = (("b", "a", comparison.only[0]), ("a", "b", comparison.only[1]))
    for lacking, having, keys in sides:
        open_keys = [key for key in keys if not any(_declares(d, lacking, key) for d in declared)]
        if open_keys:
            problems.append(
                Problem(
                    "key-missing",
                    f"side {lacking} does not have {sequence_of(open_keys)}",
                    f"side {having} has it",
                    f"{len(open_keys)} keys",
                    f"record it on side {lacking} too, leave it out with --layers, or declare it missing on side {lacking}",
                )
            )
    there = {key for side in comparison.forwards for forward in side for key in forward.keys}
    nobody = comparison.selection.missing(there)
    if nobody:
        problems.append(
            Problem(
                "key-missing",
                f"neither side has {sequence_of(nobody)}, which was asked for",
                f"--layers {comparison.selection.text}",
                f"{len(nobody)} keys",
                "ask for layers that were recorded: specalign dump inspect lists them",
            )
        )
    return problems


def _declares(entry: Declared, lacking: Side, key: str) -> bool:
    """Whether a declaration says that a side does not have a key at all. One that names no keys is about rows."""
    return entry.side == lacking and entry.keys != "*" and entry.is_whole and entry.covers_key(key)


def unfinished_problems(comparison: Comparison) -> list[Problem]:
    """Dumps that say themselves that passes may be missing."""
    return [
        Problem(
            "not-finished",
            f"side {side}: {dump.unfinished[0]}, so its writer was killed, failed, or is still at work",
            str(dump.path),
            "; ".join(dump.unfinished[:4]),
            "wait for it or record it again; --allow-unfinished compares what is there",
        )
        for side, dump in zip(("a", "b"), comparison.dumps, strict=True)
        if dump.unfinished
    ]


def count_problems(expect: Expect, keys: Sequence[KeyResult]) -> list[Problem]:
    """Nothing was compared, or another number of rows than the caller expects."""
    problems = []
    if not any(key.rows_compared for key in keys):
        problems.append(
            Problem(
                "nothing-compared",
                "not one row was compared",
                "both dumps",
                f"{len(keys)} keys are on both sides",
                "compare dumps of the same prompts with the same keys: specalign dump inspect shows what each holds",
            )
        )
    empty = [key.key for key in keys if key.rows_compared and not key.width]
    if empty:
        problems.append(
            Problem(
                "nothing-compared",
                f"{sequence_of(empty)} has rows of no elements, so nothing was compared",
                "both dumps",
                f"{len(empty)} keys",
                "record something else, or leave it out with --layers",
            )
        )
    if isinstance(expect, int):
        for key in keys:
            if key.rows_compared != expect:
                problems.append(
                    Problem(
                        "expected-rows",
                        f"{key.key}: another number of rows was compared than is expected",
                        key.key,
                        f"{key.rows_compared} rows, and --expect-rows says {expect}",
                        "are all prompts in both dumps? The row accounts say where each row went",
                    )
                )
    return problems


def request_matches(comparison: Comparison) -> tuple[RequestMatch, ...]:
    """Who was who, with the rows of each that differ under any key."""
    universe, index = comparison.universe, comparison.indexes[0]
    any_wrong = np.zeros(len(universe.positions), np.bool_)
    for wrong in comparison.wrong.values():
        any_wrong |= wrong
    ids = universe.a.ids
    chosen = np.flatnonzero((ids != NOBODY) & any_wrong[ids]) if len(any_wrong) else np.empty(0, np.int64)
    # A row that several requests share, or that one observed twice, counts once for each of them.
    pairs = np.unique(np.stack([index.requests[chosen], ids[chosen]], axis=1), axis=0)
    numbers, counts = np.unique(pairs[:, 0], return_counts=True)
    wrong_rows = {index.request_ids[number]: int(count) for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)}
    return tuple(
        RequestMatch(match.request_a, match.request_b, match.rows, min(match.rows, wrong_rows.get(match.request_a, 0)), match.how)
        for match in universe.matches
    )

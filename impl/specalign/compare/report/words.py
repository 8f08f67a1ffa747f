"""What every form of the report says in the same words: verdict, places, figures, and which keys are worth showing."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from typing import Final

from specalign.compare.result import Account, CompareReport, Divergence, KeyResult, Problem
from specalign.dump.dtypes import DTYPES
from specalign.layer_ids.findings import one_line

NAN_DISTANCE: Final = 2**64 - 1
"""The distance of a NaN from any other bits, as in `specalign.compare.values`; a report must not need the code behind it."""

TIMES: Final = "\N{MULTIPLICATION SIGN}"

NO_CAUSE: Final = "no known cause fits what differs"


class Verdict(enum.StrEnum):
    """The three ways in which a comparison ends."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_PROVEN = "not-proven"


def verdict_of(report: CompareReport) -> Verdict:
    """EQUAL only if the report is ok; DIFFERENT if a value differs; otherwise nothing was proven."""
    if report.ok:
        return Verdict.EQUAL
    return Verdict.DIFFERENT if any(map(differs, report.keys)) else Verdict.NOT_PROVEN


def differs(key: KeyResult) -> bool:
    """Whether any of the key's rows is not equal under the mode."""
    return key.first is not None or key.rows_mismatching > 0


def headline(report: CompareReport) -> str:
    """What the verdict says, without the verdict's own word."""
    match verdict_of(report):
        case Verdict.EQUAL:
            return _equal(report)
        case Verdict.DIFFERENT:
            return _different(report)
        case _:
            return _not_proven(report)


def _equal(report: CompareReport) -> str:
    rows = {key.rows_compared for key in report.keys}
    total = sum(key.rows_compared for key in report.keys)
    size = f"{count(len(report.keys), 'key')} {TIMES} {count(total // len(report.keys), 'row')}"
    if len(rows) > 1:
        size = f"{count(len(report.keys), 'key')}, {count(total, 'row')} in all"
    how = "bit for bit" if report.mode == "bits" else f"within {one_line(report.mode)}"
    prints = sum(key.fingerprint for key in report.keys)
    if prints:
        how += f", {'all' if prints == len(report.keys) else prints} of them by fingerprint"
    return f"{size}, {how}" + (f"; {count(len(report.declared), 'declared gap')}" if report.declared else "")


def _different(report: CompareReport) -> str:
    worst = [key for key in report.keys if differs(key)]
    first = worst[0].first
    since = f", position {first.position:,}" if first is not None else ""
    problems = f"; {count(len(report.problems), 'problem')}" if report.problems else ""
    share = f"{len(worst):,} of {count(len(report.keys), 'key')} differ"
    return f"first at {place(worst[0].key, worst[0].layer)}{since}; {share}{problems}"


def _not_proven(report: CompareReport) -> str:
    gaps = [f"{one_line(k.key)} has {k.rows_compared:,} of {k.rows_expected:,} rows compared" for k in report.keys if not k.ok]
    reasons = [f"{one_line(problem.code)}: {one_line(problem.what)}" for problem in report.problems] or gaps
    if not any(key.rows_compared for key in report.keys):
        return f"nothing was compared: {reasons[0] if reasons else 'no key was found'}"
    more = f" (and {count(len(reasons) - 1, 'reason')} more)" if len(reasons) > 1 else ""
    return f"nothing that was compared differs, but {reasons[0]}{more}"


def untrusted(report: CompareReport) -> list[KeyResult]:
    """Keys before the first divergence that were not compared in full: there may be an earlier one among them."""
    before: list[KeyResult] = []
    for key in report.keys:
        if differs(key):
            return before
        if not key.ok:
            before.append(key)
    return []


def before(report: CompareReport) -> str:
    """What is known of the keys before the first divergence."""
    equal = next((key for key in report.keys if key.key == report.last_equal), None)
    if equal is not None:
        return f"{place(equal.key, equal.layer)} is the last before it that agrees, in all {count(equal.rows_compared, 'row')}"
    return "no key before it agrees in full" if not differs(report.keys[0]) else "it is the first of all keys"


def doubt(report: CompareReport) -> str:
    """Why the first divergence may not be the first; empty if it is."""
    keys = untrusted(report)
    names = ", ".join(one_line(key.key) for key in keys[:3]) + (", …" if len(keys) > 3 else "")
    return f"an earlier one is possible: {count(len(keys), 'key')} before it not compared in full ({names})" if keys else ""


def place(key: str, layer: int | None) -> str:
    """`boundary.5 (after block 4)`."""
    if key == "boundary.0":
        return "boundary.0 (embedding output)"
    if layer is None:
        return one_line(key)
    return f"{one_line(key)} ({'after' if key.startswith('boundary.') else 'in'} block {layer})"


def channel(first: Divergence, key: KeyResult) -> str:
    """`channel 17 of 2,880`; a fingerprint has lanes."""
    return f"lane {first.channel} of its fingerprint" if key.fingerprint else f"channel {first.channel:,} of {key.width:,}"


def hex_bits(bits: int, dtype: str) -> str:
    """`0x3f80`: as many digits as the element type has, so that the sign's place is seen."""
    digits = 2 * DTYPES[dtype].size if dtype in DTYPES else 1
    return f"0x{bits:0{digits}x}"


def distance(first: Divergence, key: KeyResult) -> str:
    """By how much one element differs."""
    if key.fingerprint:
        return "unknown: a fingerprint only says that the row differs"
    if first.ulp is None:
        return "no distance: one of the two is not a number"
    return f"{ulp_text(first.ulp)} ULP, |a - b| = {abs_text(abs(first.value_a - first.value_b))}"


def worst_of(key: KeyResult) -> str:
    """The largest distance under a key."""
    if key.max_ulp is None:
        return "largest distance unknown"
    return f"at most {ulp_text(key.max_ulp)} ULP and |a - b| = {abs_text(key.max_abs)} in this key"


def ulp_text(ulp: int | None) -> str:
    """A distance in units in the last place."""
    if ulp is None:
        return "?"
    if ulp >= NAN_DISTANCE:
        return "NaN"
    return f"{ulp:,}" if ulp < 10**12 else f"{ulp:.2e}"


def elements_text(key: KeyResult) -> str:
    """How many elements differ, which fingerprints do not tell."""
    return "?" if key.fingerprint and differs(key) else f"{key.elements_mismatching:,}"


def abs_text(value: float | None) -> str:
    """An absolute difference, to three digits."""
    return "?" if value is None else "NaN" if math.isnan(value) else f"{value:.3g}"


def value_text(value: float) -> str:
    """The value of an element, exactly."""
    return "NaN" if math.isnan(value) else repr(float(value))


def dtype_text(key: KeyResult) -> str:
    """The element type; both, where they differ."""
    both = dict.fromkeys(shorten(one_line(name), 16) for name in (key.dtype_a, key.dtype_b))
    return " ≠ ".join(both)


def remarks(key: KeyResult) -> str:
    """What else is to be said of a key."""
    found = [
        (key.fingerprint, "by fingerprint"),
        (key.zero_signs > 0, f"{key.zero_signs:,} -0 against +0"),
        (key.nonfinite_a + key.nonfinite_b > 0, f"non-finite: a {key.nonfinite_a:,}, b {key.nonfinite_b:,}"),
    ]
    return ", ".join(text for applies, text in found if applies)


def count(n: int, noun: str) -> str:
    """`1 row`, `4,096 rows`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` characters, its middle left out: both ends of a dotted name tell something."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


ACCOUNT_PARTS: Final = ("compared", "repeated", "padding", "health_checks", "terminal", "declared", "missing")
"""The fields of an `Account` that add up to its rows."""


def account_parts(account: Account) -> dict[str, int]:
    """The parts by name; `unaccounted` is 0 unless the account is wrong."""
    parts = {name.replace("_", " "): int(getattr(account, name)) for name in ACCOUNT_PARTS}
    return {**parts, "unaccounted": account.rows - sum(parts.values())}


def grouped(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Problems of one code that ask for the same, together; in the order in which they were found."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.next), []).append(problem)
    return list(groups.values())


def choose(report: CompareReport, limit: int) -> list[int]:
    """At most `limit` indices into the keys, ascending, so that what matters is among them.

    In this order: the first divergence, the last key that agrees before it, both ends, the largest distances, gaps of coverage,
    and then what lies around the first divergence, more of it behind than before.
    """
    if len(report.keys) <= limit:
        return list(range(len(report.keys)))
    chosen: dict[int, None] = {}
    for index in _by_interest(report):
        if len(chosen) == limit:
            break
        chosen[index] = None
    return sorted(chosen)


def _by_interest(report: CompareReport) -> Iterator[int]:
    keys = report.keys
    start = next((i for i, key in enumerate(keys) if differs(key)), None)
    at = start if start is not None else 0
    yield at
    yield max((i for i in range(at) if keys[i].ok), default=at)
    yield 0
    yield len(keys) - 1
    yield max(range(len(keys)), key=lambda i: keys[i].max_ulp or 0)
    yield max(range(len(keys)), key=lambda i: keys[i].rows_mismatching)
    yield from [i for i, key in enumerate(keys) if key.rows_compared != key.rows_expected or remarks(key)][:4]
    for step in range(1, len(keys)):
        yield from (i for i in (at + 2 * step - 1, at + 2 * step, at - step) if 0 <= i < len(keys))


def left_out(keys: Sequence[KeyResult]) -> str:
    """What a table says in place of keys that it does not show."""
    different = sum(map(differs, keys))
    equal = sum(key.ok for key in keys)
    parts = [(equal, "equal"), (different, "different"), (len(keys) - equal - different, "not compared in full")]
    kinds = [(n, word) for n, word in parts if n]
    said = f"all {kinds[0][1]}" if len(kinds) == 1 else ", ".join(f"{n} {word}" for n, word in kinds)
    return f"{count(len(keys), 'key')} left out ({said})"

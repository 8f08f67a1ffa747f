"""The report as one screen of text: where, since when, by how much, why; then what was compared and what was not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from specalign.compare.report import words
from specalign.compare.report.words import Verdict, count
from specalign.compare.result import Account, CompareReport, Divergence, KeyResult, Problem, RequestMatch
from specalign.layer_ids.findings import one_line
from specalign.layer_ids.tables import format_table

TABLE_KEYS: Final = 8
"""Keys that the table shows; lines that say what is left out come on top."""

MAX_PROBLEMS: Final = 20
"""Kinds of problems that are printed in full. One of each code comes before a second one of any."""

_PLACES: Final = 3
_LINES: Final = 3
_INDENT: Final = 9
_COLORS: Final = {Verdict.EQUAL: "32", Verdict.DIFFERENT: "31", Verdict.NOT_PROVEN: "33"}
_HEAD: Final = ("key", "rows compared", "rows differ", "elements differ", "max ULP", "max |a - b|", "type", "")


def format_text(report: CompareReport, *, width: int = 100, color: bool = False) -> str:
    """The report for a terminal.

    Names out of the dumps are escaped, so that none starts a line of its own or moves the cursor.

    Args:
        report: what a comparison found.
        width: columns to wrap at, at least 40; a path or a name longer than that is not broken.
        color: mark the verdict and the labels with ANSI colours.

    Returns:
        Lines without a newline at the end: at most 40, unless there are many kinds of problems.
    """
    screen = _Screen(max(width, 40), color)
    verdict = words.verdict_of(report)
    word = verdict.value.upper().replace("-", " ")
    sections = (
        [screen.heading(word, words.headline(report), _COLORS[verdict])],
        list(_first(report, screen)),
        list(_problems(report, screen)),
        [_table(report, screen.width)] if report.keys else [],
        list(_coverage(report, screen)),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


class _Screen:
    """How wide, and whether in colour."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self._color = width, color

    def heading(self, word: str, text: str, code: str) -> str:
        lines = self._wrap(text, f"{word}: ", "  ")
        return lines.replace(word, self._paint(word, f"1;{code}"), 1)

    def line(self, label: str, text: str, code: str = "1") -> str:
        """`text` behind a label in a column of its own; further lines are indented."""
        name = label.ljust(_INDENT)
        return self._paint(label, code) + self._wrap(text, name, " " * _INDENT)[len(label) :]

    def more(self, text: str) -> str:
        """A line under the last label."""
        return self._wrap(text, " " * _INDENT, " " * (_INDENT + 2))

    def _wrap(self, text: str, first: str, other: str) -> str:
        return textwrap.fill(
            text, self.width, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
        )

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text else text


def _first(report: CompareReport, screen: _Screen) -> Iterator[str]:
    key = next((key for key in report.keys if words.differs(key)), None)
    if key is None:
        return
    if key.first is not None:
        yield screen.line("where", f"{words.place(key.key, key.layer)}, {words.channel(key.first, key)}, {key.first.dtype}")
        yield screen.more(f"request {_name(key.first.request_a)} in a, {_name(key.first.request_b)} in b")
        yield screen.line("since", f"position {key.first.position:,}, token {key.first.token}")
    yield screen.more(words.before(report))
    if words.doubt(report):
        yield screen.more(words.doubt(report))
    if key.first is not None:
        yield screen.line("by", f"{words.distance(key.first, key)}; {words.worst_of(key)}")
        yield from map(screen.more, _two_sides(key.first, key))
    yield from _why(report, screen)


def _two_sides(first: Divergence, key: KeyResult) -> tuple[str, str]:
    bits = [words.hex_bits(bits, first.dtype) for bits in (first.bits_a, first.bits_b)]
    values = [words.value_text(value) for value in (first.value_a, first.value_b)]
    shown = ["", ""] if key.fingerprint else [f"  {value.ljust(max(map(len, values)))}" for value in values]
    where = [one_line(first.where_a), one_line(first.where_b)]
    a, b = (f"{side}  {b}{v}  {w}" for side, b, v, w in zip("ab", bits, shown, where, strict=True))
    return a, b


def _why(report: CompareReport, screen: _Screen) -> Iterator[str]:
    why = report.explanation
    if why is None:
        yield screen.line("why", words.NO_CAUSE)
        return
    yield screen.line("why", f"{one_line(why.cause)}: {one_line(why.text)} ({why.fits:,} of {count(why.tried, 'row')} fit)")
    yield screen.more(f"next: {one_line(why.next)}")


def _problems(report: CompareReport, screen: _Screen) -> Iterator[str]:
    groups = _one_of_each_first(words.grouped(report.problems))
    for group in groups[:MAX_PROBLEMS]:
        first = group[0]
        times = f" {words.TIMES} {len(group):,}" if len(group) > 1 else ""
        yield screen.line("problem", f"{one_line(first.code)}{times}: {one_line(first.what)}{_figures(first)}", "1;33")
        yield from (
            screen.more(f"at {one_line(p.where)}{_figures(p) if p is not first else ''}") for p in group[:_PLACES] if p.where
        )
        if len(group) > _PLACES:
            yield screen.more(f"and at {count(len(group) - _PLACES, 'place')} more")
        yield screen.more(f"next: {one_line(first.next)}")
    left = sum(map(len, groups[MAX_PROBLEMS:]))
    if left:
        yield screen.line("problems", f"{left:,} more of these codes are left out; the JSON report has all of them", "1;33")


def _figures(problem: Problem) -> str:
    return f" ({one_line(problem.how_much)})" if problem.how_much else ""


def _one_of_each_first(groups: Iterable[list[Problem]]) -> list[list[Problem]]:
    seen: set[str] = set()
    new: list[list[Problem]] = []
    again: list[list[Problem]] = []
    for group in groups:
        (again if group[0].code in seen else new).append(group)
        seen.add(group[0].code)
    return new + again


def _table(report: CompareReport, width: int) -> str:
    chosen = words.choose(report, TABLE_KEYS)
    rows = _right([_HEAD, *(_row(report.keys[i]) for i in chosen)], range(1, 6))
    others = max(map(len, format_table([("", *row[1:]) for row in rows]).split("\n")))
    narrow = max(16, width - others)
    lines = format_table([(words.shorten(row[0], narrow), *row[1:]) for row in rows]).split("\n")
    shown, last = [lines[0]], -1
    for index, line in zip(chosen, lines[1:], strict=True):
        shown += _gap(report.keys[last + 1 : index])
        shown.append(line)
        last = index
    return "\n".join(shown)


def _right(rows: Sequence[tuple[str, ...]], columns: Sequence[int]) -> list[tuple[str, ...]]:
    """The rows with these columns aligned to the right, as figures are read."""
    wide = {i: max(len(row[i]) for row in rows) for i in columns}
    return [tuple(text.rjust(wide.get(i, 0)) for i, text in enumerate(row)) for row in rows]


def _row(key: KeyResult) -> tuple[str, ...]:
    return (
        one_line(key.key),
        f"{key.rows_compared:,}/{key.rows_expected:,}",
        f"{key.rows_mismatching:,}",
        words.elements_text(key),
        words.ulp_text(key.max_ulp),
        words.abs_text(key.max_abs),
        words.dtype_text(key),
        words.remarks(key),
    )


def _gap(keys: Sequence[KeyResult]) -> list[str]:
    return [f"  … {words.left_out(keys)}"] if keys else []


def _coverage(report: CompareReport, screen: _Screen) -> Iterator[str]:
    yield from _account("rows a", report.a, screen)
    yield from _account("rows b", report.b, screen)
    if report.requests:
        yield screen.line("requests", _requests(report.requests))
    yield from _some("declared", report.declared, screen)
    yield from _some("note", report.notes, screen)


def _account(label: str, side: Account, screen: _Screen) -> Iterator[str]:
    parts = " + ".join(f"{n:,} {name}" for name, n in words.account_parts(side).items() if n) or "none"
    who = f"{count(side.passes, 'pass').replace('passs', 'passes')}, {count(side.requests, 'request')}"
    yield screen.line(label, f"{one_line(side.dump)} ({one_line(side.producer)}; {who})")
    yield screen.more(f"{count(side.rows, 'row')} = {parts}")


def _requests(requests: Sequence[RequestMatch]) -> str:
    how: dict[str, int] = {}
    for match in requests:
        how[match.how] = how.get(match.how, 0) + 1
    kinds = ", ".join(f"{n:,} by {one_line(kind)}" for kind, n in how.items())
    bad = sorted((m for m in requests if m.rows_mismatching), key=lambda m: -m.rows_mismatching)
    named = [f"{_name(m.request_a)} = {_name(m.request_b)} ({m.rows_mismatching:,} of {count(m.rows, 'row')})" for m in bad[:2]]
    more = [f"{len(bad) - 2:,} more"] if len(bad) > 2 else []
    differ = f"; {len(bad):,} differ: {', '.join(named + more)}" if bad else ""
    return f"{len(requests):,} matched ({kinds}){differ}"


def _some(label: str, lines: Sequence[str], screen: _Screen) -> Iterator[str]:
    for i, text in enumerate(lines[:_LINES]):
        yield screen.line(label, one_line(text)) if i == 0 else screen.more(one_line(text))
    if len(lines) > _LINES:
        yield screen.more(f"and {len(lines) - _LINES:,} more")


def _name(request: str) -> str:
    """A request id in quotes, in a bounded length."""
    return f'"{words.shorten(one_line(request), 40)}"'

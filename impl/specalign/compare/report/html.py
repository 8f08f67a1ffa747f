"""The report as one HTML file: no scripts, no fonts, no pictures from elsewhere, so that it opens anywhere and for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from specalign.compare.report import svg, words
from specalign.compare.report.words import count
from specalign.compare.result import Account, CompareReport, KeyResult, RequestMatch
from specalign.layer_ids.files import InputError
from specalign.layer_ids.findings import one_line
from specalign.layer_ids.rewrite import write_text_atomically

MAX_MAP_KEYS: Final = 256
MAX_TABLE_KEYS: Final = 1000
MAX_LINES: Final = 200
"""Requests, problems, declared gaps and notes that the page shows, of each; it says how many there are."""


def write_html(report: CompareReport, path: Path) -> None:
    """Write the report to `path`: to a temporary name beside it first, flushed, then renamed.

    A link is followed; the mode of an existing file is kept. The file's size is bounded, whatever the size of the report.

    Raises:
        InputError: jinja2 is missing, or the file cannot be written; what stood there before is unharmed.
    """
    write_text_atomically(render(report), Path(path))


def render(report: CompareReport) -> str:
    """The page as text.

    Raises:
        InputError: jinja2 is missing.
    """
    return filled(_template(), _content(report))


def filled(template: str, content: Mapping[str, Any]) -> str:
    """A page of ours: everything in it is escaped, and the filter `plain` makes one line of text without control characters.

    Raises:
        InputError: jinja2 is missing.
    """
    try:
        import jinja2
    except ModuleNotFoundError as missing:
        if missing.name != "jinja2":
            raise
        raise InputError("the HTML report needs jinja2: pip install 'pytest-specalign[report]'") from None
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = one_line
    return environment.from_string(template).render(content)


def page_style() -> str:
    """The style sheet of the page, for pages of ours that stand beside it."""
    return _template().split("<style>")[1].split("</style>")[0]


def _template() -> str:
    return resources.files(__package__).joinpath("template.html.j2").read_text("utf-8")


def _content(report: CompareReport) -> dict[str, Any]:
    verdict = words.verdict_of(report)
    return {
        "verdict": verdict.value,
        "word": verdict.value.upper().replace("-", " "),
        "headline": words.headline(report),
        "mode": report.mode,
        "patterns": _markup(svg.patterns()),
        "sides": [("a", report.a), ("b", report.b)],
        "answers": _answers(report),
        "map": _map(report),
        "curves": _curves(report.keys),
        "account": _accounts(report.a, report.b),
        "keys": [_key(report.keys[i], report) for i in words.choose(report, MAX_TABLE_KEYS)],
        "keys_said": _said(len(report.keys), MAX_TABLE_KEYS, "key"),
        "problems": report.problems[:MAX_LINES],
        "problems_said": _said(len(report.problems), MAX_LINES, "problem"),
        "requests": _requests(report.requests)[:MAX_LINES],
        "requests_said": _said(len(report.requests), MAX_LINES, "request"),
        "texts": [(name, lines[:MAX_LINES], _said(len(lines), MAX_LINES, "line")) for name, lines in _texts(report) if lines],
    }


def _texts(report: CompareReport) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("Declared gaps", report.declared), ("Notes", report.notes)


def _said(total: int, shown: int, noun: str) -> str:
    return count(total, noun) if total <= shown else f"{shown:,} of {count(total, noun)} shown"


def _answers(report: CompareReport) -> dict[str, Any] | None:
    key = next((key for key in report.keys if words.differs(key)), None)
    if key is None:
        return None
    why = report.explanation
    return {
        "place": words.place(key.key, key.layer),
        "before": words.before(report),
        "doubtful": words.doubt(report),
        "first": _first(key),
        "why": why,
        "fits": None if why is None else f"{why.fits:,} of {count(why.tried, 'row')} on which it was tried",
        "no_cause": words.NO_CAUSE,
    }


def _first(key: KeyResult) -> dict[str, Any] | None:
    first = key.first
    if first is None:
        return None
    a = ("a", first.request_a, first.bits_a, first.value_a, first.where_a)
    b = ("b", first.request_b, first.bits_b, first.value_b, first.where_b)
    return {
        "channel": words.channel(first, key),
        "dtype": first.dtype,
        "position": f"{first.position:,}",
        "token": first.token,
        "distance": words.distance(first, key),
        "worst": words.worst_of(key),
        "sides": [
            (side, request, words.hex_bits(bits, first.dtype), "" if key.fingerprint else words.value_text(value), where)
            for side, request, bits, value, where in (a, b)
        ],
    }


def _map(report: CompareReport) -> Mapping[str, Any] | None:
    keys = [report.keys[i] for i in words.choose(report, MAX_MAP_KEYS)]
    if not any(key.cells for key in keys):
        return None
    first = report.first.key if report.first is not None else None
    return {
        "side": svg.label_width(keys, first),
        "labels": _markup(svg.map_labels(keys, first)),
        "axis": _markup(svg.map_axis(report.position_edges)),
        "cells": _markup(svg.map_cells(keys, report.position_edges, first)),
        "states": svg.STATES.items(),
        "said": _said(len(report.keys), MAX_MAP_KEYS, "key"),
    }


def _curves(keys: Sequence[KeyResult]) -> list[tuple[str, Any]]:
    """Nothing if all is equal; of a long forward the worst of every n keys: a curve has no room for more."""
    if len(keys) < 2 or not any(words.differs(key) or key.max_ulp for key in keys):
        return []
    step = -(-len(keys) // MAX_MAP_KEYS)
    some = [max(keys[i : i + step], key=lambda key: (key.rows_mismatching, key.max_ulp or 0)) for i in range(0, len(keys), step)]
    share, ulp = _markup(svg.share_curve(some)), _markup(svg.ulp_curve(some))
    said = f", the worst of each {step} keys" if step > 1 else ""
    return [(f"Share of rows that differ{said}", share), (f"Largest distance in ULP{said}", ulp)]


def _accounts(a: Account, b: Account) -> dict[str, Any]:
    parts_a, parts_b = words.account_parts(a), words.account_parts(b)
    return {
        "bars": [(side, _markup(svg.account_bar(account, f"rows of side {side}"))) for side, account in (("a", a), ("b", b))],
        "parts": [(name, f"{n:,}", f"{parts_b[name]:,}") for name, n in parts_a.items() if n or parts_b[name]],
        "rows": (f"{a.rows:,}", f"{b.rows:,}"),
    }


def _key(key: KeyResult, report: CompareReport) -> dict[str, Any]:
    state = "different" if words.differs(key) else "equal" if key.ok else "gap"
    return {
        "name": words.place(key.key, key.layer),
        "state": state,
        "word": {"different": "≠ differs", "equal": "= equal", "gap": "? not in full"}[state],
        "is_first": report.first is not None and report.first.key == key.key,
        "figures": (
            f"{key.rows_compared:,} / {key.rows_expected:,}",
            f"{key.rows_mismatching:,}",
            words.elements_text(key),
            words.ulp_text(key.max_ulp),
            words.abs_text(key.max_abs),
        ),
        "dtype": words.dtype_text(key),
        "remarks": words.remarks(key),
    }


def _requests(requests: Sequence[RequestMatch]) -> list[RequestMatch]:
    """Those with differences first: they must be among the ones that are shown."""
    return sorted(requests, key=lambda match: not match.rows_mismatching)


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704  # built by svg.tag, which escapes

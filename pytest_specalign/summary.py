"""The section that the plugin adds to pytest's summary, if there is something to say."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pytest

from pytest_specalign.judgement import PROBLEMS, Judgement, Noted
from pytest_specalign.state import JUDGEMENT

_SHOWN: Final = 20
"""Lines of one kind, where the run does not fail by them; what fails it is named in full."""

Line = tuple[str, dict[str, bool]]
"""Text, and how pytest's terminal shows it."""

_BAD: Final = {"red": True, "bold": True}
_DOUBT: Final = {"yellow": True}
_GOOD: Final = {"green": True}
_MARKUP: Final = {"failed": _BAD, "incomplete": {"yellow": True, "bold": True}, "clean": _GOOD}


def print_summary(config: pytest.Config) -> None:
    """Write the section, once; nothing where nothing needs saying, and nothing on a worker."""
    judgement = config.stash.get(JUDGEMENT, None)
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if judgement is None or terminal is None:
        return
    del config.stash[JUDGEMENT]
    if not says_something(judgement):
        return
    plain = importlib.import_module("specalign.layer_ids.findings").one_line
    terminal.write_sep("=", "specalign", **_MARKUP[judgement.verdict])
    for text, markup in lines(judgement):
        terminal.write_line(plain(text), **markup)


def says_something(judgement: Judgement) -> bool:
    """A run that was asked nothing, or in which all ran and agreed where nobody required it, passes without a word."""
    told = judgement.problems or judgement.notes or judgement.divergences or judgement.expected
    unrun = any(account.skipped or account.deselected for account in judgement.accounts)
    cut = judgement.incomplete and (judgement.accounts or judgement.comparisons)
    required = judgement.policy.requires and (judgement.policy.is_asked or judgement.accounts)
    return bool(told or unrun or cut or required)


def lines(judgement: Judgement) -> Iterator[Line]:
    """What the section says, from the policy to the verdict."""
    yield f"gpu policy: {judgement.policy.format()}", {}
    for account in judgement.accounts:
        yield account.format(), {}
        yield from _short((f"  {number} not run: {reason}" for reason, number in account.unrun), _DOUBT)
    yield from _waived(judgement)
    yield from _comparisons(judgement)
    for code, (headline, advice) in PROBLEMS.items():
        found = [problem for problem in judgement.problems if problem.code == code]
        if found:
            yield f"FAILED: {headline}:", _BAD
            yield from ((f"  {problem.format()}", {"red": True}) for problem in found)
            yield f"  next: {advice}", {}
    yield from _short((f"note: {note}" for note in judgement.notes), _DOUBT)
    yield f"verdict: {_verdict(judgement)}", _MARKUP[judgement.verdict]


def _verdict(judgement: Judgement) -> str:
    return judgement.verdict + (f"; incomplete: {'; '.join(judgement.incomplete)}" if judgement.incomplete else "")


def _waived(judgement: Judgement) -> Iterator[Line]:
    found = [f"  {nodeid}: {why} (until {waiver.expires}: {waiver.reason})" for nodeid, why, waiver in judgement.waived]
    if found:
        yield "waived:", {}
        yield from _short(found, {})


def _comparisons(judgement: Judgement) -> Iterator[Line]:
    if not judgement.comparisons:
        return
    bad, expected = judgement.divergences, judgement.expected
    parts = [f"{len(bad)} not equal"] if bad else []
    parts += [f"{len(expected)} not equal in tests that passed"] if expected else []
    yield f"comparisons: {len(judgement.comparisons)}, {', '.join(parts) or 'all equal'}", {}
    yield from _short(_compared(bad), {"red": True})
    yield from _short(_compared(expected), _DOUBT)


def _compared(noted: Iterable[Noted]) -> list[str]:
    shown = []
    for one in noted:
        more = f" (see {', '.join(one.comparison.artifacts)})" if one.comparison.artifacts else ""
        shown.append(f"  {one.nodeid}: {one.comparison.format()}{more}")
    return shown


def _short(texts: Iterable[str], markup: dict[str, bool]) -> Iterator[Line]:
    every: Sequence[str] = list(texts)
    yield from ((text, markup) for text in every[:_SHOWN])
    if len(every) > _SHOWN:
        yield f"  … and {len(every) - _SHOWN} more", markup

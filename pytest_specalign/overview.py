"""The HTML overview of a run, `--specalign-report=FILE.html`: one file, without scripts, fonts or pictures from elsewhere.

It has the look of the page that `specalign compare --html` writes. What a comparison left on disk is linked relative to the
page, so that the folder can be moved or kept as a CI artifact.
"""

from __future__ import annotations

import datetime
import importlib
import os
import urllib.parse
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_specalign.judgement import PROBLEMS, Judgement, Noted
from pytest_specalign.options import get_option
from pytest_specalign.report import environment, version

MAX_ROWS: Final = 2000
"""Rows of a table that the page shows; those that differ come first, and it says how many there are."""

_LOOKS: Final = {"clean": "equal", "failed": "different", "incomplete": "not-proven"}
_STATES: Final = {"equal": ("equal", "= equal"), "different": ("different", "≠ differs"), "not-proven": ("gap", "? not proven")}


def write(config: pytest.Config, judgement: Judgement) -> bool:
    """Write the page if it was asked for. False, and said on the terminal, where it cannot be written."""
    path = get_option(config, "report")
    if path is None:
        return True
    write_text: Any = importlib.import_module("specalign.layer_ids.rewrite").write_text_atomically
    facts = {"pytest-specalign": version(), "pytest": pytest.__version__, **environment(config)}
    arguments = " ".join(config.invocation_params.args)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(render(judgement, folder=path.parent, facts=facts, arguments=arguments), path)
    except (OSError, ValueError) as error:  # InputError is a ValueError
        terminal: Any = config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.write_line("")  # the line of dots may be open
            terminal.write_line(f"specalign: --specalign-report={path}: {error}", red=True, bold=True)
        return False
    return True


def render(judgement: Judgement, *, folder: Path, facts: dict[str, str], arguments: str) -> str:
    """The page as text.

    Args:
        folder: where the page will stand; links to artifacts start there.
        facts: name → value, of the run's environment.
        arguments: of pytest.
    """
    jinja2 = importlib.import_module("jinja2")
    page_style: Any = importlib.import_module("specalign.compare.report.html").page_style
    plain = importlib.import_module("specalign.layer_ids.findings").one_line
    source = resources.files(__package__).joinpath("overview.html.j2").read_text("utf-8")
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["plain"] = lambda value: plain(str(value))
    style = importlib.import_module("markupsafe").Markup(page_style())  # our own text, without values of the run
    page: str = made.from_string(source).render(**_content(judgement, folder), style=style, facts=facts, arguments=arguments)
    return page


def _content(judgement: Judgement, folder: Path) -> dict[str, Any]:
    noted = [*judgement.divergences, *judgement.expected]
    noted += [one for one in judgement.comparisons if one.comparison.ok]
    problems = [(code, *PROBLEMS[code], [p for p in judgement.problems if p.code == code]) for code in PROBLEMS]
    return {
        "judgement": judgement,
        "look": _LOOKS[judgement.verdict],
        "headline": _headline(judgement),
        "ended": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "problems": [entry for entry in problems if entry[3]],
        "divergences": [_row(one, folder) for one in judgement.divergences[:MAX_ROWS]],
        "comparisons": [_row(one, folder) for one in noted[:MAX_ROWS]],
        "said": _said(noted),
    }


def _headline(judgement: Judgement) -> str:
    total, bad = len(judgement.comparisons), len(judgement.divergences)
    compared = f"{bad} of {total} comparisons not equal" if bad else f"{total} comparisons, none of a failing test differs"
    compared = compared if total else "nothing was compared"
    gpu = next((account for account in judgement.accounts if account.mark == "gpu"), None)
    return compared + (f"; {gpu.run} GPU tests run, {gpu.skipped} not" if gpu is not None else "")


def _said(noted: Sequence[Noted]) -> str:
    return f"{len(noted):,}" if len(noted) <= MAX_ROWS else f"{MAX_ROWS:,} of {len(noted):,} shown"


def _row(noted: Noted, folder: Path) -> dict[str, Any]:
    state, word = _STATES[noted.comparison.verdict]
    if state != "equal" and not noted.failed:
        state, word = "gap", f"{word}, test passed"
    return {
        "test": noted.nodeid,
        "place": f"{noted.file}:{noted.line}" if noted.file else "",
        "name": f"{noted.comparison.kind} {noted.comparison.name}".strip(),
        "state": state,
        "word": word,
        "figures": (f"{noted.comparison.differing:,}", f"{noted.comparison.compared:,}"),
        "unit": noted.comparison.unit,
        "first": noted.comparison.first,
        "artifacts": [_link(path, folder) for path in noted.comparison.artifacts],
    }


def _link(path: str, folder: Path) -> tuple[str, str]:
    """Address and text; the address is empty where nothing stands there."""
    relative = os.path.relpath(path, folder)
    return (urllib.parse.quote(relative) if os.path.lexists(path) else "", relative)

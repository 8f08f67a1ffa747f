"""What GitHub shows of a run: the step summary, in Markdown, and annotations. Only where GITHUB_ACTIONS is true."""

from __future__ import annotations

import html
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_specalign.judgement import PROBLEMS, Judgement
from pytest_specalign.summary import says_something

MAX_ANNOTATIONS: Final = 10
"""As many errors of one step as GitHub shows; the last says how many more there are."""

MAX_ROWS: Final = 200
MAX_BYTES: Final = 256 * 1024
"""GitHub refuses a step summary over 1 MiB as a whole, and other parts of the step write to it too."""

_ICONS: Final = {"clean": "✅", "failed": "❌", "incomplete": "⚠️"}


def tell(config: pytest.Config, judgement: Judgement) -> None:
    """Append to the step summary and print the annotations, each at the start of a line."""
    if os.environ.get("GITHUB_ACTIONS") != "true" or not (says_something(judgement) or judgement.comparisons):
        return
    said = error_lines(judgement, os.environ.get("GITHUB_WORKSPACE", ""), config.rootpath)
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if place:
        try:
            with Path(place).open("a", encoding="utf-8") as file:
                file.write(markdown(judgement))
        except OSError as error:
            said.append(f"specalign: GITHUB_STEP_SUMMARY={place}: {error.strerror or error}")
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if said and terminal is not None:
        terminal.write_line("")  # the line of dots may be open, and GitHub takes a command at the start of a line only
        for line in said:
            terminal.write_line(line)


def error_lines(judgement: Judgement, workspace: str, rootpath: Path) -> list[str]:
    """Workflow commands: divergences first, then what else fails the run, then why it is incomplete."""
    command = importlib.import_module("specalign.layer_ids.annotations").workflow_command
    found = list(_found(judgement))
    if len(found) > MAX_ANNOTATIONS:
        more = len(found) - MAX_ANNOTATIONS + 1
        rest = ("specalign", f"{more} more are in the log and in the step summary", "", 0)
        found = [*found[: MAX_ANNOTATIONS - 1], rest]
    return [command("error", text, _properties(title, file, line, workspace, rootpath)) for title, text, file, line in found]


def markdown(judgement: Judgement) -> str:
    """The section of the step summary; names of tests and their messages are text in it, whatever they hold."""
    text = "\n".join(_markdown(judgement)) + "\n"
    if len(text.encode()) <= MAX_BYTES:
        return text
    cut = text.encode()[:MAX_BYTES].decode(errors="ignore").rpartition("\n")[0]
    return f"{cut}\n\n… cut here: the log has all of it.\n"


def _found(judgement: Judgement) -> Iterator[tuple[str, str, str, int]]:
    """Title, text, file and line."""
    for noted in judgement.divergences:
        where = "\n".join(f"see {path}" for path in noted.comparison.artifacts)
        text = f"{noted.nodeid}\n{noted.comparison.format()}" + (f"\n{where}" if where else "")
        yield f"specalign {noted.comparison.verdict}", text, noted.file, noted.line
    for problem in judgement.problems:
        headline, advice = PROBLEMS[problem.code]
        yield f"specalign {problem.code}", f"{headline}\n{problem.format()}\nnext: {advice}", problem.file, problem.line
    for reason in judgement.incomplete:
        yield "specalign incomplete", f"the run is incomplete: {reason}", "", 0


def _properties(title: str, file: str, line: int, workspace: str, rootpath: Path) -> dict[str, str]:
    """GitHub wants files relative to the workspace; pytest gives them relative to rootdir."""
    properties = {}
    if file:
        path = Path(os.path.normpath(rootpath / file))
        inside = bool(workspace) and path.is_relative_to(workspace)
        properties["file"] = str(path.relative_to(workspace)) if inside else file
    if line:
        properties["line"] = str(line)
    return {**properties, "title": title}


def _markdown(judgement: Judgement) -> Iterator[str]:
    yield f"### {_ICONS[judgement.verdict]} specalign: {judgement.verdict}"
    yield from ("", *(f"- incomplete: {_text(reason)}" for reason in judgement.incomplete))
    yield from ("", f"GPU policy: {_text(judgement.policy.format())}", "")
    yield from _table(
        ("mark", "run", "failed", "not run", "waived", "deselected"),
        [(a.mark, a.run, a.failed, a.skipped, a.waived, a.deselected) for a in judgement.accounts],
    )
    rows = [(noted.nodeid, noted.comparison.format()) for noted in judgement.divergences]
    yield from _titled("Divergences", ("test", "comparison"), rows)
    rows = [(problem.code, problem.format()) for problem in judgement.problems]
    yield from _titled("What fails the run", ("", "what"), rows)
    reasons = [(account.mark, number, reason) for account in judgement.accounts for reason, number in account.unrun]
    yield from _titled("Not run", ("mark", "tests", "why"), reasons)
    waived = [(nodeid, waiver.reason, waiver.expires) for nodeid, _, waiver in judgement.waived]
    yield from _titled("Waived", ("test", "reason", "until"), waived)
    equal = len(judgement.comparisons) - len(judgement.divergences) - len(judgement.expected)
    if judgement.comparisons:
        yield f"{equal} of {len(judgement.comparisons)} comparisons equal"
    yield from (f"- note: {_text(note)}" for note in judgement.notes[:MAX_ROWS])


def _titled(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if rows:
        yield from (f"**{title}**", "")
        yield from _table(head, rows[:MAX_ROWS])
        if len(rows) > MAX_ROWS:
            yield from (f"… and {len(rows) - MAX_ROWS} more", "")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |"
        yield "|" + "---|" * len(head)
        yield from (f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows)
        yield ""


def _text(cell: object) -> str:
    """Text in Markdown: HTML's own characters as entities, and those that Markdown or GitHub give a meaning."""
    one_line: Any = importlib.import_module("specalign.layer_ids.findings").one_line
    plain = html.escape(str(one_line(str(cell))), quote=False)
    return "".join(f"&#{ord(char)};" if char in "\\`*_{}[]()#+!|~@:" else char for char in plain)

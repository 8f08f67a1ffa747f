"""Carries goldens between trees, and turns what `specalign golden diff` says into the text of a pull request.

    python3 golden_changes.py copy FROM TO            every file below a folder __golden__, to the same place
    python3 golden_changes.py describe DIFF.txt --why TEXT --run URL [--output FILE]

`copy` takes regular files below a __golden__ and nothing else: what comes from a GPU machine can change goldens only. A link, or
any other special file in such a folder, fails. `describe` prints Markdown, and writes `changed=N` to --output. A line of DIFF.txt
that it does not understand fails, so that no change is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = "__golden__"
_CHANGE = re.compile(
    r"(?P<state>different|only old|only new): (?P<name>.+) "
    r"\((?P<old>[0-9a-f]+|none) → (?P<new>[0-9a-f]+|none)(?:, at most (?P<ulp>\d+) ulp)?\)"
)
_LAST = re.compile(r"(?P<all>\d+) goldens, (?P<changed>\d+) changed")
_LIMIT = 50_000  # GitHub takes 65,536 characters


class RefusedError(Exception):
    """What will not be carried or described; the message says why."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One golden that changed: the start of its fingerprint before and after, and the largest distance where it is known."""

    state: str
    name: str
    old: str
    new: str
    max_ulp: int | None
    details: tuple[str, ...] = ()

    def row(self) -> str:
        ulp = "unknown" if self.max_ulp is None else f"{self.max_ulp:,}"
        return f"| {_code(self.name)} | {self.state} | {_code(self.old)} | {_code(self.new)} | {ulp} |"


def copy(source: Path, target: Path) -> int:
    """Every golden file; returns how many."""
    count = 0
    for file in golden_files(source):
        there = target / file.relative_to(source)
        if any(parent.is_symlink() for parent in (there, *there.parents) if parent.is_relative_to(target)):
            raise RefusedError(f"{there}: a link leads out of the goldens")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, there)
        count += 1
    return count


def golden_files(top: Path) -> Iterator[Path]:
    """In order; folders that are hidden, like .git, and links to folders are not entered."""
    for folder, names, files in os.walk(top, onerror=_stop):
        here = Path(folder)
        inside = FOLDER in here.relative_to(top).parts
        if inside:
            for name in (*names, *files):
                _refuse_special(here / name)
            yield from (here / name for name in sorted(files))
        names[:] = sorted(name for name in names if inside or (not name.startswith(".") and not (here / name).is_symlink()))


def _stop(error: OSError) -> None:
    raise error


def _refuse_special(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise RefusedError(f"{path}: a golden is a regular file, and this is a link or a special file")


def read_changes(text: str) -> list[Change]:
    """What changed, in the order of the text; its last line must count as many."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = _LAST.fullmatch(lines[-1]) if lines else None
    if last is None:
        raise RefusedError("the comparison did not come to its end: no line `N goldens, M changed`")
    changes: list[Change] = []
    for line in lines[:-1]:
        match = _CHANGE.fullmatch(line)
        if match is not None:
            ulp = None if match["ulp"] is None else int(match["ulp"])
            changes.append(Change(match["state"], match["name"], match["old"], match["new"], ulp))
        elif line.startswith("    ") and changes:
            changes[-1] = dataclasses.replace(changes[-1], details=(*changes[-1].details, line.strip()))
        else:
            raise RefusedError(f"this line of the comparison is not understood: {line!r}")
    if len(changes) != int(last["changed"]):
        raise RefusedError(f"{len(changes)} changes are named, and {last['changed']} counted")
    return changes


def describe(changes: list[Change], why: str, run: str) -> str:
    """Markdown: the reason, a table, and where each golden differs."""
    parts = [
        f"Goldens recorded anew by {run}.",
        f"Why: {_code(why)}",
        "Look at each line: a golden that changed for a reason that nobody can name is a bug that was found.",
        "| golden | what | old fingerprint | new fingerprint | max ULP |\n|---|---|---|---|---|\n"
        + "\n".join(change.row() for change in changes),
    ]
    parts += [
        "\n".join([_code(change.name), *(f"- {_code(line)}" for line in change.details)]) for change in changes if change.details
    ]
    text = "\n\n".join(parts)
    return text if len(text) <= _LIMIT else text[:_LIMIT] + "\n\n(cut: the whole comparison is golden-diff.txt of the run)"


def _code(text: str) -> str:
    """Text of any kind as inline code that ends where it should, in a cell of a table too."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    copying = verbs.add_parser("copy")
    copying.add_argument("source", type=Path)
    copying.add_argument("target", type=Path)
    describing = verbs.add_parser("describe")
    describing.add_argument("diff", type=Path)
    describing.add_argument("--why", required=True)
    describing.add_argument("--run", required=True)
    describing.add_argument("--output", type=Path)
    args = parser.parse_args()
    try:
        if args.verb == "copy":
            args.target.mkdir(parents=True, exist_ok=True)
            print(f"{copy(args.source, args.target)} files of goldens copied to {args.target}")
            return 0
        changes = read_changes(args.diff.read_text("utf-8"))
    except (RefusedError, OSError, UnicodeDecodeError) as error:
        print(f"::error::goldens: {error}", file=sys.stderr)
        return 1
    print(describe(changes, args.why, args.run) if changes else "No golden changed.")
    if args.output is not None:
        with args.output.open("a", encoding="utf-8") as file:
            file.write(f"changed={len(changes)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

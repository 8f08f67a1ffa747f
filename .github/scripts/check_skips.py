"""Fails if a JUnit file reports a skip that nobody explained.

    python3 check_skips.py FOLDER --files N --expected FILE

FOLDER must hold exactly N files, each with at least one test: a job that left no report, or ran nothing, is no success.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET  # the files come from our own jobs
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--expected", type=Path, required=True)
    args = parser.parse_args()
    files = sorted(args.folder.rglob("*.xml"))
    expected = read_expected(args.expected)
    problems = [] if len(files) == args.files else [f"{len(files)} reports in {args.folder}, expected {args.files}"]
    explained: Counter[str] = Counter()
    for file in files:
        cases = list(ET.parse(file).iter("testcase"))
        if not cases:
            problems.append(f"{file.name}: no test ran")
        for test, reason in skips(cases):
            if any(pattern.fullmatch(reason) for pattern in expected):
                explained[reason] += 1
            else:
                problems.append(f"{file.name}: {test}: skipped for a reason that is not in {args.expected.name}: {reason!r}")
    for reason, count in explained.most_common():
        print(f"explained: {count} x {reason}")
    for problem in problems:
        print(f"::error::{problem}")
    return 1 if problems else 0


def read_expected(file: Path) -> list[re.Pattern[str]]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def skips(cases: list[ET.Element]) -> Iterator[tuple[str, str]]:
    for case in cases:
        for skipped in case.iter("skipped"):
            yield f"{case.get('classname')}::{case.get('name')}", skipped.get("message", "")


if __name__ == "__main__":
    sys.exit(main())

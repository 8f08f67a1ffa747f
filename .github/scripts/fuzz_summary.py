"""Prints, as Markdown, every falsifying example that a JUnit file holds, in the form of an `@example` for its test.

python3 fuzz_summary.py JUNIT.xml
"""

from __future__ import annotations

import re
import sys
import textwrap
import xml.etree.ElementTree as ET  # the file comes from our own job
from collections.abc import Iterator
from pathlib import Path

# Older versions of hypothesis say "Falsifying example", newer ones "Failing test case".
FIND = re.compile(
    r"^(?P<margin> *)(?:Falsifying|Failing)[\w ]*: (?P<test>\w+)\(\n(?P<arguments>.*?)^(?P=margin)\)", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"^(?:E|  \|)", re.MULTILINE)  # what pytest, or an exception group, puts before the line


def main() -> int:
    file = Path(sys.argv[1])
    if not file.is_file():
        print(f"No report: `{file}` was not written, so the fuzz run did not get as far as its tests.")
        return 1
    failed = [
        case for case in ET.parse(file).iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    if not failed:
        print("No find.")
    for case in failed:
        print(describe(case))
    return 0


def describe(case: ET.Element) -> str:
    text = "\n".join(part for element in case for part in element.itertext())
    found = list(dict.fromkeys(examples(text)))
    title = f"### {case.get('classname')}::{case.get('name')}\n"
    blocks = found or [textwrap.indent(text[-2000:], "    ") if text else "    (no text)"]
    return "\n".join([title, *(f"```python\n{block}\n```\n" for block in blocks)])


def examples(text: str) -> Iterator[str]:
    """Each falsifying example in `text`, ready to paste above its test; `self` is left out, as `@example` wants it."""
    for find in FIND.finditer(MARK.sub(" ", text)):
        lines = textwrap.dedent(find["arguments"]).splitlines()
        arguments = [line for line in lines if line.strip() and not line.startswith("self=")]
        yield "\n".join(["@example(", *(f"    {line}" for line in arguments), ")", f"def {find['test']}(...): ..."])


if __name__ == "__main__":
    sys.exit(main())

"""Fails unless every stage's every shard left its reports, no test was lost between them, and enough GPU tests passed.

    python3 gpu_gate.py FOLDER --stages FILE --skips FILE [--waivers FILE] [--only STAGE] [--needs JSON]

FOLDER holds, at any depth, what each job uploaded: a folder with `account.json` (written by ci_shard.py) and `junit.xml`. --skips
is a file of regular expressions, one a line, of which one must match the whole reason of a skip. --needs is `toJSON(needs)` of
the workflow: every job must have succeeded. Each problem is one line, as an annotation; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import xml.etree.ElementTree as ET  # the files come from our own jobs
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from check_skips import read_expected
from ci_shard_account import Account, BadAccountError, read_account
from gpu_stages import BadFileError, Stage, choose, read_stages
from gpu_waivers import Waiver, read_waivers


@dataclasses.dataclass(frozen=True)
class Case:
    """One test of a JUnit file. `node_id` is empty for what was no test: a file that could not be collected (`name` is then its
    path), a test whose worker crashed."""

    name: str
    node_id: str
    gpu: bool
    skipped: str | None
    broken: bool

    @property
    def passed(self) -> bool:
        return self.skipped is None and not self.broken


@dataclasses.dataclass(frozen=True)
class Rules:
    """What explains a skip."""

    expected: list[re.Pattern[str]]
    waivers: list[Waiver]
    today: date

    def explain(self, case: Case) -> str | None:
        """Why this skip is right, or None."""
        if any(pattern.fullmatch(case.skipped or "") for pattern in self.expected):
            return case.skipped
        why = case.skipped or ""
        return next((waiver.reason for waiver in self.waivers if waiver.excuses(case.name, why, self.today)), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", type=Path, required=True)
    parser.add_argument("--skips", type=Path, required=True)
    parser.add_argument("--waivers", type=Path)
    parser.add_argument("--only", default="all")
    parser.add_argument("--needs", default="{}")
    args = parser.parse_args()
    try:
        stages = choose(read_stages(args.stages), args.only)
        rules = Rules(read_expected(args.skips), read_waivers(args.waivers), datetime.now(UTC).date())
        problems = list(check_needs(json.loads(args.needs)))
        accounts = [read_account(file) for file in sorted(args.folder.rglob("account.json"))]
    except (BadFileError, BadAccountError, OSError, ValueError) as error:
        print(f"::error::{error}")
        return 1
    known = {stage.name for stage in stages}
    problems += [
        f"{account.file}: stage {account.stage!r} was not asked for" for account in accounts if account.stage not in known
    ]
    for stage in stages:
        problems += check_stage(stage, [account for account in accounts if account.stage == stage.name], rules)
    for problem in problems:
        print(f"::error::{problem}")
    return 1 if problems else 0


def check_needs(needs: dict[str, Any]) -> Iterator[str]:
    """A job that was skipped or cancelled has proved nothing."""
    for name, job in needs.items():
        if job.get("result") != "success":
            yield f"job {name}: {job.get('result')}"


def check_stage(stage: Stage, accounts: list[Account], rules: Rules) -> Iterator[str]:
    """Everything about one stage; it also prints what it counted."""
    yield from check_shards(stage, accounts)
    passed: Counter[str] = Counter()
    for account in accounts:
        junit = account.file.with_name("junit.xml")
        where = f"{stage.name} {account.shard}/{account.shards}"
        try:
            cases = read_cases(junit)
        except (OSError, ET.ParseError) as error:
            yield f"{where}: {junit}: {error}"
            continue
        yield from check_cases(where, account, cases, rules)
        passed.update(case.node_id for case in cases if case.gpu and case.passed and case.node_id)
    print(f"{stage.name}: {len(passed)} GPU tests passed, at least {stage.minimum} must")
    if len(passed) < stage.minimum:
        yield f"{stage.name}: {len(passed)} GPU tests passed, at least {stage.minimum} must"
    for place in stage.required:
        if not any(node_id == place or node_id.startswith((f"{place}::", f"{place}[", f"{place}/")) for node_id in passed):
            yield f"{stage.name}: no GPU test of {place} passed"


def check_shards(stage: Stage, accounts: list[Account]) -> Iterator[str]:
    """Shard 1 to N, each once; all collected the same tests, and each test is exactly one shard's."""
    there = Counter((account.shard, account.shards) for account in accounts)
    for number in range(1, stage.shards + 1):
        found = there.pop((number, stage.shards), 0)
        if found != 1:
            yield f"{stage.name}: shard {number}/{stage.shards}: {found} accounts, expected 1"
    for number, count in there:
        yield f"{stage.name}: an account of shard {number}/{count}, where there are {stage.shards} shards"
    everything = {test for account in accounts for test in account.collected}
    for account in accounts:
        shard = f"{stage.name}: shard {account.shard}/{account.shards}"
        yield from few(f"{shard} did not collect {test}, which another did" for test in everything.difference(account.collected))
    taken = Counter(test for account in accounts for test in account.selected)
    if sum(there.values()) == 0 and len(accounts) == stage.shards:
        yield from few(f"{stage.name}: {test} is no shard's" for test in everything.difference(taken))
    yield from few(f"{stage.name}: {test} is {times} shards'" for test, times in taken.items() if times > 1)


def check_cases(where: str, account: Account, cases: list[Case], rules: Rules) -> Iterator[str]:
    """What the shard took is what it reports, nothing failed, and each skip is explained."""
    reported = Counter(case.node_id for case in cases if case.node_id)
    taken = set(account.selected)
    yield from few(f"{where}: {test} was taken and is not in the JUnit file: lost" for test in taken.difference(reported))
    yield from few(f"{where}: {test} is in the JUnit file and was not taken" for test in set(reported) - taken)
    yield from few(f"{where}: {test} is {times} times in the JUnit file" for test, times in reported.items() if times > 1)
    explained: Counter[str] = Counter()
    for case in cases:
        if case.broken:
            yield f"{where}: {case.name}: failed"
        elif case.skipped is not None:
            why = rules.explain(case)
            if why is None:
                yield f"{where}: {case.name}: skipped, and nothing explains it: {case.skipped!r}"
            else:
                explained[why] += 1
        elif not case.node_id:
            yield f"{where}: {case.name}: without the property node_id: was it run with -p ci_shard?"
    for why, count in explained.most_common():
        print(f"{where}: explained: {count} x {why}")


def read_cases(file: Path) -> list[Case]:
    return [_case(element) for element in ET.parse(file).iter("testcase")]


def _case(element: ET.Element) -> Case:
    properties = {item.get("name"): item.get("value", "") for item in element.iter("property")}
    node_id = properties.get("node_id", "")
    return Case(
        name=node_id or _place(element),
        node_id=node_id,
        gpu="gpu" in properties,
        skipped=_reason(element.find("skipped")),
        broken=element.find("failure") is not None or element.find("error") is not None,
    )


def _place(element: ET.Element) -> str:
    """Of what is no test. A file that could not be collected has no class, and its path is written with dots."""
    if element.get("classname"):
        return f"{element.get('classname')}::{element.get('name')}"
    return element.get("name", "").replace(".", "/") + ".py"


def _reason(skipped: ET.Element | None) -> str | None:
    """For a file that skips as a whole the message is always the same, and the reason stands in the text."""
    if skipped is None:
        return None
    inside = re.search(r"""["']Skipped: (.*)["']\)\s*$""", skipped.text or "", re.DOTALL)
    message = skipped.get("message", "")
    return inside[1] if message == "collection skipped" and inside else message


def few(problems: Iterable[str], most: int = 5) -> Iterator[str]:
    """The first of a kind in order, and a count of the rest: GitHub shows ten annotations of a step."""
    lines = sorted(problems)
    yield from lines[:most]
    if len(lines) > most:
        yield f"(and {len(lines) - most} more like the last)"


if __name__ == "__main__":
    sys.exit(main())

"""What a run is worth: its GPU tests against the policy and the waivers, its comparisons, and whether it came to its end.

A function of what was recorded; it prints nothing and changes nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from pytest_specalign.gpu_tests import Selection, merge
from pytest_specalign.marks import MARKS
from pytest_specalign.policy import Policy
from pytest_specalign.record import Record, TestRecord
from pytest_specalign.verdicts import Comparison
from pytest_specalign.waivers import Waiver

_WAIVE: Final = "or name them in the file of --specalign-waivers, with a reason and an expiry date"

PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu-skipped": (
        "GPU tests did not run",
        f"run them where such GPUs are, {_WAIVE}; --specalign-gpu-policy=allow only counts them",
    ),
    "gpu-module-skipped": (
        "modules that hold GPU tests were skipped as a whole",
        f"install what they import, or let each test ask for it, {_WAIVE} by the path of the module",
    ),
    "gpu-dropped": (
        "GPU tests were taken out of the run, and no option asked for that",
        f"select with -m, -k or --deselect, or let them skip and say why, {_WAIVE}",
    ),
    "gpu-unreported": (
        "GPU tests were to run, and no report of them came",
        "find what ended them or ran them elsewhere: a plugin's own pytest_runtest_protocol or pytest_runtestloop",
    ),
    "gpu-none": (
        "no GPU test ran, and GPUs are required",
        "look at what was selected (-m, -k, the paths), or do not ask for --specalign-gpu-policy=require in this run",
    ),
    "waiver-expired": ("waivers have expired", "remove them if the tests run now; otherwise give a new date and say why"),
    "waiver-unmatched": (
        "waivers match no GPU test of this run",
        "correct the node id or remove the waiver (* is any text, everything else stands for itself)",
    ),
    "worker-lost": ("workers of xdist were lost", "read what the worker said last; run without -n to see the crash itself"),
}
"""Code → what it says of one or more tests, and what to do next."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that fails the run, beside the tests that fail.

    Attributes:
        code: one of `PROBLEMS`.
        what: node id, pattern of a waiver, or name of a worker; empty where it is the run as a whole.
        why: in one line.
        file, line: where to point at; empty and 0 where there is no such place.
    """

    code: str
    what: str
    why: str
    file: str = ""
    line: int = 0

    def format(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)


@dataclasses.dataclass(frozen=True)
class MarkAccount:
    """What became of the tests of one mark.

    Attributes:
        run: called to their end, `failed` of them with a failure.
        unrun: reason → number of tests, the most frequent first; waived ones among them.
        waived: how many of those a waiver excuses.
        deselected: taken out by an option of the run; told of GPU tests only.
    """

    mark: str
    run: int
    failed: int
    unrun: tuple[tuple[str, int], ...]
    waived: int = 0
    deselected: int = 0

    @property
    def skipped(self) -> int:
        return sum(number for _, number in self.unrun)

    def format(self) -> str:
        parts = [f"{self.run} run" + (f" ({self.failed} failed)" if self.failed else ""), f"{self.skipped} not run"]
        parts += [f"{self.waived} of them waived"] if self.waived else []
        parts += [f"{self.deselected} deselected by options"] if self.deselected else []
        return f"{self.mark}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True)
class Noted:
    """A comparison and the test that made it. Where it differs and the test passed, the test expected that."""

    nodeid: str
    file: str
    line: int
    failed: bool
    comparison: Comparison


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The verdict on a run, with all that it rests on.

    Attributes:
        policy: what holds for GPU tests.
        problems: what fails the run, beside failing tests.
        notes: what is to be known and fails nothing.
        accounts: one for each mark that tests of the run have.
        waived: node id, why it did not run, and its waiver.
        comparisons: all that were noted.
        incomplete: why the run did not come to its end.
        tests_failed: pytest says that tests failed.
    """

    policy: Policy
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    accounts: tuple[MarkAccount, ...]
    waived: tuple[tuple[str, str, Waiver], ...]
    comparisons: tuple[Noted, ...]
    incomplete: tuple[str, ...]
    tests_failed: bool

    @property
    def verdict(self) -> Literal["clean", "failed", "incomplete"]:
        if self.problems or self.tests_failed or self.divergences:
            return "failed"
        return "incomplete" if self.incomplete else "clean"

    @property
    def ok(self) -> bool:
        return self.verdict == "clean"

    @property
    def divergences(self) -> tuple[Noted, ...]:
        """Comparisons that are not equal, of tests that failed."""
        return tuple(noted for noted in self.comparisons if noted.failed and not noted.comparison.ok)

    @property
    def expected(self) -> tuple[Noted, ...]:
        """Comparisons that are not equal, of tests that passed: a control, or a test that does not look."""
        return tuple(noted for noted in self.comparisons if not noted.failed and not noted.comparison.ok)

    @property
    def fails_the_run(self) -> bool:
        """Whether the exit status must say so, where pytest by itself would end well."""
        return bool(self.problems) or (self.policy.requires and bool(self.incomplete))

    def format(self) -> str:
        """One line."""
        compared = f"{len(self.comparisons)} comparison{'' if len(self.comparisons) == 1 else 's'}"
        parts = [compared + (f", {len(self.divergences)} not equal" if self.divergences else "")] if self.comparisons else []
        parts += [account.format() for account in self.accounts]
        ended = f" and incomplete: {'; '.join(self.incomplete)}" if self.verdict == "failed" and self.incomplete else ""
        ended = ": " + "; ".join(self.incomplete) if self.verdict == "incomplete" else ended
        return f"{self.verdict}{ended}" + (f" ({'; '.join(parts)})" if parts else "")


@dataclasses.dataclass(frozen=True)
class End:
    """How the run ended, in the caller's words.

    Attributes:
        incomplete: why it did not come to its end, as far as pytest tells.
        tests_failed: pytest says that tests failed.
        today: in UTC.
        in_reach: whether the paths of this run would have collected all that a waiver's pattern can mean.
    """

    incomplete: tuple[str, ...]
    tests_failed: bool
    today: datetime.date
    in_reach: Callable[[Waiver], bool]


def judge(record: Record, policy: Policy, waivers: tuple[Waiver, ...], end: End) -> Judgement:
    """The verdict on what was recorded."""
    seen = merge(record.parts)
    unreported = [nodeid for nodeid in seen.selected if not _has_ended(record, nodeid)]
    incomplete = (*_incomplete(record), *end.incomplete)
    unrun = list(_unrun(record, seen))
    if incomplete:
        incomplete += (f"{_count(len(unreported), 'GPU test')} not reached",) if unreported else ()
    else:
        unrun += [(nodeid, "gpu-unreported", "no report came") for nodeid in unreported]
    excuses = {nodeid: _excuse(waivers, nodeid, why, end.today) for nodeid, _, why in unrun}
    accounts = tuple(_accounts(record, seen, excuses))
    bad = [_problem(record, nodeid, code, why, waivers) for nodeid, code, why in unrun if excuses[nodeid] is None]
    bad += _none_ran(accounts) if policy.is_asked else []
    is_whole = not incomplete and not seen.is_narrowed
    known = [*record.tests, *seen.selected, *seen.dropped, *seen.modules]
    bad += _stale(waivers, known, end, is_whole)
    lost = tuple(Problem("worker-lost", *_split(text)) for text in record.lost)
    excused = tuple((nodeid, why, waiver) for nodeid, _, why in unrun if (waiver := excuses[nodeid]) is not None)
    notes = [] if policy.requires else [problem.format() for problem in bad if problem.code.startswith("waiver")]
    notes += _unneeded(waivers, record, excused)
    problems = (*bad, *lost) if policy.requires else lost
    noted = tuple(_noted(record))
    return Judgement(policy, problems, tuple(notes), accounts, excused, noted, incomplete, end.tests_failed)


def _unrun(record: Record, seen: Selection) -> Iterator[tuple[str, str, str]]:
    """Node id, code and reason of each GPU test, or module of them, that did not run."""
    for test in record.tests.values():
        if "gpu" in test.marks and test.unrun is not None and not test.failed:
            yield test.nodeid, "gpu-skipped", _short(test)
    for path, why in seen.modules.items():
        yield path, "gpu-module-skipped", why
    for nodeid, who in seen.dropped.items():
        yield nodeid, "gpu-dropped", f"taken out by {who}"


def _short(test: TestRecord) -> str:
    """The reason, without the node id with which a lease begins it."""
    return (test.unrun or "").removeprefix(f"{test.nodeid}: ")


def _has_ended(record: Record, nodeid: str) -> bool:
    return nodeid in record.tests and record.tests[nodeid].has_ended


def _incomplete(record: Record) -> Iterator[str]:
    """What makes a run incomplete, whatever pytest says."""
    if record.lost:
        yield f"{_count(len(record.lost), 'worker')} of xdist lost"
    if record.uncollected:
        yield f"{_count(len(record.uncollected), 'module')} could not be collected"
    if not record.parts:
        yield "no worker told what it collected"


def _excuse(waivers: tuple[Waiver, ...], nodeid: str, why: str, today: datetime.date) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.excuses(nodeid, why) and not waiver.is_expired(today)), None)


def _problem(record: Record, nodeid: str, code: str, why: str, waivers: tuple[Waiver, ...]) -> Problem:
    covering = next((waiver for waiver in waivers if waiver.covers(nodeid)), None)
    if covering is not None:
        other = f"holds only for {covering.skip!r}" if not covering.excuses(nodeid, why) else f"expired on {covering.expires}"
        why += f" ({covering.place} {other})"
    test = record.tests.get(nodeid, TestRecord(nodeid, file=nodeid.partition("::")[0]))
    return Problem(code, nodeid, why, test.file, test.line)


def _none_ran(accounts: tuple[MarkAccount, ...]) -> list[Problem]:
    gpu = next((account for account in accounts if account.mark == "gpu"), MarkAccount("gpu", 0, 0, ()))
    return [] if gpu.run else [Problem("gpu-none", "", gpu.format())]


def _stale(waivers: tuple[Waiver, ...], known: list[str], end: End, is_whole: bool) -> Iterator[Problem]:
    for waiver in waivers:
        matches = any(map(waiver.covers, known))
        judged = matches or (is_whole and end.in_reach(waiver))
        if judged and waiver.is_expired(end.today):
            yield Problem("waiver-expired", waiver.test, f"{waiver.place} expired on {waiver.expires} ({waiver.reason})")
        elif judged and not matches:
            yield Problem("waiver-unmatched", waiver.test, f"{waiver.place} ({waiver.reason})")


def _unneeded(waivers: tuple[Waiver, ...], record: Record, used: tuple[tuple[str, str, Waiver], ...]) -> Iterator[str]:
    for waiver in waivers:
        covered = [test for test in record.tests.values() if "gpu" in test.marks and waiver.covers(test.nodeid)]
        if covered and all(test.reached for test in covered) and waiver not in [waiver for _, _, waiver in used]:
            yield f"{waiver.test}: {waiver.place} is not needed here: {_count(len(covered), 'test')} that it covers ran"


def _accounts(record: Record, seen: Selection, excuses: Mapping[str, Waiver | None]) -> Iterator[MarkAccount]:
    for mark in MARKS:
        tests = [test for test in record.tests.values() if mark in test.marks]
        reasons = collections.Counter(_short(test) for test in tests if test.unrun is not None and not test.failed)
        run = [test for test in tests if test.failed or (test.reached and test.unrun is None)]
        if mark == "gpu":
            reasons.update(f"the module is skipped: {why}" for why in seen.modules.values())
            reasons.update(f"taken out by {who}" for who in seen.dropped.values())
        if tests or reasons or (mark == "gpu" and seen.wished):
            failed = sum(test.failed for test in run)
            waived = sum(waiver is not None for waiver in excuses.values()) if mark == "gpu" else 0
            wished = seen.wished if mark == "gpu" else 0
            yield MarkAccount(mark, len(run), failed, tuple(reasons.most_common()), waived, wished)


def _noted(record: Record) -> Iterator[Noted]:
    for test in record.tests.values():
        for comparison in test.comparisons.values():
            yield Noted(test.nodeid, test.file, test.line, test.failed, comparison)


def _split(text: str) -> tuple[str, str]:
    name, _, why = text.partition(": ")
    return name, why


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""What came of the tests of a run, gathered where the summary is printed: in the one process, or in xdist's controller.

What a report does not say by itself travels in its attribute `specalign`, of plain values, which xdist carries along.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Final

import pytest

from pytest_specalign.gpu_tests import Selection, is_gpu_test, skip_reason
from pytest_specalign.marks import MARKS
from pytest_specalign.options import get_option, is_active
from pytest_specalign.policy import get_policy
from pytest_specalign.state import RECORD, SELECTION, WAIVERS
from pytest_specalign.verdicts import Comparison, noted_comparisons

ATTRIBUTE: Final = "specalign"
_NO_VERDICT: Final = ("collectonly", "setuponly", "setupplan")
_LONGEST: Final = 300


@dataclasses.dataclass
class TestRecord:
    """One test that has a mark of ours, is a GPU test or compared something.

    Attributes:
        file: as the report gives it, relative to rootdir.
        line: counted from 1; 0 where it is not known.
        marks: names out of `MARKS`.
        reached: its function was called and ended by itself, well or badly.
        failed: a phase of it failed.
        unrun: why it did not run, or not to its end; None where it did.
        comparisons: kind and name → what it noted.
    """

    __test__ = False  # for pytest, which collects by name

    nodeid: str
    file: str = ""
    line: int = 0
    marks: frozenset[str] = frozenset()
    reached: bool = False
    failed: bool = False
    unrun: str | None = None
    comparisons: dict[tuple[str, str], Comparison] = dataclasses.field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.reached or self.failed or self.unrun is not None


@dataclasses.dataclass
class Record:
    """All of the run.

    Attributes:
        tests: node id → what is known of the test.
        parts: what collection did, as each worker told it when it ended.
        lost: workers of xdist that were lost, and how.
        uncollected: node ids of what could not be collected.
        stopped: what ended the run before its time: an interrupt, `pytest.exit()`, xdist's limit of failures; empty if nothing.
    """

    tests: dict[str, TestRecord] = dataclasses.field(default_factory=dict)
    parts: list[Selection] = dataclasses.field(default_factory=list)
    lost: list[str] = dataclasses.field(default_factory=list)
    uncollected: list[str] = dataclasses.field(default_factory=list)
    stopped: str = ""


def open_record(config: pytest.Config) -> None:
    """Begin to watch, if the plugin is active and tests will run.

    Raises:
        pytest.UsageError: the file of waivers is not whole, the HTML overview cannot be made here, or the hook that tells the
            GPUs tells something else.
    """
    if not is_active(config) or any(getattr(config.option, name, False) for name in _NO_VERDICT):
        return
    config.stash[SELECTION] = Selection()
    if is_worker(config):
        return
    waivers = get_option(config, "waivers")
    config.stash[WAIVERS] = () if waivers is None else importlib.import_module("pytest_specalign.waivers").read_waivers(waivers)
    if get_option(config, "report") is not None:
        _refuse_without_jinja()
    get_policy(config)  # what is wrong with it is said now
    config.stash[RECORD] = Record()
    recorder = importlib.import_module("pytest_specalign.recorder").Recorder
    config.pluginmanager.register(recorder(config.stash[RECORD]), "specalign-recorder")


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def header(config: pytest.Config) -> list[str]:
    """The line about the GPU policy, where there will be a verdict."""
    return [f"specalign gpu_policy: {get_policy(config).format()}"] if RECORD in config.stash else []


def describe(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> pytest.TestReport:
    """Let the report say which marks the test has and what it compared, in whatever process it is read."""
    if SELECTION in item.config.stash:
        comparisons = noted_comparisons(item)
        marks = _marks(item)
        if marks or comparisons:
            stopped = call.excinfo is not None and isinstance(call.excinfo.value, pytest.xfail.Exception)
            told = {"marks": marks, "stopped": stopped, "comparisons": [one.as_dict() for one in comparisons]}
            setattr(report, ATTRIBUTE, told)
    return report


def note_report(record: Record, report: pytest.TestReport) -> None:
    """A phase of a test ended."""
    told: dict[str, Any] | None = getattr(report, ATTRIBUTE, None)
    if told is None and report.nodeid not in record.tests:
        return
    test = record.tests.setdefault(report.nodeid, TestRecord(report.nodeid))
    if report.location[1] is not None:
        test.file, test.line = report.location[0], report.location[1] + 1
    if told is not None:
        test.marks |= frozenset(told["marks"])
        test.comparisons |= {(one.kind, one.name): one for one in map(Comparison.from_dict, told["comparisons"])}
    _note_outcome(test, report, told is not None and told["stopped"])


def note_worker(record: Record, node: Any, error: object) -> None:
    """A worker of xdist ended; with an error where it was lost."""
    if error:
        text = " ".join(str(error).split())
        name = node.gateway.id
        record.lost.append(f"{name}: {text if len(text) <= _LONGEST else '… ' + text[-_LONGEST:]}")
    told = getattr(node, "workeroutput", {}).get(ATTRIBUTE)
    if told is not None:
        record.parts.append(Selection(**told))


def close_worker(config: pytest.Config) -> None:
    """On a worker, what collection did goes to the controller."""
    if is_worker(config) and SELECTION in config.stash:
        output: dict[str, Any] = getattr(config, "workeroutput", {})
        output[ATTRIBUTE] = config.stash[SELECTION].as_dict()


def _marks(item: pytest.Item) -> list[str]:
    return [name for name in MARKS if item.get_closest_marker(name) is not None or (name == "gpu" and is_gpu_test(item))]


def _note_outcome(test: TestRecord, report: pytest.TestReport, stopped: bool) -> None:
    """An expected failure ran, unless it came before its function, or by `pytest.xfail()`: that is a skip by another name."""
    expected = getattr(report, "wasxfail", None)
    if report.failed:
        test.failed = True
    elif report.skipped and expected is None:
        test.unrun = skip_reason(report.longrepr)
    elif report.skipped and (report.when != "call" or stopped):
        test.unrun = "xfail: " + (str(expected).removeprefix("reason: ").strip() or "no reason given")
    elif report.when == "call" and report.outcome in ("passed", "skipped"):
        test.reached = True


def _refuse_without_jinja() -> None:
    try:
        importlib.import_module("jinja2")
    except ModuleNotFoundError as missing:
        if missing.name != "jinja2":
            raise
        raise pytest.UsageError("--specalign-report needs jinja2: pip install 'pytest-specalign[report]'") from None

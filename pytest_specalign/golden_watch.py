"""What an active run did with goldens, over all of its processes: written ones, unused ones, ones that two tests share.

Registered as a plugin of its own where the plugin is active, so that other runs pay nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.golden_keys import Owner, owner_of, refuse_collisions
from pytest_specalign.golden_run import GoldenRun, get_run
from pytest_specalign.options import get_option, is_active

if TYPE_CHECKING:
    from specalign.golden.usage import Usage

NAME = "specalign-golden"
_OUTPUT = "specalign_golden"


@dataclasses.dataclass
class Told:
    """What one process tells of its goldens.

    Attributes:
        usage: as in a usage record, without the goldens that are there.
        folders: of goldens, with the test folder that each belongs to.
        written, matched: as in `GoldenRun`.
    """

    usage: dict[str, Any]
    folders: dict[str, str]
    written: list[str]
    matched: list[str]


class GoldenWatch:
    """Keeps account of one process, and on the controller of all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run: GoldenRun = get_run(config)
        self._tests: dict[str, str] = {}
        self._outcomes: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._restricted: set[str] = set() if hasattr(config, "workerinput") else set(_restrictions(config))
        self._told: list[Told] = []
        self._merged: Usage | None = None
        self._unwritten = ""

    def note_collected(self, report: pytest.CollectReport) -> None:
        """Remember the tests of a collector, those too that are deselected later."""
        if report.failed:
            self._restricted.add("there were errors at collection")
        for item in report.result or ():
            if isinstance(item, pytest.Item):
                owner = owner_of(item)
                self._tests[item.nodeid] = owner.test
                self._folders[str(owner.folder)] = str(owner.module_path.parent) if _is_beside(owner, item.config) else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._outcomes.get(report.nodeid)
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped and known != "failed":
            self._outcomes[report.nodeid] = "skipped"
        elif report.when == "call" and report.outcome == "passed" and known is None:
            self._outcomes[report.nodeid] = "passed"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if output is not None:
            self._told.append(Told(**output))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if _hands_out(self._config):
            told = self._told
        else:
            told = [self._tell()]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = dataclasses.asdict(told[0])
            return
        self._told = told
        if not self._run.patterns and not any(one.usage["used"] or any(map(os.path.isdir, one.folders)) for one in told):
            return  # no golden anywhere: nothing of the library is imported
        self._merged = self._merge(told)
        if self._run.artifacts is not None and (self._merged.used or self._merged.present):
            self._write_record(self._run.artifacts, self._merged)
        if (self._merged.shared or self._unmatched() or self._unwritten) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = list(self._lines())
        if lines:
            terminalreporter.section("specalign goldens")
            for line in lines:
                terminalreporter.line(line)

    def _write_record(self, folder: Path, record: Usage) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            importlib.import_module("specalign.golden.usage").write_usage(record, folder)
        except (OSError, ValueError) as error:  # an InputError is a ValueError
            self._unwritten = f"FAILED: the record of used goldens cannot be written to {folder}: {error}"

    def _lines(self) -> Iterator[str]:
        yield from sorted({line for one in self._told for line in one.written})
        usage = self._merged
        if usage is None:
            return
        for golden, tests in usage.shared.items():
            yield f"COLLISION: {golden} was used by {' and '.join(tests)}: give the tests, or their results, other names"
        yield from [self._unwritten] if self._unwritten else []
        for pattern in self._unmatched():
            yield f"FAILED: --specalign-golden-force={pattern} fits no golden of this run: nothing was written for it"
        if not usage.incomplete and usage.unused:
            yield f"{len(usage.unused)} unused, of tests or results that are gone; remove them with specalign golden prune:"
            yield from (f"  {golden}" for golden in usage.unused)

    def _unmatched(self) -> list[str]:
        """Patterns that fitted nothing, once every test has run: one shard alone may well not meet them."""
        if self._run.mode == "check" or self._merged is None or self._merged.missing:
            return []
        matched = {pattern for one in self._told for pattern in one.matched}
        return [pattern for pattern in self._run.patterns if pattern not in matched]

    def _tell(self) -> Told:
        by_outcome: dict[str, list[str]] = {"passed": [], "skipped": [], "failed": []}
        for nodeid, outcome in self._outcomes.items():
            if nodeid in self._tests:
                by_outcome[outcome].append(self._tests[nodeid])
        collected = sorted(set(self._tests.values()))
        used = {golden: sorted(tests) for golden, tests in self._run.used.items()}
        usage = {"restricted": sorted(self._restricted), "collected": collected, **by_outcome, "used": used}
        return Told(usage, self._folders, self._run.written, sorted(self._run.matched))

    def _merge(self, told: list[Told]) -> Usage:
        module = importlib.import_module("specalign.golden.usage")
        catalog = importlib.import_module("specalign.golden.catalog")
        folders = {folder: tests for one in told for folder, tests in one.folders.items()}
        directory = get_option(self._config, "golden_dir")
        if directory is not None:
            for name, _, _ in os.walk(directory):
                folders.setdefault(name, str(self._config.rootpath / Path(name).relative_to(directory)))
        present = catalog.present(folders, self._config.rootpath)
        records = []
        for one in told:
            lists = {name: frozenset(value) for name, value in one.usage.items() if name != "used"}
            lists["restricted"] |= self._restricted  # what a worker was given says nothing of the command line
            used = {golden: frozenset(tests) for golden, tests in one.usage["used"].items()}
            records.append(module.Usage(**lists, used=used, present=present))
        merged: Usage = module.merge(records)
        return merged


def get_watch(config: pytest.Config) -> GoldenWatch | None:
    """The watch of this process; None where the plugin is not active."""
    found: GoldenWatch | None = config.pluginmanager.get_plugin(NAME)
    return found


def begin(config: pytest.Config) -> None:
    """Keep account from now on, where the plugin is active."""
    if is_active(config) and get_watch(config) is None:
        config.pluginmanager.register(GoldenWatch(config), NAME)


def note_collected(config: pytest.Config, report: pytest.CollectReport) -> pytest.CollectReport:
    """The report of a collector, failed where two tests would share a golden; an active run remembers its tests."""
    checked = refuse_collisions(config, report)
    watch = get_watch(config)
    if watch is not None:
        watch.note_collected(checked)
    return checked


def _is_beside(owner: Owner, config: pytest.Config) -> bool:
    """Whether the file of the test can be told from its golden's folder."""
    return owner.module_path.is_relative_to(config.rootpath) and "site-packages" not in owner.module_path.parts


def _restrictions(config: pytest.Config) -> Iterator[str]:
    """Why a collection may not see every test."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        invoked, root = config.invocation_params.dir, config.rootpath
        if any((invoked / argument.partition("::")[0]).resolve() != root.resolve() for argument in config.args):
            yield "paths were given on the command line"
    for name, flag in (("lf", "--lf"), ("pyargs", "--pyargs"), ("stepwise", "--stepwise")):
        if config.getoption(name, default=False):
            yield f"{flag} was given"


def _hands_out(config: pytest.Config) -> bool:
    """Whether this is a controller, whose tests run in workers."""
    return not hasattr(config, "workerinput") and config.pluginmanager.hasplugin("dsession")

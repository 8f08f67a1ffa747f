"""The hooks of a run that gets a verdict, and nothing else: a plugin of their own, so that an inert run has none of them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from pytest_specalign.record import Record, note_report, note_worker


class Recorder:
    """Fills the record while tests run; what is needed at the end only is imported then."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        note_report(self.record, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.record.uncollected.append(report.nodeid)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.record.stopped = " ".join(str(excinfo.value).split()) or "interrupted"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        note_worker(self.record, node, error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        importlib.import_module("pytest_specalign.finish").finish(session)

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        importlib.import_module("pytest_specalign.summary").print_summary(config)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Where pytest printed no summary: after an internal error, or with an exit status of somebody's own."""
        importlib.import_module("pytest_specalign.summary").print_summary(config)

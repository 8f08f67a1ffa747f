"""The pytest hooks, and nothing else: each one hands over to the module that does the work."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("pytest_specalign.contracts", "pytest_specalign.suite")

from collections.abc import Generator  # noqa: E402  # the rewrite must be asked for before anything of ours is imported
from pathlib import Path  # noqa: E402

from pytest_specalign import hookspecs, marks, options, report, suite  # noqa: E402
from pytest_specalign.layers import capture_boundaries, layer_dump  # noqa: E402, F401  # fixtures: pytest finds them here


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    marks.register_marks(config)
    options.settings(config)  # a bad value stops the run here, before anything is collected


def pytest_report_header(config: pytest.Config) -> list[str]:
    return report.header(config) if options.is_active(config) else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if options.is_active(metafunc.config):
        marks.refuse_bad_marks(metafunc.definition)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return suite.make_module(module_path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    made = yield
    return marks.fail_on_bad_marks(made) if options.is_active(collector.config) else made

"""The pytest hooks, and nothing else: each one hands over to the module that does the work."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("pytest_specalign.contracts", "pytest_specalign.suite")

from collections.abc import Generator  # noqa: E402  # the rewrite must be asked for before anything of ours is imported
from pathlib import Path  # noqa: E402

from pytest_specalign import (  # noqa: E402
    golden,
    golden_watch,
    gpu_account,
    gpu_tests,
    hookspecs,
    leases,
    marks,
    options,
    record,
    refusals,
    report,
    suite,
)
from pytest_specalign.acceptance_gate import acceptance_gate  # noqa: E402, F401  # fixtures: pytest finds them here
from pytest_specalign.bitwise import bitwise, run_repeatedly  # noqa: E402, F401
from pytest_specalign.determinism import deterministic  # noqa: E402, F401
from pytest_specalign.golden import golden_alias, specalign_golden  # noqa: E402, F401
from pytest_specalign.layers import capture_boundaries, layer_dump  # noqa: E402, F401
from pytest_specalign.leases import device_alias, gpu_lease, module_gpu_lease, session_gpu_lease, specalign_device  # noqa: E402, F401
from pytest_specalign.ranks import rank_group  # noqa: E402, F401


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    leases.take_session_lease(early_config)


def pytest_configure(config: pytest.Config) -> None:
    marks.register_marks(config)
    options.settings(config)  # a bad value stops the run here, before anything is collected
    record.open_record(config)
    leases.take_session_lease(config)  # where a conftest brings the plugin, there was no earlier moment
    golden_watch.begin(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return report.header(config) if options.is_active(config) else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    refusals.refuse_definition(metafunc.definition)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    yield from gpu_tests.watch_selection(config, items)
    leases.add_leases(config, items)


def pytest_deselected(items: list[pytest.Item]) -> None:
    gpu_tests.note_deselected(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    leases.refuse_without_session_lease(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    gpu_account.note_failure(item, call)
    return record.describe(item, call, (yield))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return leases.count_workers(config)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return suite.make_module(module_path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    made = gpu_tests.note_skipped(collector, refusals.refuse_items((yield)))
    return golden_watch.note_collected(collector.config, made)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    return golden.explain_comparison(op, left, right)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_repeatedly(pyfuncitem)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    record.close_worker(session.config)

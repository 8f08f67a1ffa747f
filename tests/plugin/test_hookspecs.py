"""The hook that users implement: what it adds, when it is called, and what it refuses."""

from __future__ import annotations

import inspect

import pytest

from pytest_specalign import hookspecs
from pytest_specalign.report import environment
from tests.plugin.support import WORKERS, Configure, Run

HOOK = """
calls = []


def pytest_specalign_environment(config, environment):
    calls.append(config)
    assert len(calls) == 1
    environment["driver"] = "580.65"
    environment["cluster"] = "blue"
"""


def test_every_hook_has_a_docstring() -> None:
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("pytest_specalign")]
    assert hooks
    assert all(inspect.getdoc(hook) for hook in hooks)


@pytest.mark.parametrize("workers", WORKERS)
def test_environment_lines_stand_in_the_header(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeconftest(HOOK)
    pytester.makepyfile("def test_nothing(): pass\n")
    result = run("-p", "specalign", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["specalign: *", "specalign driver: 580.65", "specalign cluster: blue"], consecutive=True)


def test_the_hook_is_not_called_while_the_plugin_is_inert(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest('def pytest_specalign_environment():\n    raise AssertionError("called")\n')
    pytester.makepyfile("def test_nothing(): pass\n")
    run().assert_outcomes(passed=1)


def test_the_hook_is_called_once_and_what_it_gathered_is_kept(configure: Configure, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(HOOK)
    config = configure()
    assert environment(config) is environment(config)
    assert environment(config) == {"driver": "580.65", "cluster": "blue"}


@pytest.mark.parametrize("entry", ["environment['gpus'] = 8", "environment[8] = 'gpus'"])
def test_what_is_no_string_stops_the_run(run: Run, pytester: pytest.Pytester, entry: str) -> None:
    pytester.makeconftest(f"def pytest_specalign_environment(environment):\n    {entry}\n")
    pytester.makepyfile("def test_nothing(): pass\n")
    result = run("-p", "specalign")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest_specalign_environment: *: names and values are strings, *"])


def test_a_misspelled_hook_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_specalign_enviroment(environment): pass\n")
    result = run("-p", "specalign")
    assert "unknown hook 'pytest_specalign_enviroment'" in result.stdout.str() + result.stderr.str()
    assert result.ret != 0

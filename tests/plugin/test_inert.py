"""Without being asked, the plugin prints no header, validates no marks and changes nothing; each way of asking wakes it."""

from __future__ import annotations

import re

import pytest

from tests.plugin.support import WORKERS, Run

TESTS = """
import pytest


@pytest.mark.gpu(count="many", colour="red")
@pytest.mark.bitwise(runs=0)
def test_pass():
    pass


def test_fail():
    assert [1, 2] == [1, 3]


@pytest.mark.skip(reason="why not")
def test_skip():
    pass


@pytest.mark.gpu(-1)
@pytest.mark.parametrize("x", [1, 2])
def test_param(x, request):
    assert [mark.args for mark in request.node.iter_markers("gpu")] == [(-1,)]
"""

NO_MARKERS = "[pytest]\nmarkers =\n    gpu: mine\n    bitwise: mine\n"


def _shape(result: pytest.RunResult) -> list[str]:
    """The output without times, and without the line in which pytest itself names every installed plugin."""
    lines = (re.sub(r"=+$", "=", re.sub(r"\d+\.\d+s( \(.*\))?", "_s", line)) for line in result.outlines)
    lines = (re.sub(r"^=+ (.*_s)", r"= \1", line) for line in lines)  # pytest pads to the width of the time
    return [line for line in lines if not line.startswith("plugins: ")]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_run_that_did_not_ask_is_the_same_to_the_letter(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeini(NO_MARKERS)
    workers = ("-n1",) if workers == ("-n2",) else workers  # one worker, so that the order of the lines is fixed
    args = ("-p", "no:cacheprovider", "-v", "--strict-markers", *workers)
    without = run("-p", "no:specalign", *args)
    with_it = run(*args)
    with_it.assert_outcomes(passed=3, failed=1, skipped=1)
    assert with_it.ret == without.ret
    assert _shape(with_it) == _shape(without)


ASKING = {
    "-p specalign": (["-p", "specalign"], {}, ""),
    "-p pytest_specalign.plugin": (["-p", "pytest_specalign.plugin"], {}, ""),
    "addopts": ([], {}, "[pytest]\naddopts = -p specalign\n"),
    "PYTEST_ADDOPTS": ([], {"PYTEST_ADDOPTS": "-p specalign"}, ""),
    "PYTEST_PLUGINS": ([], {"PYTEST_PLUGINS": "specalign"}, ""),
    "an option": (["--specalign-engine", "sglang"], {}, ""),
    "a variable": ([], {"SPECALIGN_ENGINE": "sglang"}, ""),
    "an ini value": ([], {}, "[pytest]\nspecalign_engine = sglang\n"),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("way", ASKING)
def test_each_way_of_asking_wakes_it(run: Run, pytester: pytest.Pytester, way: str, workers: tuple[str, ...]) -> None:
    args, env, ini = ASKING[way]
    pytester.makepyfile(TESTS)
    if ini:
        pytester.makeini(ini)
    result = run(*args, *workers, **env)
    result.stdout.fnmatch_lines(["specalign: *"])
    result.stdout.fnmatch_lines(["*bad mark @pytest.mark.gpu(count='many', colour='red')*"])
    result.assert_outcomes(errors=1)


NOT_ASKING = {
    "installed": ([], {}, ""),
    "an empty variable": ([], {"SPECALIGN_DRAFT": "", "SPECALIGN_ENGINE": " "}, ""),
    "an empty ini value": ([], {}, "[pytest]\nspecalign_draft =\nspecalign_engine =\n"),
    "another plugin of the command line": (["-p", "no:randomly"], {}, ""),
}


@pytest.mark.parametrize("way", NOT_ASKING)
def test_what_is_not_asking(run: Run, pytester: pytest.Pytester, way: str) -> None:
    args, env, ini = NOT_ASKING[way]
    pytester.makepyfile(TESTS)
    if ini:
        pytester.makeini(ini)
    result = run(*args, **env)
    result.stdout.no_fnmatch_line("specalign*: *")
    result.assert_outcomes(passed=3, failed=1, skipped=1)


def test_a_conftest_that_names_the_plugin_loads_it_and_does_not_wake_it(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["specalign"]')
    pytester.makepyfile(TESTS)
    result = run()
    result.stdout.no_fnmatch_line("specalign*: *")
    result.assert_outcomes(passed=3, failed=1, skipped=1)

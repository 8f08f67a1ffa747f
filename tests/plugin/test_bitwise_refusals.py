"""Bitwise tests that cannot be repeated, or that would run until they agree, are refused at collection."""

from __future__ import annotations

import importlib.util

import pytest

from tests.plugin.support import WORKERS, Run

FAKE_RERUNS = """
def pytest_addoption(parser):
    parser.addoption("--reruns", type=int, dest="reruns")
    parser.addoption("--force-reruns", type=int, dest="force_reruns")
    parser.addoption("--reruns-mode", dest="reruns_mode", default="strict")
    parser.addoption("--force-flaky", action="store_true", dest="force_flaky")
    parser.addini("reruns", "")


def pytest_configure(config):
    config.addinivalue_line("markers", "flaky: reruns")
"""

KINDS = {
    "coroutine": ("async def test_it(bitwise): pass", "cannot repeat a coroutine function: *asyncio.run*"),
    "async generator": ("async def test_it(bitwise): yield", "cannot repeat a coroutine function: *asyncio.run*"),
    "unittest": (
        "class TestIt(unittest.TestCase):\n    @pytest.mark.bitwise\n    def test_it(self): pass",
        "cannot repeat a method of a unittest.TestCase (TestIt): *",
    ),
    "flaky": (
        "@pytest.mark.flaky\n@pytest.mark.bitwise\ndef test_it(bitwise): pass",
        "refuses reruns: *take the mark flaky away",
    ),
    "flaky(reruns=2)": (
        "@pytest.mark.flaky(reruns=2)\n@pytest.mark.bitwise\ndef test_it(bitwise): pass",
        "refuses reruns: *take the mark flaky away",
    ),
    "flaky on a param": (
        "@pytest.mark.bitwise\n@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.flaky(1))])\n"
        "def test_it(bitwise, x): pass",
        "refuses reruns: *take the mark flaky away",
    ),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_test_that_cannot_be_repeated_is_refused_by_name(
    run: Run, pytester: pytest.Pytester, kind: str, workers: tuple[str, ...]
) -> None:
    source, message = KINDS[kind]
    mark = "" if "bitwise\n" in source else "@pytest.mark.bitwise\n"
    pytester.makeconftest(FAKE_RERUNS)
    pytester.makepyfile(test_it=f"import pytest, unittest\n\n{mark}{source}\n")
    result = run("-Werror", "-p", "specalign", "-p", "no:rerunfailures", *workers)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py::*test_it*: @pytest.mark.bitwise {message}"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.skipif(importlib.util.find_spec("hypothesis") is None, reason="hypothesis is not installed")
def test_a_test_of_hypothesis_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from hypothesis import given, strategies as st

        @pytest.mark.bitwise
        @given(x=st.integers())
        def test_it(bitwise, x): ...
        """
    )
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: @pytest.mark.bitwise cannot repeat a test of hypothesis' @given*"])


RERUNS = {
    "--reruns": (["--reruns=1"], "", "run it without --reruns, or mark it @pytest.mark.flaky(reruns=0)"),
    "--reruns appended": (["--reruns=1", "--reruns-mode=append"], "", "run it without --reruns"),
    "--force-reruns": (["--force-reruns=2"], "", "run without --force-reruns"),
    "--force-flaky": (["--force-flaky"], "", "run it without --force-flaky"),
    "ini": ([], "[pytest]\nreruns = 2\n", "the ini value reruns asks for them: mark the test @pytest.mark.flaky(reruns=0)"),
}

OBSERVES = "import numpy, pytest\n\n{}@pytest.mark.bitwise\ndef test_it(bitwise): bitwise.observe('a', numpy.ones(1))\n"


@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
@pytest.mark.parametrize("way", RERUNS)
def test_reruns_are_refused(run: Run, pytester: pytest.Pytester, way: str, asked: tuple[str, ...]) -> None:
    args, ini, message = RERUNS[way]
    pytester.makeconftest(FAKE_RERUNS)
    pytester.makeini(ini)
    pytester.makepyfile(test_it=OBSERVES.format(""))
    result = run("-p", "no:rerunfailures", *args, *asked)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py::test_it: @pytest.mark.bitwise refuses reruns: *{message}"])


NO_RERUNS = {
    "none": ([], "", ""),
    "--reruns=0": (["--reruns=0"], "", ""),
    "ini 0": ([], "", "[pytest]\nreruns = 0\n"),
    "exempted": (["--reruns=1"], "@pytest.mark.flaky(reruns=0)\n", ""),
    "exempted by position": (["--reruns=1"], "@pytest.mark.flaky(0)\n", "[pytest]\nreruns = 3\n"),
}


@pytest.mark.parametrize("way", NO_RERUNS)
def test_what_is_no_rerun_is_taken(run: Run, pytester: pytest.Pytester, way: str) -> None:
    args, mark, ini = NO_RERUNS[way]
    pytester.makeconftest(FAKE_RERUNS)
    pytester.makeini(ini)
    pytester.makepyfile(OBSERVES.format(mark))
    run("-p", "no:rerunfailures", *args).assert_outcomes(passed=1)


def test_a_bad_mark_on_a_test_that_uses_the_fixture_fails_an_inert_plugin_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.bitwise(runs=1)\n@pytest.mark.gpu(0)\ndef test_it(bitwise): pass\n")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: bad mark @pytest.mark.bitwise(runs=1): runs is 1: *"])
    result.stdout.no_fnmatch_line("*mark.gpu(0):*")

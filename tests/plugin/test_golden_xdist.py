"""Goldens under xdist: every worker writes its own, and two that write the same one do not disturb each other."""

from __future__ import annotations

import importlib.util

import pytest

from tests.plugin.support import Run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")

MANY = """
import numpy
import pytest


@pytest.mark.parametrize("x", range(24))
def test_f(golden, x):
    golden.check(tensors={"h": numpy.full((64, 64), x + ADD)})
"""


def test_workers_write_and_check_their_own(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=MANY.replace("ADD", "0"))
    result = run("-n2", "--specalign-golden=new")
    result.assert_outcomes(passed=24)
    result.stdout.fnmatch_lines(["test_it.py::test_f[[]7] (cpu) new"])
    assert len(list((pytester.path / "__golden__").iterdir())) == 24
    path.write_text(MANY.replace("ADD", "100"))
    run("-n2").assert_outcomes(failed=24)


def test_every_test_on_every_worker(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=MANY.replace("ADD", "0"))
    run("--dist=each", "--tx=2*popen", "--specalign-golden=new").assert_outcomes(passed=48)
    assert len(list((pytester.path / "__golden__").iterdir())) == 24
    path.write_text(MANY.replace("ADD", "100"))
    result = run("--dist=each", "--tx=2*popen", "--specalign-golden=update")
    result.assert_outcomes(passed=48)
    assert "COLLISION" not in result.stdout.str()
    assert len(list((pytester.path / "__golden__").iterdir())) == 24  # no temporary file is left
    run().assert_outcomes(passed=24)


DIFFERENT = """
import os

import numpy


def test_f(golden):
    golden.check(tensors=numpy.full(4, int(os.environ["PYTEST_XDIST_WORKER"][2:])))
"""


def test_the_second_worker_must_agree_with_the_first(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DIFFERENT)
    run("--dist=each", "--tx=2*popen", "--specalign-golden=new").assert_outcomes(passed=1, failed=1)


MEANWHILE = """
import contextlib

import numpy

from specalign.golden import files
from specalign.golden.check import read_result
from specalign.golden.environment import named_environment
from specalign.golden.keys import Key

waits = files.locked


@contextlib.contextmanager
def locked(place):
    with waits(place):  # as if another worker had held the lock, and had written its result
        key = Key("test_it.py", "", "test_f", None)
        files.write_golden(place, key, named_environment("cpu"), read_result("", numpy.full(4, 7), None), "values")
    with waits(place):
        yield


files.locked = locked
"""


@pytest.mark.parametrize(("value", "outcome"), [(7, "passed"), (8, "failed")])
def test_what_another_worker_wrote_while_this_one_waited_counts(
    run: Run, pytester: pytest.Pytester, value: int, outcome: str
) -> None:
    pytester.makeconftest(MEANWHILE)
    pytester.makepyfile(test_it=f"import numpy\n\ndef test_f(golden):\n    golden.check(tensors=numpy.full(4, {value}))\n")
    run("--specalign-golden=new").assert_outcomes(**{outcome: 1})


SHARED = """
import numpy


def test_f(request):
    request.getfixturevalue("golden").check(tensors=numpy.ones(1))


def test_F(request):
    request.getfixturevalue("golden").check(tensors=numpy.ones(1))
"""


def test_a_collision_that_collection_cannot_see_fails_at_the_second_use(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SHARED)
    result = run("--specalign-golden=new")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*test_it.py::test_F: another test uses this golden, __golden__::test_it.py::test_f: their*"])


def test_one_between_two_workers_fails_the_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SHARED)
    result = run("--specalign-golden=new", "-n2", "--dist=load", "--maxschedchunk=1")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["COLLISION: *test_it.py~~test_f was used by *::test_F and *::test_f: give the tests*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED

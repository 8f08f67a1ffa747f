"""Goldens in a test marked bitwise: what is checked is observed too, in each run."""

from __future__ import annotations

import pytest

from tests.plugin.support import Run

TEST = """
import itertools

import numpy
import pytest

count = itertools.count()


@pytest.mark.bitwise(runs=3)
def test_f(specalign_golden):
    run = next(count)
    specalign_golden.check("a", tensors=numpy.ones(3))
    specalign_golden.check("b", tensors={"x": VALUE}, mode="abs:10")
    assert numpy.zeros(2) == specalign_golden("c")
    assert RUNS
"""


def suite(pytester: pytest.Pytester, value: str, runs: str = "True") -> None:
    pytester.makepyfile(test_it=TEST.replace("VALUE", value).replace("RUNS", runs))


@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
def test_each_run_uses_each_name_once(run: Run, pytester: pytest.Pytester, asked: tuple[str, ...]) -> None:
    suite(pytester, "numpy.arange(4.0)", "run < 3")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    run(*asked).assert_outcomes(passed=1)
    suite(pytester, "numpy.arange(4.0)", "run != 2")  # it is called three times
    run(*asked).assert_outcomes(failed=1)


@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
def test_other_bits_in_a_later_run_fail_though_the_golden_takes_a_tolerance(
    run: Run, pytester: pytest.Pytester, asked: tuple[str, ...]
) -> None:
    suite(pytester, "numpy.arange(4.0)")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    suite(pytester, "numpy.arange(4.0) + (run == 2)")
    result = run(*asked)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not the same bits in 3 runs:", "*run 3, 'golden b'[[]'x'] (F64 [[]4]): element [[]0]: *"])


def test_the_golden_is_held_against_the_first_run(run: Run, pytester: pytest.Pytester) -> None:
    suite(pytester, "numpy.arange(4.0)")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    suite(pytester, "numpy.arange(4.0) + 11")
    result = run("-p", "specalign")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*golden test_it.py::test_f::b: different*"])


def test_a_name_that_comes_twice_in_one_run_is_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import numpy\nimport pytest\n\n@pytest.mark.bitwise\ndef test_f(golden):\n"
        '    golden.check("a", tensors=numpy.ones(3))\n    golden.check("a", tensors=numpy.ones(3))\n'
    )
    result = run("--specalign-golden=new")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*the name 'a' was used before in this test*"])


def test_reruns_are_refused_where_only_the_golden_is_ours(run: Run, pytester: pytest.Pytester) -> None:
    suite(pytester, "numpy.ones(3)")
    pytester.makeconftest(
        "def pytest_addoption(parser):\n    parser.addoption('--reruns', type=int)\n"
    )  # as pytest-rerunfailures has it
    result = run("-p", "no:rerunfailures", "--reruns=2")
    result.stdout.fnmatch_lines(["*@pytest.mark.bitwise refuses reruns:*"])

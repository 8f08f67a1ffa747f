"""In CI nothing is written but what is named: a missing golden fails, an update is refused."""

from __future__ import annotations

import pytest

from tests.plugin.support import WORKERS, Run

TESTS = """
import numpy
import pytest


@pytest.mark.parametrize("x", ["a", "b"])
def test_f(golden, x):
    golden.check(tensors=numpy.full(1, {0}))
    golden.check("h", tensors=numpy.full(1, {0}))
"""


def names(pytester: pytest.Pytester) -> set[str]:
    folder = pytester.path / "__golden__"
    return {path.name.removesuffix(".cpu.safetensors") for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize("ci", ["true", "1"])
def test_a_missing_golden_fails(run: Run, pytester: pytest.Pytester, ci: str) -> None:
    pytester.makepyfile(test_it=TESTS.format(1))
    result = run("--specalign-golden=new", CI=ci)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*this is CI, where none is written unless forced by name: --specalign-golden-force='test_it.py::*"]
    )
    assert names(pytester) == set()


@pytest.mark.parametrize("ci", ["", "false", "0"])
def test_a_variable_that_says_no_is_no_ci(run: Run, pytester: pytest.Pytester, ci: str) -> None:
    pytester.makepyfile(test_it=TESTS.format(1))
    run("--specalign-golden=update", CI=ci).assert_outcomes(passed=2)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_update_is_refused_before_anything_runs(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS.format(1))
    result = run("--specalign-golden=update", *workers, CI="true")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specalign-golden=update: this is CI *add --specalign-golden-force=PATTERN*"])
    assert names(pytester) == set()


def test_what_is_named_is_written_and_nothing_else(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=TESTS.format(1))
    run("--specalign-golden=new", "--specalign-golden-force=test_it.py::test_f[a]*", CI="true").assert_outcomes(
        passed=1, failed=1
    )
    assert names(pytester) == {"test_it.py~~test_f~a", "test_it.py~~test_f~a~h"}
    run("--specalign-golden=new").assert_outcomes(passed=2)
    path.write_text(TESTS.format(2))
    before = {p.name: p.read_bytes() for p in (pytester.path / "__golden__").iterdir()}
    result = run("--specalign-golden=update", "--specalign-golden-force=*test_f[b]::h,*test_f[b]", CI="true")
    result.assert_outcomes(passed=1, failed=1)
    after = {p.name: p.read_bytes() for p in (pytester.path / "__golden__").iterdir()}
    assert {name for name in after if after[name] != before[name]} == {
        "test_it.py~~test_f~b.cpu.safetensors",
        "test_it.py~~test_f~b~h.cpu.safetensors",
    }


def test_naming_limits_an_update_outside_of_ci_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS.format(1))
    run("--specalign-golden=update", "--specalign-golden-force=*[b]*").assert_outcomes(passed=1, failed=1)
    assert names(pytester) == {"test_it.py~~test_f~b", "test_it.py~~test_f~b~h"}


@pytest.mark.parametrize("workers", WORKERS)
def test_a_name_that_fits_nothing_fails_the_run(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS.format(1))
    run("--specalign-golden=new").assert_outcomes(passed=2)
    result = run("--specalign-golden=update", "--specalign-golden-force=*test_g*,*[a]", *workers, CI="true")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["FAILED: --specalign-golden-force=*test_g* fits no golden of this run*"])
    pytester.makepyfile(test_it="def test_plain():\n    pass\n")
    assert run("--specalign-golden=new", "--specalign-golden-force=*test_f*", *workers).ret == pytest.ExitCode.TESTS_FAILED
    assert "force=*[a]" not in result.stdout.str().partition("specalign goldens")[2]
    assert result.ret == pytest.ExitCode.TESTS_FAILED

"""What a failed golden leaves in the artifacts folder, and the hook that is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.numpy

from tests.plugin.support import WORKERS, Run

TEST = """
import numpy


def test_f(golden):
    h = numpy.arange(262144, dtype="f4").reshape(1024, 256)
    h[700, 3] += ADD
    golden.check("h", tensors={"h": h, "same": numpy.ones(3)})
"""

CONFTEST = """
def pytest_specalign_divergence(config, report):
    with open(config.rootpath / "told.txt", "a") as file:
        print(report.key.text, report.verdict, report.artifacts, sep="|", file=file)
"""


@pytest.fixture
def suite(run: Run, pytester: pytest.Pytester) -> Path:
    """A test that fails by 0.5 in row 700 of a tensor of 1 MiB."""
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(test_it=TEST.replace("ADD", "0"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    path.write_text(TEST.replace("ADD", "0.5"))
    return path.parent


@pytest.mark.parametrize("workers", WORKERS)
def test_both_sides_of_what_differs(run: Run, suite: Path, workers: tuple[str, ...]) -> None:
    result = run("--specalign-artifacts=out", *workers)
    result.assert_outcomes(failed=1)
    folder = suite / "out" / "golden" / "__golden__" / "test_it.py~~test_f~~h.cpu"
    result.stdout.fnmatch_lines([f"E*both sides: {folder}"])
    sides = [safetensors.numpy.load_file(folder / f"{side}.safetensors") for side in ("expected", "actual")]
    assert [list(side) for side in sides] == [["['h']"], ["['h']"]]
    assert (sides[1]["['h']"] - sides[0]["['h']"]).sum() == 0.5
    assert "all that differs was written" in (folder / "report.txt").read_text()
    assert (suite / "told.txt").read_text() == f"test_it.py::test_f::h|different, at most 32 ulp|{folder}\n"


def test_they_are_cut_to_the_limit_and_the_report_says_so(run: Run, suite: Path) -> None:
    run("--specalign-artifacts=out", "--specalign-artifacts-limit=1").assert_outcomes(failed=1)
    folder = suite / "out" / "golden" / "__golden__" / "test_it.py~~test_f~~h.cpu"
    files = [folder / f"{side}.safetensors" for side in ("expected", "actual")]
    assert 0.9 * 2**20 < sum(path.stat().st_size for path in files) < 2**20 + 2000
    expected, actual = (safetensors.numpy.load_file(path)["['h']"] for path in files)
    assert (expected != actual).sum() == 1
    assert "expected: ['h'] (F32 [1024, 256]): rows 444 to 955 of 1024" in (folder / "report.txt").read_text()


def test_a_folder_that_cannot_be_written_does_not_hide_what_was_found(run: Run, suite: Path) -> None:
    (suite / "out").write_text("a file is in the way")
    result = run("--specalign-artifacts=out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*both sides could not be written: *", "E*first at [[]700, 3]*", "FAILED: the record *"])


def test_without_a_folder_nothing_is_written_and_the_hook_is_told_all_the_same(run: Run, suite: Path) -> None:
    run().assert_outcomes(failed=1)
    assert list(suite.rglob("*actual*")) == list(suite.rglob("report.txt")) == []
    assert (suite / "told.txt").read_text().endswith("|None\n")


def test_the_hook_is_told_of_a_missing_golden_and_not_of_one_that_agrees(run: Run, suite: Path) -> None:
    (suite / "test_it.py").write_text(TEST.replace("ADD", "0"))
    run("--specalign-artifacts=out").assert_outcomes(passed=1)
    assert not (suite / "told.txt").exists()
    next((suite / "__golden__").iterdir()).unlink()
    run("--specalign-artifacts=out").assert_outcomes(failed=1)
    assert (suite / "told.txt").read_text() == "test_it.py::test_f::h|missing|None\n"

"""Goldens that no test uses are reported after a complete run, and only then; shards are merged by the command."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from specalign.cli.main import main
from tests.plugin.support import WORKERS, Run

TESTS = """
import numpy
import pytest


@pytest.mark.parametrize("x", ["a", "b"])
def test_f(golden, x):
    golden.check(tensors=numpy.ones(1))


def test_g(golden):
    golden.check("h", tensors=numpy.ones(1))
    golden.check("gone", tensors=numpy.ones(1))


def test_plain():
    pass
"""

OTHER = "import numpy\n\ndef test_o(golden):\n    golden.check(tensors=numpy.ones(1))\n"

GONE = TESTS.replace('    golden.check("gone", tensors=numpy.ones(1))\n', "").replace('["a", "b"]', '["a"]')
UNUSED = ["  __golden__/test_it.py~~test_f~b", "  __golden__/test_it.py~~test_g~~gone", "  __golden__/test_other.py~~test_o"]


@pytest.fixture
def suite(run: Run, pytester: pytest.Pytester) -> Path:
    """A suite that once had more tests and results: three of its goldens are unused."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=TESTS, test_other=OTHER)
    run("--specalign-golden=new").assert_outcomes(passed=5)
    (pytester.path / "test_other.py").unlink()
    return pytester.makepyfile(test_it=GONE)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_complete_run_names_them(run: Run, suite: Path, workers: tuple[str, ...]) -> None:
    result = run("-p", "specalign", *workers)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["3 unused, of tests or results that are gone;*", *UNUSED], consecutive=True)


def test_nothing_is_said_of_used_ones_nor_by_an_inert_plugin(run: Run, suite: Path) -> None:
    assert "unused" not in run().stdout.str()
    suite.write_text(TESTS)
    suite.with_name("test_other.py").write_text(OTHER)
    assert "unused" not in run("-p", "specalign").stdout.str()


PARTS = {
    "-k": ("-k", "test_f"),
    "--deselect": ("--deselect", "test_it.py::test_plain"),
    "a path": ("test_it.py",),
    "a node": ("test_it.py::test_g",),
    "--lf": ("--lf",),
    "-x": ("-x", "--fail"),
    "--maxfail": ("--maxfail=1", "--fail"),
    "a failure": ("--fail",),
    "an error at setup": ("--break",),
    "an error at teardown": ("--late",),
    "a collection error": ("--continue-on-collection-errors",),
    "--collect-only": ("--collect-only",),
    "a shard": ("--shard",),
}

CONFTEST = """
import pytest

NAMES = ("fail", "break", "late", "shard")


def pytest_addoption(parser):
    for name in NAMES:
        parser.addoption("--" + name, dest="my_" + name, action="store_true")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("my_shard"):
        items[:] = items[:2]  # as pytest-shard does it: nobody is told


@pytest.fixture(autouse=True)
def broken(request):
    plain = request.node.name == "test_plain"
    assert not (plain and request.config.getoption("my_break"))
    yield
    assert not (plain and request.config.getoption("my_late"))


def pytest_runtest_call(item):
    assert not (item.name == "test_plain" and item.config.getoption("my_fail"))
"""


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_said_after_a_part_of_a_run(run: Run, suite: Path, part: str) -> None:
    suite.with_name("conftest.py").write_text(CONFTEST)
    if part == "a collection error":
        suite.with_name("test_broken.py").write_text("raise RuntimeError\n")
    result = run("-p", "specalign", "--specalign-artifacts=out", *PARTS[part])
    assert "unused" not in result.stdout.str()
    (record,) = (suite.parent / "out").glob("golden-usage-*.json")
    assert main(["golden", "merge", str(record)]) == 2


def test_a_skipped_test_keeps_its_goldens(run: Run, suite: Path) -> None:
    suite.write_text(GONE.replace("def test_g", '@pytest.mark.skip(reason="no GPU")\ndef test_g'))
    result = run("-p", "specalign")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["2 unused, *", UNUSED[0], UNUSED[2]], consecutive=True)


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_a_lost_worker_leaves_the_run_incomplete(run: Run, suite: Path) -> None:
    suite.with_name("test_crash.py").write_text("import os\n\ndef test_crash():\n    os._exit(3)\n")
    result = run("-p", "specalign", "-n2")
    assert "unused" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_shards_are_merged_by_the_command(run: Run, suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, choice in enumerate(("test_f", "not test_f")):
        assert "unused" not in run("--specalign-artifacts", f"shard{number}", "-k", choice).stdout.str()
    records = [str(suite.parent / f"shard{number}") for number in (0, 1)]
    assert main(["golden", "merge", records[0]]) == 2
    capsys.readouterr()
    assert main(["golden", "merge", *records]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "3 tests, 5 goldens, 3 unused",
        *(f"unused: {line.strip()}" for line in UNUSED),
    ]
    assert main(["golden", "prune", *records, "--root", str(suite.parent), "--delete"]) == 0
    left = sorted(path.name for path in (suite.parent / "__golden__").iterdir())
    assert left == ["test_it.py~~test_f~a.cpu.safetensors", "test_it.py~~test_g~~h.cpu.safetensors"]
    run().assert_outcomes(passed=3)


def test_shards_by_path_need_one_run_that_only_collects(run: Run, suite: Path) -> None:
    suite.with_name("test_more.py").write_text("def test_more():\n    pass\n")
    run("--specalign-artifacts=one", "test_it.py").assert_outcomes(passed=3)
    run("--specalign-artifacts=two", "test_more.py").assert_outcomes(passed=1)
    records = [str(suite.parent / name) for name in ("one", "two")]
    assert main(["golden", "merge", *records]) == 2
    run("--specalign-artifacts=all", "--collect-only")
    assert main(["golden", "merge", *records, str(suite.parent / "all")]) == 1


def test_the_goldens_of_a_golden_dir_are_looked_through_as_well(run: Run, suite: Path) -> None:
    folder = suite.parent / "approved" / "was" / "deleted"
    folder.mkdir(parents=True)
    (suite.parent / "__golden__").rename(suite.parent / "approved" / "here")
    for path in (suite.parent / "approved" / "here").iterdir():
        path.rename((folder if "test_o" in path.name else suite.parent / "approved") / path.name)
    result = run("--specalign-golden-dir=approved", "--specalign-artifacts=out")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["3 unused, *", "  approved/test_it.py~~test_f~b", "*", "  approved/was/deleted/test_other.py~~test_o"]
    )
    (record,) = (suite.parent / "out").glob("golden-usage-*.json")
    assert len(json.loads(record.read_text())["present"]) == 5

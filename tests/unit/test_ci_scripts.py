"""The scripts of the workflows: the gate lets no unexplained skip through, and a find of the fuzzer can be pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / ".github" / "scripts"

SKIP = '<testcase classname="tests.a" name="test_b"><skipped type="pytest.skip" message="{}">where</skipped></testcase>'
PASS = '<testcase classname="tests.a" name="test_a"/>'


def _run(script: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPTS / script), *args], cwd=cwd, capture_output=True, text=True, check=False)


def _gate(folder: Path, *reports: str, files: int | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "junit").mkdir()
    (folder / "expected.txt").write_text("# why\nno (torch|GPU) here\n")
    for number, report in enumerate(reports):
        (folder / "junit" / f"{number}.xml").write_text(f"<testsuites><testsuite>{report}</testsuite></testsuites>")
    wanted = str(len(reports) if files is None else files)
    return _run("check_skips.py", "junit", "--files", wanted, "--expected", "expected.txt", cwd=folder)


def test_no_skip_passes(tmp_path: Path) -> None:
    assert _gate(tmp_path, PASS, PASS).returncode == 0


def test_an_explained_skip_passes_and_is_counted(tmp_path: Path) -> None:
    result = _gate(tmp_path, PASS + SKIP.format("no torch here") + SKIP.format("no torch here"))
    assert result.returncode == 0
    assert "explained: 2 x no torch here" in result.stdout


@pytest.mark.parametrize("reason", ["because", "no torch here either", ""])
def test_an_unexplained_skip_fails_and_is_named(tmp_path: Path, reason: str) -> None:
    result = _gate(tmp_path, PASS + SKIP.format(reason))
    assert result.returncode == 1
    assert f"::error::0.xml: tests.a::test_b: skipped for a reason that is not in expected.txt: {reason!r}" in result.stdout


def test_a_missing_report_fails(tmp_path: Path) -> None:
    result = _gate(tmp_path, PASS, files=2)
    assert result.returncode == 1
    assert "::error::1 reports in junit, expected 2" in result.stdout


def test_a_report_without_tests_fails(tmp_path: Path) -> None:
    assert _gate(tmp_path, PASS, "").returncode == 1


FINDING = """
from hypothesis import given, strategies as st

class TestIt:
    @given(ids=st.lists(st.integers(), min_size=1), n=st.integers())
    def test_method(self, ids, n):
        assert n < 100

@given(ids=st.lists(st.integers(), min_size=2))
def test_function(ids):
    assert ids == sorted(ids)
"""


def test_each_find_is_printed_as_an_example(pytester: pytest.Pytester) -> None:
    pytest.importorskip("hypothesis")
    pytester.makepyfile(FINDING)
    assert pytester.runpytest_subprocess("--junit-xml=fuzz.xml", "-p", "no:cacheprovider").ret == 1
    result = _run("fuzz_summary.py", "fuzz.xml", cwd=pytester.path)
    assert result.returncode == 0
    function = r"```python\n@example\(\n    ids=\[-?\d, -?\d\],\n\)\ndef test_function\(\.\.\.\): \.\.\.\n```"
    method = r"```python\n@example\(\n    ids=\[0\],.*\n    n=100,\n\)\ndef test_method\(\.\.\.\): \.\.\.\n```"
    assert re.search(function, result.stdout)
    assert re.search(method, result.stdout)
    assert "self=" not in result.stdout


def test_no_find_and_no_report(tmp_path: Path) -> None:
    (tmp_path / "fuzz.xml").write_text(f"<testsuites><testsuite>{PASS}</testsuite></testsuites>")
    assert _run("fuzz_summary.py", "fuzz.xml", cwd=tmp_path).stdout == "No find.\n"
    result = _run("fuzz_summary.py", "missing.xml", cwd=tmp_path)
    assert result.returncode == 1
    assert "was not written" in result.stdout

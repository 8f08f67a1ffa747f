"""Shards: every test is in exactly one, whatever the others collect, and the account says so, with and without xdist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.support import WITHOUT_XDIST, WORKERS

SCRIPTS = Path(__file__).parents[3] / ".github" / "scripts"

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(20))
def test_gpu(n): pass

@pytest.mark.parametrize("text", ["", "a b", "ü", "::", "[x]"])
def test_cpu(text): pass

class TestIt:
    @pytest.mark.skip(reason="because")
    @pytest.mark.gpu
    def test_skipped(self): pass
"""
TOTAL = 26

# By `printf '%s' NODE_ID | sha256sum` and the rest of its division by 3.
FIRST_OF_THREE = [
    *(f"test_one.py::test_gpu[{n}]" for n in (3, 4, 5, 8, 10, 11, 14)),
    r"test_one.py::test_cpu[a b]",
    r"test_one.py::test_cpu[\xfc]",
]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    pytester.makeini("[pytest]\nmarkers = gpu\n")
    pytester.makepyfile(test_one=TESTS, test_three=TESTS)
    return pytester


def _shard(project: pytest.Pytester, shard: str, *args: str) -> tuple[dict[str, Any], list[ET.Element]]:
    """What the run of one shard leaves: its account, and the test cases of its JUnit file."""
    folder = project.path / f"out {shard.replace('/', ' of ')}"
    outputs = [f"--ci-account={folder / 'account.json'}", f"--junit-xml={folder / 'junit.xml'}"]
    ran = project.runpytest_subprocess("-p", "ci_shard", f"--ci-shard={shard}", *outputs, "-p", "no:cacheprovider", *args)
    assert ran.ret == 0
    return json.loads((folder / "account.json").read_text()), list(ET.parse(folder / "junit.xml").iter("testcase"))


def _property(case: ET.Element, name: str) -> str | None:
    return next((item.get("value") for item in case.iter("property") if item.get("name") == name), None)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("by", ["test", "file"])
def test_the_shards_share_the_tests(project: pytest.Pytester, workers: tuple[str, ...], by: str) -> None:
    taken: list[str] = []
    for number in (1, 2):
        account, cases = _shard(project, f"{number}/2", f"--ci-shard-by={by}", "--ci-stage=small", *workers)
        assert (account["schema"], account["stage"], account["shard"]) == ("ci-account/1", "small", [number, 2])
        assert len(account["collected"]) == 2 * TOTAL
        assert sorted(_property(case, "node_id") or "" for case in cases) == sorted(account["selected"])
        taken += account["selected"]
        files = {test.partition("::")[0] for test in account["selected"]}
        assert len(files) == (2 if by == "test" else 1)
    assert sorted(taken) == sorted(account["collected"])


def test_which_shard_a_test_has_is_fixed_for_good(project: pytest.Pytester) -> None:
    """A test that changed places between two versions of this file would be lost to a run that mixes them."""
    account, _ = _shard(project, "1/3", *WITHOUT_XDIST)
    assert [test for test in account["selected"] if test.startswith("test_one.py::test_")] == FIRST_OF_THREE


def test_gpu_tests_are_marked_in_the_junit_file_also_when_they_skip(project: pytest.Pytester) -> None:
    _, cases = _shard(project, "1/1", *WITHOUT_XDIST)
    marked = {_property(case, "node_id") for case in cases if _property(case, "gpu") == "yes"}
    assert len(cases) == 2 * TOTAL
    assert len(marked) == 2 * 21
    assert "test_one.py::TestIt::test_skipped" in marked


def test_what_the_command_line_leaves_out_is_no_shards(project: pytest.Pytester) -> None:
    account, _ = _shard(project, "1/1", "-m", "gpu", "-k", "test_one", *WITHOUT_XDIST)
    assert len(account["collected"]) == 21
    assert account["selected"] == account["collected"]


@pytest.mark.parametrize("workers", WORKERS)
def test_other_plugins_can_tell_that_this_is_a_part(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    project.makeconftest("import pytest\n@pytest.fixture\ndef parts(pytestconfig): return pytestconfig.getoption('splits', 1)\n")
    for shard, parts in (("1/1", 1), ("1/2", 2), ("2/2", 2)):
        project.makepyfile(test_parts="\n".join(f"def test_{n}(parts): assert parts == {parts}" for n in range(9)))
        _shard(project, shard, "test_parts.py", *workers)


def test_an_empty_shard_is_no_success(project: pytest.Pytester) -> None:
    ran = project.runpytest_subprocess("-p", "ci_shard", "--ci-shard=1/9", "-k", "test_one and skipped", *WITHOUT_XDIST)
    other = project.runpytest_subprocess("-p", "ci_shard", "--ci-shard=2/9", "-k", "test_one and skipped", *WITHOUT_XDIST)
    assert pytest.ExitCode.NO_TESTS_COLLECTED in (ran.ret, other.ret)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/2/3", "", "1/02", "-1/2", "1/0"])
def test_a_wrong_shard_stops_the_run(project: pytest.Pytester, shard: str) -> None:
    ran = project.runpytest_subprocess("-p", "ci_shard", f"--ci-shard={shard}")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"ERROR: --ci-shard: shard {shard!r}: write I/N, with I from 1 to N"])

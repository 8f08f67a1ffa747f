"""The gate of the GPU jobs, on what real runs left: right ones pass, and each way to lose a test fails by name."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.support import WITHOUT_XDIST

SCRIPTS = Path(__file__).parents[3] / ".github" / "scripts"

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(8))
def test_gpu(n): pass

def test_cpu(): pass
"""
SKIPS = """
import pytest

@pytest.mark.gpu
@pytest.mark.skip(reason="no FP4 here")
def test_skips(): pass
"""
CPU_ONLY = "import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_cpu(n): pass\n"
STAGE = '[small]\nrunner = "any"\nshards = 2\nminimum = 8\nrequired = ["test_one.py"]\n'

Gate = Callable[..., "subprocess.CompletedProcess[str]"]
Reports = Callable[..., Path]


Files = tuple[tuple[str, str], ...]


def _run_shards(folder: Path, files: Files, count: int) -> None:
    """Runs every shard as the jobs do, and leaves in `folder/out` what they leave."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    for name, text in files:
        (folder / f"{name}.py").write_text(text)
    for number in range(1, count + 1):
        out = folder / "out" / f"gpu-small-{number}-of-{count}"
        outputs = [f"--ci-account={out / 'account.json'}", f"--junit-xml={out / 'junit.xml'}"]
        options = ["-p", "ci_shard", f"--ci-shard={number}/{count}", "--ci-stage=small", "-p", "no:cacheprovider", *WITHOUT_XDIST]
        command = [sys.executable, "-m", "pytest", "-q", *options, *outputs]
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Files, int], Path]:
    """What the shards of a project leave; each project runs once."""

    @functools.cache
    def run(files: Files, count: int) -> Path:
        folder = tmp_path_factory.mktemp("project")
        _run_shards(folder, files, count)
        return folder / "out"

    return run


@pytest.fixture
def reports(runs: Callable[[Files, int], Path], tmp_path: Path) -> Reports:
    """A copy of it, to be tampered with."""

    def copy(count: int = 2, **files: str) -> Path:
        return shutil.copytree(runs(tuple(files.items()), count), tmp_path / "out")

    return copy


@pytest.fixture
def out(reports: Reports) -> Path:
    return reports(test_one=TESTS)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    def run(folder: Path, *args: str, stage: str = STAGE, skips: str = "", waivers: str = "") -> subprocess.CompletedProcess[str]:
        for name, text in (("stages.toml", stage), ("skips.txt", skips), ("waivers.toml", waivers)):
            (tmp_path / name).write_text(text)
        files = ["--stages", "stages.toml", "--skips", "skips.txt", "--waivers", "waivers.toml"]
        command = [sys.executable, str(SCRIPTS / "gpu_gate.py"), str(folder), *files, *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def _fails(ran: subprocess.CompletedProcess[str], *problems: str) -> None:
    """Exactly these problems, as annotations, in any order; each is a regular expression."""
    found = [line.removeprefix("::error::") for line in ran.stdout.splitlines() if line.startswith("::error::")]
    assert ran.returncode == 1, ran.stdout
    assert len(found) == len(problems), found
    for problem in problems:
        assert any(re.fullmatch(problem, line) for line in found), (problem, found)


def test_complete_reports_pass(out: Path, gate: Gate) -> None:
    ran = gate(out, "--needs", '{"plan": {"result": "success"}, "stage": {"result": "success"}}')
    assert (ran.returncode, ran.stdout) == (0, "small: 8 GPU tests passed, at least 8 must\n"), ran.stderr


def test_a_lost_shard_fails(out: Path, gate: Gate) -> None:
    lost = json.loads((out / "gpu-small-2-of-2" / "account.json").read_text())["selected"]
    shutil.rmtree(out / "gpu-small-2-of-2")
    left = 8 - sum("test_gpu" in test for test in lost)
    _fails(gate(out), r"small: shard 2/2: 0 accounts, expected 1", rf"small: {left} GPU tests passed, at least 8 must")


def test_no_report_at_all_fails(tmp_path: Path, gate: Gate) -> None:
    ran = gate(tmp_path / "nothing")
    assert ran.returncode == 1
    assert "::error::small: shard 1/2: 0 accounts" in ran.stdout


def test_a_shard_that_is_there_twice_fails(out: Path, gate: Gate) -> None:
    shutil.copytree(out / "gpu-small-1-of-2", out / "again")
    ran = gate(out)
    assert ran.returncode == 1
    assert "::error::small: shard 1/2: 2 accounts, expected 1" in ran.stdout


def test_a_junit_file_that_is_missing_or_cut_short_fails(out: Path, gate: Gate) -> None:
    junit = out / "gpu-small-1-of-2" / "junit.xml"
    text = junit.read_text()
    junit.write_text(text[: len(text) // 2])
    assert "::error::small 1/2: " in gate(out).stdout
    junit.unlink()
    ran = gate(out)
    assert ran.returncode == 1
    assert "No such file" in ran.stdout


def test_a_test_that_a_shard_took_and_never_reported_fails(out: Path, gate: Gate) -> None:
    junit = out / "gpu-small-1-of-2" / "junit.xml"
    case = re.search(r"<testcase (?:(?!<testcase).)*?test_gpu\[\d\](?:(?!<testcase).)*?</testcase>", junit.read_text())
    assert case is not None
    junit.write_text(junit.read_text().replace(case[0], ""))
    lost = r"small 1/2: test_one\.py::test_gpu\[\d\] was taken and is not in the JUnit file: lost"
    _fails(gate(out), lost, r"small: 7 GPU tests passed, at least 8 must")


def test_shards_of_another_count_fail(reports: Reports, gate: Gate) -> None:
    ran = gate(reports(test_one=TESTS, count=1))
    assert ran.returncode == 1
    assert "::error::small: an account of shard 1/1, where there are 2 shards" in ran.stdout


def _edit(out: Path, number: int, change: Callable[[dict[str, list[str]]], None]) -> None:
    file = out / f"gpu-small-{number}-of-2" / "account.json"
    account = json.loads(file.read_text())
    change(account)
    file.write_text(json.dumps(account))


def test_a_shard_that_collected_less_fails(out: Path, gate: Gate) -> None:
    _edit(out, 2, lambda account: account["collected"].remove("test_one.py::test_gpu[0]"))
    _fails(gate(out), r"small: shard 2/2 did not collect test_one\.py::test_gpu\[0\], which another did")


def test_a_test_that_is_no_shards_or_two_shards_fails(out: Path, gate: Gate) -> None:
    _edit(out, 1, lambda account: account["collected"].append("test_one.py::test_new"))
    _edit(out, 2, lambda account: account["collected"].append("test_one.py::test_new"))
    _fails(gate(out), r"small: test_one\.py::test_new is no shard's")
    for number in (1, 2):
        _edit(out, number, lambda account: account["selected"].append("test_one.py::test_new"))
    assert "::error::small: test_one.py::test_new is 2 shards'" in gate(out).stdout


def test_no_gpu_test_fails(reports: Reports, gate: Gate) -> None:
    few, none = r"small: 0 GPU tests passed, at least 8 must", r"small: no GPU test of test_one\.py passed"
    _fails(gate(reports(test_one=CPU_ONLY)), few, none)


def test_a_required_file_that_ran_nothing_fails(out: Path, gate: Gate) -> None:
    stage = STAGE.replace('"test_one.py"', '"test_one.py", "test_on", "test_one.py::test_gpu"')
    _fails(gate(out, stage=stage), r"small: no GPU test of test_on passed")


@pytest.mark.parametrize(
    ("skips", "waivers", "passes"),
    [
        ("", "", False),
        ("no FP4 here", "", True),
        ("no FP4", "", False),
        ("", '[[waiver]]\ntest = "test_two.py::*"\nreason = "old GPU"\nexpires = 2999-12-31\n', True),
        ("", '[[waiver]]\ntest = "test_two.py::*"\nreason = "old GPU"\nexpires = 2020-12-31\n', False),
        ("", '[[waiver]]\ntest = "test_two.py"\nreason = "old GPU"\nexpires = 2999-12-31\n', False),
        ("", '[[waiver]]\ntest = "*"\nreason = "old GPU"\nexpires = 2999-12-31\nskip = "no FP*"\n', True),
        ("", '[[waiver]]\ntest = "*"\nreason = "old GPU"\nexpires = 2999-12-31\nskip = "busy"\n', False),
    ],
)
def test_a_skip_needs_an_explanation(reports: Reports, gate: Gate, skips: str, waivers: str, passes: bool) -> None:
    ran = gate(reports(test_one=TESTS, test_two=SKIPS), skips=skips, waivers=waivers)
    if passes:
        assert ran.returncode == 0, ran.stdout
        assert re.search(r"small [12]/2: explained: 1 x (no FP4 here|old GPU)", ran.stdout)
    else:
        _fails(ran, r"small [12]/2: test_two\.py::test_skips: skipped, and nothing explains it: 'no FP4 here'")


def test_a_file_that_skips_as_a_whole_needs_an_explanation_too(reports: Reports, gate: Gate) -> None:
    folder = reports(test_one=TESTS, test_two="import pytest\npytest.importorskip('not_there', reason='not_there is missing')\n")
    _fails(
        gate(folder), *[rf"small {n}/2: test_two\.py: skipped, and nothing explains it: 'not_there is missing'" for n in (1, 2)]
    )
    assert gate(folder, skips="not_there is missing").returncode == 0
    waiver = '[[waiver]]\ntest = "test_two.py"\nreason = "old image"\nexpires = 2999-12-31\n'
    assert gate(folder, waivers=waiver).returncode == 0


@pytest.mark.parametrize(
    "waiver", ["reason = 'x'", "test = '*'\nreason = ' '\nexpires = 2999-12-31", "test = '*'\nreason = 'x'\nexpires = 'never'"]
)
def test_a_waiver_that_is_not_whole_fails(out: Path, gate: Gate, waiver: str) -> None:
    ran = gate(out, waivers=f"[[waiver]]\n{waiver}\n")
    assert ran.returncode == 1
    assert "::error::waivers.toml: " in ran.stdout


def test_a_failure_fails_the_gate_too(reports: Reports, gate: Gate) -> None:
    _fails(gate(reports(test_one=TESTS + "def test_bad(): assert False\n")), r"small [12]/2: test_one\.py::test_bad: failed")


def test_a_crashed_process_fails_the_gate(reports: Reports, gate: Gate) -> None:
    """Its account is there, and its JUnit file was never written."""
    ran = gate(reports(test_one=TESTS + "def test_dies():\n    import os\n    os._exit(0)\n"))
    assert ran.returncode == 1
    assert re.search(r"::error::small [12]/2: .*junit\.xml.*No such file|No such file.*junit\.xml", ran.stdout)


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_a_job_that_did_not_succeed_fails_the_gate(out: Path, gate: Gate, result: str) -> None:
    _fails(gate(out, "--needs", json.dumps({"plan": {"result": "success"}, "stage": {"result": result}})), f"job stage: {result}")


def test_an_account_that_is_none_fails(out: Path, gate: Gate) -> None:
    (out / "gpu-small-1-of-2" / "account.json").write_text('{"schema": "other"}')
    _fails(gate(out), r".*gpu-small-1-of-2/account\.json: no account: .*")


def test_a_stage_that_nobody_asked_for_fails(out: Path, gate: Gate) -> None:
    stages = STAGE.replace("small", "other") + STAGE
    ran = gate(out, "--only", "other", stage=stages)
    assert ran.returncode == 1
    assert "stage 'small' was not asked for" in ran.stdout
    assert gate(out, "--only", "small", stage=stages).returncode == 0

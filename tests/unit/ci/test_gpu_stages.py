"""gpu_stages.toml and runners.yml become one job for each shard, and a file that says less than it must is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GITHUB = Path(__file__).parents[3] / ".github"
ROOT = GITHUB.parent

STAGES = '[one]\nrunner = "small"\ngpus = 1\nshards = 2\ntests = "tests/gpu"\n[two]\nrunner = "big"\ngpus = 2\nselect = "gpu(count=2)"\n'
RUNNERS = "# which machine\nsmall: [self-hosted, gpu]\nbig: [self-hosted, gpu-x2]\n"


def _plan(folder: Path, *args: str, stages: str = STAGES, runners: str = RUNNERS) -> subprocess.CompletedProcess[str]:
    (folder / "stages.toml").write_text(stages)
    (folder / "runners.yml").write_text(runners)
    command = [sys.executable, str(GITHUB / "scripts" / "gpu_stages.py"), "--stages", "stages.toml", "--runners", "runners.yml"]
    return subprocess.run([*command, *args], cwd=folder, capture_output=True, text=True, check=False)


def _rows(ran: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert ran.returncode == 0, ran.stderr
    name, _, value = ran.stdout.strip().partition("=")
    assert name == "matrix"
    rows: list[dict[str, object]] = json.loads(value)["include"]
    return rows


def test_each_shard_is_a_job_with_the_labels_of_its_stage(tmp_path: Path) -> None:
    rows = _rows(_plan(tmp_path))
    assert [(row["stage"], row["shard"], row["gpus"], json.loads(str(row["runner"]))) for row in rows] == [
        ("one", "1/2", 1, ["self-hosted", "gpu"]),
        ("one", "2/2", 1, ["self-hosted", "gpu"]),
        ("two", "1/1", 2, ["self-hosted", "gpu-x2"]),
    ]
    assert rows[2]["select"] == "gpu(count=2)"


def test_one_stage_can_be_chosen(tmp_path: Path) -> None:
    assert [row["stage"] for row in _rows(_plan(tmp_path, "--only", "two"))] == ["two"]


@pytest.mark.parametrize(
    ("args", "stages", "runners", "words"),
    [
        (("--only", "three"), STAGES, RUNNERS, "no stage is called 'three'; there are one, two"),
        ((), "", RUNNERS, "no stage"),
        ((), "[one]\nrunner = 'other'\n", RUNNERS, "[one]: runner is 'other'; runners.yml has small, big"),
        ((), "[one]\nrunner = 'small'\nshards = 0\n", RUNNERS, "shards is 0: give a whole number of at least 1"),
        ((), "[one]\nrunner = 'small'\ngpus = true\n", RUNNERS, "gpus is True"),
        ((), "[one]\nrunner = 'small'\nshard = 2\n", RUNNERS, "unexpected keyword argument 'shard'"),
        ((), "[one]\nrunner = 1\n", RUNNERS, "runner is 1: give a str"),
        ((), "['a b']\nrunner = 'small'\n", RUNNERS, "small letters"),
        ((), "one = 1\n", RUNNERS, "[one]"),
        ((), "[one\n", RUNNERS, "stages.toml"),
        ((), STAGES, RUNNERS + "small: [twice]\n", "runners.yml:4: 'small: [twice]'"),
        ((), STAGES, "small: gpu\n", "runners.yml:1: 'small: gpu'"),
        ((), STAGES, "small: [a, *anchor]\n", "runners.yml:1"),
    ],
)
def test_a_wrong_file_fails_and_is_named(tmp_path: Path, args: tuple[str, ...], stages: str, runners: str, words: str) -> None:
    ran = _plan(tmp_path, *args, stages=stages, runners=runners)
    assert ran.returncode == 1
    assert ran.stderr.startswith("::error::")
    assert words in ran.stderr
    assert ran.stdout == ""


def test_our_own_files_are_right_and_name_every_file_of_gpu_tests() -> None:
    rows = _rows(_plan_of_ours())
    assert {row["stage"] for row in rows} == {"one-gpu", "two-gpus"}
    text = (GITHUB / "gpu_stages.toml").read_text()
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "gpu").rglob("test_*.py"))
    assert files, "no GPU tests in this checkout"
    assert [file for file in files if f'"{file}"' not in text] == [], "name it under `required` in .github/gpu_stages.toml"


def _plan_of_ours() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GITHUB / "scripts" / "gpu_stages.py")]
    files = ["--stages", str(GITHUB / "gpu_stages.toml"), "--runners", str(GITHUB / "runners.yml")]
    return subprocess.run([*command, *files], capture_output=True, text=True, check=False)

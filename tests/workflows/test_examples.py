"""The workflows to copy, run on a made-up machine: what they leave is complete, and the sharded one's gate sees what is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.workflows.machine import Machine
from tests.workflows.reader import ROOT, find, load, steps

EXAMPLES = ROOT / "examples" / "github-actions"

TESTS = """
import os, pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(8))
def test_one(n):
    assert n < 8

@pytest.mark.gpu(count=2)
def test_two(gpu_lease):
    assert len(gpu_lease.devices) == 2
"""
ONE = TESTS.partition("@pytest.mark.gpu(count=2)")[0]
GATE = "Every shard reported, no test was lost, every skip is explained, enough GPU tests passed"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, name="gpu")


def _tests(machine: Machine, text: str) -> None:
    (machine.workspace / "tests").mkdir()
    (machine.workspace / "tests" / "test_it.py").write_text(text)


def _passed(junit: Path) -> int:
    return sum(case.find("skipped") is None and case.find("failure") is None for case in ET.parse(junit).iter("testcase"))


def test_single_gpu(machine: Machine) -> None:
    _tests(machine, ONE)
    code, output = machine.run(find(EXAMPLES / "single-gpu.yml", "Test under a lease"))
    assert code == 0, output
    assert _passed(machine.out / "junit.xml") == 8


def test_multi_gpu(machine: Machine) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    _tests(machine, TESTS)
    for name, file, count in (("Tests that need both GPUs", "two", 1), ("Tests that need one, a worker for each GPU", "one", 8)):
        code, output = machine.run(find(EXAMPLES / "multi-gpu.yml", name))
        assert code == 0, output
        assert _passed(machine.out / f"{file}.xml") == count
    assert "created: 2/2 workers" in output


def test_sharded(machine: Machine) -> None:
    _tests(machine, ONE)
    file = EXAMPLES / "sharded.yml"
    shards = load(file)["jobs"]["test"]["strategy"]["matrix"]["shard"]
    stages = f'[gpu]\nshards = {len(shards)}\nminimum = 8\nrequired = ["tests/test_it.py"]\n'
    (machine.workspace / ".github" / "gpu_stages.toml").write_text(stages)
    for number in shards:
        code, output = machine.run(find(file, "Test one shard under a lease"), SHARD=f"{number}/{len(shards)}")
        assert code == 0, output
        shutil.move(machine.out, machine.workspace / "reports" / f"gpu-{number}")
    ran = machine.run(find(file, GATE), NEEDS='{"test": {"result": "success"}}')
    assert ran == (0, "gpu: 8 GPU tests passed, at least 8 must\n")
    shutil.rmtree(machine.workspace / "reports" / "gpu-3")
    code, output = machine.run(find(file, GATE), NEEDS='{"test": {"result": "success"}}')
    assert code == 1
    assert "::error::gpu: shard 3/4: 0 accounts, expected 1" in output


def test_the_sharded_example_names_every_script_that_it_needs() -> None:
    """Those, alone in a folder, are enough for its gate."""
    text = (EXAMPLES / "sharded.yml").read_text()
    named = {word for word in text.split("\non:")[0].split() if word.endswith(".py")}
    assert named == {"check_skips.py", "ci_shard.py", "ci_shard_account.py", "gpu_gate.py", "gpu_stages.py", "gpu_waivers.py"}
    assert all((ROOT / ".github" / "scripts" / name).is_file() for name in named)


@pytest.mark.parametrize("name", ["single-gpu.yml", "multi-gpu.yml", "sharded.yml"])
def test_an_example_needs_nothing_else_of_this_repository(name: str) -> None:
    for step in steps(EXAMPLES / name):
        assert not str(step.uses).startswith(("$/", "./"))
        assert ".github/scripts" not in str(step.script) or name == "sharded.yml"

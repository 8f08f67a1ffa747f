"""The shell of a GPU job, run: health, tests under a lease, what was left running, cleaning up; and the gate on what it left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflows.machine import UUIDS, Machine
from tests.workflows.reader import ACTIONS, GITHUB, find

torch = pytest.importorskip("torch", reason="torch is not installed")

STAGE = GITHUB / "workflows" / "_gpu-stage.yml"
GPU = GITHUB / "workflows" / "gpu.yml"
TEST = find(STAGE, "Test under a lease")
REAP = find(STAGE, "End what was left running")
REMOVE = find(STAGE, "Remove every file of this run")
HEALTH = find(ACTIONS[0], "Health")
INSTALL = find(ACTIONS[0], "Install into a virtual environment")
GATE = find(GPU, "Every shard reported, no test was lost, every skip is explained, enough GPU tests passed")

INPUTS = {
    "STAGE": "small",
    "SHARD": "1/1",
    "GPUS": "1",
    "TESTS": "tests",
    "SELECT": "",
    "MINUTES": "5",
    "LEASE_SECONDS": "60",
    "GOLDEN": "check",
    "FORCE": "",
}
GPU_TEST = """
import os, pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(6))
def test_gpu(n):
    assert n < 6
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _tests(machine: Machine, **files: str) -> None:
    (machine.workspace / "tests").mkdir(exist_ok=True)
    for name, text in files.items():
        (machine.workspace / "tests" / f"{name}.py").write_text(text)


def test_health_passes_on_gpus_that_compute(machine: Machine) -> None:
    code, output = machine.run(HEALTH, GPUS="2", LEASE_SECONDS="60")
    assert code == 0, output
    for number, uuid in enumerate(UUIDS):
        assert f"cuda:{number}: made up {uuid}: 4 MiB written and read, product exact" in output


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no CUDA build", "was built without CUDA"),
        ("no driver", "finds no GPU that it can use"),
        ("lost GPU", "torch sees 1 GPUs, expected 2"),
        ("no memory", "cuda:0: OutOfMemoryError: CUDA out of memory"),
        ("bad memory", "cuda:0: 1 of 1048576 words read back other than written"),
        ("bad product", "cuda:0: a matrix product of small whole numbers is wrong"),
        ("bad copy", "a copy from cuda:0 to cuda:1 arrived changed"),
    ],
)
def test_health_fails_on_a_machine_that_does_not(machine: Machine, fault: str, words: str) -> None:
    code, output = machine.run(HEALTH, GPUS="2", LEASE_SECONDS="60", MADE_UP_FAULT=fault)
    assert code == 1
    assert "::error::GPU health: " in output
    assert words in output


def test_a_driver_that_hangs_is_no_endless_job(machine: Machine) -> None:
    health = [sys.executable, str(machine.workspace / ".github" / "scripts" / "gpu_health.py"), "--gpus=1", "--seconds=8"]
    environment = machine.environment() | {"MADE_UP_FAULT": "hangs", "CUDA_VISIBLE_DEVICES": "GPU-x"}
    ran = subprocess.run([*health, "--", "echo", "went on"], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (
        1,
        "::error::GPU health: no answer within 8 s: the driver hangs. Look at dmesg for Xid lines.\n",
    )


def test_more_gpus_than_there_are_fail(machine: Machine) -> None:
    code, output = machine.run(HEALTH, GPUS="3", LEASE_SECONDS="1")
    assert code == 2
    assert "3" in output


def test_tests_run_under_a_lease_and_leave_their_reports(machine: Machine) -> None:
    _tests(machine, test_one=GPU_TEST)
    code, output = machine.run(TEST, machine.mark, **INPUTS)
    assert code == 0, output
    account = json.loads((machine.out / "account.json").read_text())
    assert (account["stage"], account["shard"], len(account["selected"])) == ("small", [1, 1], 6)
    assert (machine.out / "junit.xml").read_text().count("<testcase") == 6
    assert f"specalign lease: GPU 0 NVIDIA H200 ({UUIDS[0]})" in output
    assert "product exact" in output


def test_only_the_leased_gpus_are_seen(machine: Machine) -> None:
    for count in (1, 2):
        visible = ",".join(UUIDS[:count])
        _tests(machine, test_one=GPU_TEST + f"    assert os.environ['CUDA_VISIBLE_DEVICES'] == {visible!r}\n")
        code, output = machine.run(TEST, machine.mark, **INPUTS | {"GPUS": str(count)})
        assert code == 0, output
        shutil.rmtree(machine.out)


def test_paths_and_marks_are_passed_on(machine: Machine) -> None:
    two = "import pytest\n@pytest.mark.gpu(count=2)\ndef test_two(): pass\n"
    _tests(machine, test_one=GPU_TEST, test_two=two, test_three=GPU_TEST)
    inputs = INPUTS | {"TESTS": "tests/test_one.py  tests/test_two.py", "SELECT": "not gpu(count=2)"}
    code, output = machine.run(TEST, machine.mark, **inputs)
    assert code == 0, output
    assert len(json.loads((machine.out / "account.json").read_text())["collected"]) == 6


def test_a_failing_test_fails_the_step(machine: Machine) -> None:
    _tests(machine, test_one=GPU_TEST + "def test_bad(): assert False\n")
    assert machine.run(TEST, machine.mark, **INPUTS)[0] == 1
    assert "<failure" in (machine.out / "junit.xml").read_text()


def test_a_sick_gpu_stops_the_job_before_its_tests(machine: Machine) -> None:
    _tests(machine, test_one=GPU_TEST)
    code, output = machine.run(TEST, machine.mark, **INPUTS, MADE_UP_FAULT="bad memory")
    assert code == 1
    assert "::error::GPU health: cuda:0: 1 of" in output
    assert not (machine.out / "junit.xml").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SHARD": "3/2"}, "SHARD is '3/2'"),
        ({"SHARD": "1"}, "SHARD is '1'"),
        ({"SHARD": "0/1"}, "SHARD is '0/1'"),
        ({"GPUS": "0"}, "GPUS is '0'"),
        ({"GPUS": "1; id"}, "GPUS is '1; id'"),
        ({"MINUTES": ""}, "MINUTES is ''"),
        ({"TESTS": " "}, "TESTS is empty"),
        ({"TESTS": "tests --pdb"}, "TESTS has an option in it: '--pdb'"),
        ({"STAGE": "../x"}, "STAGE is '../x'"),
        ({"GOLDEN": "yes"}, "GOLDEN is 'yes'"),
        ({"GOLDEN": "update"}, "FORCE is empty"),
    ],
)
def test_bad_inputs_stop_before_a_lease(machine: Machine, changes: dict[str, str], words: str) -> None:
    code, output = machine.run(TEST, machine.mark, **INPUTS | changes)
    assert (code, output.count("::error::gpu_test: ")) == (2, 1)
    assert words in output
    assert not machine.out.exists()


def test_reports_of_another_run_are_not_taken_for_this_ones(machine: Machine) -> None:
    machine.out.mkdir()
    code, output = machine.run(TEST, machine.mark, **INPUTS)
    assert code == 2
    assert "is there already" in output


def test_a_cancelled_job_still_writes_its_reports(machine: Machine) -> None:
    """The runner interrupts the shell of the step, which has become the test run."""
    fifo = machine.folder / "fifo"
    waits = f"\ndef test_waits():\n    open({str(fifo)!r}, 'w').close()\n    import time\n    time.sleep(600)\n"
    _tests(machine, test_one=GPU_TEST + waits)
    subprocess.run(["mkfifo", str(fifo)], check=True)
    process = machine.start(TEST, machine.mark, **INPUTS)
    fifo.read_text()  # until the test is there
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert (machine.out / "junit.xml").read_text().count("<testcase") >= 6


LEFT = """
import os, subprocess, sys, pytest

@pytest.mark.gpu
def test_leaves_a_server():
    program = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True, close_fds=True)
    assert server.stdout.readline() == b"up\\n"
    with open("pid", "w") as file: file.write(str(server.pid))
"""


@pytest.mark.filterwarnings("ignore")
def test_what_a_test_left_running_is_named_ended_and_fails_the_job(machine: Machine) -> None:
    _tests(machine, test_one=LEFT)
    (machine.workspace / "pytest.ini").write_text("[pytest]\nfilterwarnings = ignore\n")
    assert machine.run(TEST, machine.mark, **INPUTS)[0] == 0
    pid = int((machine.workspace / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    code, output = machine.run(REAP, {"MARK": "1-1-of-another-job"})
    assert (code, output) == (0, ""), "another job's is left alone"
    assert Path(f"/proc/{pid}").exists()
    code, output = machine.run(REAP, machine.mark)
    assert code == 1
    assert f"::error::left running by this job: process {pid}: " in output
    assert "cannot be ended" not in output
    assert _is_gone(pid)
    assert machine.run(REAP, machine.mark) == (0, "")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_nothing_stays_on_the_machine(machine: Machine) -> None:
    _tests(machine, test_one=GPU_TEST)
    subprocess.run(["git", "init", "-q"], cwd=machine.workspace, check=True)
    subprocess.run(["git", "add", "-A"], cwd=machine.workspace, check=True)
    (machine.workspace / "left").mkdir()
    (machine.workspace / "left" / "model.bin").write_text("x")
    (machine.workspace / ".gitignore").write_text("left\n")
    machine.out.mkdir()
    code, output = machine.run(REMOVE)
    assert (code, output) == (0, "")
    assert list(machine.temp.iterdir()) == []
    assert not (machine.workspace / "left").exists()
    assert (machine.workspace / "tests" / "test_one.py").exists()


def test_cleaning_up_works_where_the_checkout_failed(machine: Machine) -> None:
    shutil.rmtree(machine.workspace)
    machine.workspace.mkdir()
    assert machine.run(REAP, machine.mark) == (0, "")
    assert machine.run(REMOVE) == (0, "")
    assert list(machine.temp.iterdir()) == []


PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
if [ "$2 $3 $FAULT" = "pip install bad" ]; then exit 3; fi
"""


def test_the_installation_takes_what_it_is_told_into_a_fresh_place(machine: Machine) -> None:
    log, python = machine.folder / "log", machine.folder / "bin" / "python-own"
    python.write_text(PYTHON)
    python.chmod(0o755)
    old = machine.temp / "specalign-gpu" / "old"
    old.mkdir()
    inputs = {"PYTHON": "python-own", "TORCH": "torch==2.13.0", "INSTALL": "--editable .[a,b] --group test", "LOG": str(log)}
    code, output = machine.run(INSTALL, **inputs)
    assert code == 0, output
    assert log.read_text().splitlines() == [
        f"python-own -m venv {machine.temp}/specalign-gpu/venv",
        "python -m pip install --quiet --upgrade pip>=25.1",
        "python -m pip install --quiet torch==2.13.0",
        "python -m pip install --quiet --editable .[a,b] --group test",
    ]
    assert not old.exists()
    assert machine.run(INSTALL, **inputs, FAULT="bad")[0] == 3


STAGES = '[small]\nrunner = "any"\nshards = 2\nminimum = {}\n'


@pytest.mark.parametrize(("minimum", "result", "code"), [(6, "success", 0), (7, "success", 1), (6, "failure", 1)])
def test_two_shards_and_the_gate(machine: Machine, minimum: int, result: str, code: int) -> None:
    """From the test step to the gate, as the jobs do it, each on its own."""
    _tests(machine, test_one=GPU_TEST)
    for number in (1, 2):
        ran, output = machine.run(TEST, machine.mark, **INPUTS | {"SHARD": f"{number}/2"})
        assert ran == 0, output
        shutil.move(machine.out, machine.workspace / "reports" / f"gpu-small-{number}-of-2")
    (machine.workspace / ".github" / "gpu_stages.toml").write_text(STAGES.format(minimum))
    found, output = machine.run(GATE, STAGE="all", NEEDS=json.dumps({"stage": {"result": result}}))
    assert found == code, output
    assert f"small: 6 GPU tests passed, at least {minimum} must" in output

"""`specalign lease` and `specalign doctor`, on GPUs that a script in the place of nvidia-smi lists."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specalign.leases import Device, LockFolder
from specalign.leases.locks import holder_of
from tests.unit.cli.conftest import Ran

ROOT = Path(__file__).parents[3]
UUIDS = ["GPU-aaaaaaaa", "GPU-bbbbbbbb"]
ROWS = "".join(f"{i}, {uuid}, 580.65.06, [N/A], 143771, 143162, 9.0, NVIDIA H200\n" for i, uuid in enumerate(UUIDS))

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs, no NVML; returns the lock folder."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\ncase "$1" in\n--query-gpu=*) cat <<X\n{ROWS}X\n;;\n*) echo {UUIDS[1]}, 4711, 1024, /opt/server;;\nesac\n'
    )
    script.chmod(0o755)
    (tmp_path / "bin" / "pynvml.py").write_text("raise ImportError")
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(script.parent), str(ROOT / "impl")]))
    monkeypatch.setenv("SPECALIGN_LOCK_DIR", str(tmp_path / "locks"))
    for name in ("CUDA_VISIBLE_DEVICES", "SPECALIGN_LEASE", "SPECALIGN_LEASE_TIMEOUT", "SPECALIGN_LOCK_PATTERN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "locks"


@pytest.fixture
def start(machine: Path) -> Start:
    def call(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "specalign.cli.main", "lease", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return call


def _holds(folder: Path, index: int) -> bool:
    return holder_of(LockFolder(folder).of(Device(UUIDS[index], index))) is not None


def test_the_command_sees_the_leased_gpus(start: Start) -> None:
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    out, err = start("--count", "2", "--", sys.executable, "-c", show).communicate()
    assert json.loads(out)["CUDA_VISIBLE_DEVICES"] == ",".join(UUIDS)
    assert err == f"specalign lease: GPU 0 NVIDIA H200 ({UUIDS[0]}), GPU 1 NVIDIA H200 ({UUIDS[1]})\n"


def test_its_exit_code_and_signals_are_the_commands(start: Start) -> None:
    child = start("--", "sh", "-c", "exit 7")
    child.communicate()
    assert child.returncode == 7
    child = start("--", "sh", "-c", "echo ready; exec cat")
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    child.communicate()
    assert child.returncode == -signal.SIGTERM


def test_the_lease_lasts_as_long_as_the_command(start: Start, machine: Path) -> None:
    child = start("--", "sh", "-c", "echo ready; exec cat")
    assert child.stdout is not None
    child.stdout.readline()
    held = [_holds(machine, index) for index in (0, 1)]
    assert held == [True, False]
    late = start("--count", "2", "--timeout", "0", "--", "true")
    _, err = late.communicate()
    assert late.returncode == 2
    assert f"had 1 of 2 after 0 s\n  GPU 0 NVIDIA H200 ({UUIDS[0]}): leased by pid {child.pid} of " in err
    child.kill()
    child.communicate()
    assert not _holds(machine, 0)


def test_a_lease_inside_a_lease_is_served_from_it(start: Start) -> None:
    inner = f"{sys.executable} -m specalign.cli.main lease --timeout 0 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    out, err = start("--", "sh", "-c", inner).communicate()
    assert out == f"{UUIDS[0]}\n", err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no command: write it after --"),
        (("--",), "no command"),
        (("--", "no-such-command"), "cannot run 'no-such-command': No such file or directory"),
        (("--count", "3", "--", "true"), "asked for 3 GPUs: 2 of 2 GPUs here would do"),
        (("--count", "0", "--", "true"), "count is 0: ask for at least 1 GPU"),
        (("--memory", "40GB", "--", "true"), 'give a size like "40GiB"'),
        (("--capability", "90", "--", "true"), "like 9.0"),
        (("--capability", "10.0", "--", "true"), "compute capability 9.0, asked for 10.0"),
        (("--lock-pattern", "gpu", "--", "true"), "pattern of lock files"),
    ],
)
def test_what_cannot_be_had(run: Callable[..., Ran], machine: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = run("lease", *arguments)
    assert ran.code == 2
    assert "specalign lease: " in ran.err
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_pattern_of_lock_files_of_others(start: Start, machine: Path) -> None:
    start("--lock-pattern", "gpu{index}.lock", "--", "true").communicate()
    assert sorted(entry.name for entry in machine.iterdir()) == ["gpu0.lock", "turn.lock"]


def test_a_timeout_that_is_no_number(run: Callable[..., Ran], machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECALIGN_LEASE_TIMEOUT", "soon")
    assert "SPECALIGN_LEASE_TIMEOUT is 'soon': give seconds" in run("lease", "--", "true").err


def test_the_doctor_names_versions_gpus_and_holders(run: Callable[..., Ran], start: Start, machine: Path) -> None:
    child = start("--", "sh", "-c", "echo ready; exec cat")
    assert child.stdout is not None
    child.stdout.readline()
    ran = run("doctor")
    child.communicate()
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert any(line.startswith("numpy ") for line in lines)
    assert "driver 580.65.06, GPUs told by nvidia-smi" in lines
    first, second = lines.index(f"GPU 0 NVIDIA H200 ({UUIDS[0]})"), lines.index(f"GPU 1 NVIDIA H200 ({UUIDS[1]})")
    assert lines[first + 1] == "  compute capability 9.0, 139.8 GiB free of 140.4 GiB"
    assert lines[first + 2].startswith(f"  leased by pid {child.pid} of ")
    assert lines[second + 2 : second + 4] == ["  in use by pid 4711 /opt/server (1.0 GiB)", "  not leased"]
    assert f"lock folder {machine}: mode 1777, 2 files" in lines
    assert "  nobody is collecting GPUs" in lines


def test_the_doctor_finds_a_bad_folder(run: Callable[..., Ran], machine: Path) -> None:
    assert "not there yet" in run("doctor").out
    machine.mkdir(mode=0o755)
    (machine / f"{UUIDS[0]}.lock").mkdir()
    ran = run("doctor")
    assert ran.code == 1
    assert "mode 755" in ran.out
    assert "chmod 1777" in ran.out
    assert f"PROBLEM: lock file {machine}/{UUIDS[0]}.lock: " in ran.out


def test_the_doctor_says_what_is_hidden(run: Callable[..., Ran], machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert f"GPU 0 NVIDIA H200 ({UUIDS[0]}), hidden by CUDA_VISIBLE_DEVICES" in run("doctor").out.splitlines()

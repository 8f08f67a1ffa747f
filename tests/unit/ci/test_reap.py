"""What a job left running is found by its variable, ended whatever it does with signals, and named; nobody else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REAP = Path(__file__).parents[3] / ".github" / "scripts" / "reap.py"

PROGRAMS = {
    "ends when asked": "print('up', flush=True); import signal; signal.pause()",
    "ignores the request": "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()",
}

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def mark() -> str:
    return f"GPU_JOB_MARK={uuid.uuid4()}"


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def call(program: str, mark: str) -> subprocess.Popen[bytes]:
        name, _, value = mark.partition("=")
        environment = {**os.environ, name: value}
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield call
    for process in running:
        process.kill()
        process.communicate()


def _reap(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REAP), *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_process_of_the_job_is_ended_and_named(start: Start, mark: str, program: str) -> None:
    process = start(program, mark)
    ran = _reap(mark, "--seconds=1")
    assert ran.returncode == 1
    assert f"::error::left running by this job: process {process.pid}: " in ran.stdout
    assert "cannot be ended" not in ran.stdout
    assert process.wait(timeout=10) == (-15 if program == PROGRAMS["ends when asked"] else -9)


def test_another_jobs_process_is_left_alone(start: Start, mark: str) -> None:
    process = start(PROGRAMS["ends when asked"], f"{mark}-longer")
    ran = _reap(mark)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert process.poll() is None


@pytest.mark.parametrize("variable", ["GPU_JOB_MARK", "GPU_JOB_MARK=", "=x", ""])
def test_what_names_no_job_is_refused(variable: str) -> None:
    """`NAME=` of an empty variable would be everybody's."""
    assert _reap(variable).returncode == 2


def test_it_does_not_end_itself_or_the_job_that_calls_it(mark: str) -> None:
    name, _, value = mark.partition("=")
    assert _reap(mark, **{name: value}).returncode == 2

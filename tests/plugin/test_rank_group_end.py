"""Whatever ends pytest in the middle of a run, no rank and nothing that a rank started stays; the kernel says so."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from specalign.leases.processes import descendants
from tests.plugin.support import WITHOUT_XDIST, Run
from tests.unit.ranks.watching import PATIENCE, Line, Watched

PROGRAM = """
import os
import subprocess
import sys
import torch
import torch.distributed as dist

DAEMON = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3, start_new_session=True).pid)"


def hang(line):
    daemon = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, check=True).stdout.strip()
    with open(line, "a") as file:
        file.write(f"{os.getpid()} {daemon}\\n")
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))
    subprocess.run(["sleep", "1000"])


def test_hang(rank_group):
    rank_group(2).run(hang, LINE)
"""


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A check that fails in between does not wait for it."""
    try:
        yield
    finally:
        process.kill()


def hears_sigint() -> None:
    """A shell lets what it runs in the background ignore SIGINT, and whatever that starts inherits it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_outlives_pytest(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    line = Line(pytester.path / "line")
    pytester.makepyfile(test_it=PROGRAM.replace("LINE", repr(str(pytester.path / "line"))))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(run.path), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "pytest", "-p", "specalign", *WITHOUT_XDIST, "test_it.py"]
    with subprocess.Popen(command, env=environ, stdout=-3, stderr=-3, preexec_fn=hears_sigint) as process, ended(process):
        told = [int(pid) for line in line.read(2) for pid in line.split()]
        below = descendants(process.pid)
        watched = Watched(sorted({*told, *below}))
        assert set(told) <= below, "the daemons too are below the warden, and the warden below pytest"
        assert len(below) >= 5, "the warden, two ranks, what each of them left"
        assert [path.name.startswith("specalign-ranks-") for path in scratch.iterdir()] == [True]
        process.send_signal(number)
        process.wait(PATIENCE)
    assert watched.still_there() == []
    assert list(scratch.iterdir()) == []


def test_no_rank_outlives_its_warden(run: Run, pytester: pytest.Pytester) -> None:
    line = Line(pytester.path / "line")
    pytester.makepyfile(test_it=PROGRAM.replace("LINE", repr(str(pytester.path / "line"))))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(run.path)}
    command = [sys.executable, "-m", "pytest", "-p", "specalign", *WITHOUT_XDIST, "test_it.py"]
    with subprocess.Popen(command, env=environ, stdout=-1, text=True) as process, ended(process):
        told = [[int(pid) for pid in line.split()] for line in line.read(2)]
        ranks, daemons = Watched([rank for rank, _ in told]), [daemon for _, daemon in told]
        stat = Path(f"/proc/{told[0][0]}/stat").read_text()
        below = descendants(warden := int(stat.rpartition(")")[2].split()[1]))
        os.kill(warden, signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    assert "the process that watches the ranks ended before they did" in said
    assert ranks.still_there() == []
    for pid in {*daemons, *below} - {rank for rank, _ in told}:  # out of reach, as the warden's description says
        os.kill(pid, signal.SIGKILL)

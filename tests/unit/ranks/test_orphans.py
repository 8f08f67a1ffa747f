"""A process that adopted orphans ends all of them; one that is to end with its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from specalign.ranks.orphans import signal_name
from tests.unit.ranks.watching import Line, Watched

ROOT = Path(__file__).parents[3]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "impl"), str(ROOT)])}

ADOPTS = """
import os, subprocess, sys
from specalign.ranks import orphans
if sys.argv[1] == "adopts":
    orphans.adopt_orphans()
start = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3, start_new_session=True).pid)"
pids = [subprocess.run([sys.executable, "-c", start], capture_output=True, text=True).stdout.strip() for _ in range(2)]
print(*pids, flush=True)
sys.stdin.readline()
print(len(orphans.running_descendants()), flush=True)
orphans.kill_descendants([])
print(len(orphans.running_descendants()), orphans.reap_any())
"""


def _adopts(how: str) -> tuple[Watched, list[int], str]:
    command = [sys.executable, "-c", ADOPTS, how]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=ENVIRON) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        watched = Watched(pids)
        said, _ = process.communicate("\n")
    return watched, pids, said


def test_orphans_in_sessions_of_their_own_are_ended() -> None:
    watched, _, said = _adopts("adopts")
    assert said == "2\n0 False\n"
    assert watched.still_there(0) == []


def test_without_adoption_they_would_be_out_of_reach() -> None:
    watched, pids, said = _adopts("does not")
    assert said == "0\n0 False\n"
    assert watched.still_there(0) == sorted(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


ENDS = """
import os, signal, sys, time
from specalign.ranks.orphans import end_with_parent
end_with_parent(int(sys.argv[2]) or os.getppid(), signal.SIGKILL)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
time.sleep(1000)
"""


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    line = Line(tmp_path / "line")
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ENDS!r}, {str(tmp_path / 'line')!r}, '0'])"
    with subprocess.Popen([sys.executable, "-c", parent], env=ENVIRON) as process:
        child = Watched([int(line.read(1)[0])])
        process.kill()
    assert child.still_there() == []


def test_a_process_whose_parent_is_gone_already_ends_at_once(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path / "line"), "1"], env=ENVIRON, timeout=60)
    assert ran.returncode == 1
    assert not (tmp_path / "line").exists()


def test_signals_have_names() -> None:
    assert (signal_name(9), signal_name(200)) == ("SIGKILL", "signal 200")

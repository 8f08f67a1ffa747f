"""kill -9 at any moment: every pass that was reported is there and whole, and what is missing is told."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specalign.dump.files import TEMPORARY
from specalign.dump.reader import open_specalign
from specalign.dump.validate import validate
from tests.unit.dump.damaged import names_in
from tests.unit.dump.made import bits, manifest

WRITER = """
import sys
from tests.unit.dump.made import *
writer = DumpWriter(Path(sys.argv[1]), manifest(model={}), resume=True)
print("ready", writer.passes, flush=True)
while True:
    step = writer.passes
    tensors = [tensor(f"boundary.{b}", bits(1, 4096, seed=100 * step + b)) for b in range(4)]
    writer.write_pass(decode({"a": (step, step)}), tensors)
    print("wrote", step, flush=True)
"""


def run_and_kill(folder: Path, reports: int, bytes_more: int) -> tuple[int, int]:
    """Start a writer, kill it after so many reports (and a moment that depends on `bytes_more`): passes before, last reported."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        begun = int(writer.stdout.readline().split()[1])
        last = begun - 1
        for _ in range(reports):
            last = int(writer.stdout.readline().split()[1])
        for _ in range(bytes_more):
            pass  # somewhere within the next pass
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
        complete = [line for line in rest if line.count(" ") == 1 and line.startswith("wrote ")]
        last = max([last, *(int(line.split()[1]) for line in complete)])
        assert writer.stderr is not None
        assert writer.stderr.read() == ""
    return begun, last


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_was_committed_is_lost(tmp_path: Path, seed: int) -> None:
    random_moment = random.Random(seed)
    reported = -1
    for _ in range(6):
        begun, last = run_and_kill(tmp_path, random_moment.randrange(0, 12), random_moment.randrange(0, 200_000))
        assert begun in (reported + 1, reported + 2)  # a pass may have been committed just before its report
        reported = max(reported, last)
        dump = open_specalign(tmp_path)
        infos = dump.infos()
        assert len(infos) in (reported + 1, reported + 2)
        for info in infos[-3:]:
            assert dump.rows(info).positions.tolist() == [info.number]
            for boundary, one in enumerate(dump.load(info, check=True).values()):
                assert np.array_equal(one.data, bits(1, 4096, seed=100 * info.number + boundary))
        check_report(tmp_path, len(infos))
        reported = len(infos) - 1


def check_report(folder: Path, passes: int) -> None:
    report = validate(folder)
    assert not report.ok
    assert (report.passes, report.rows) == (passes, passes)
    errors = [problem.code for problem in report.problems if problem.severity == "error"]
    assert errors == (["no-end"] if passes else ["empty", "no-end"])
    leftovers = [problem for problem in report.problems if problem.code == "leftover"]
    assert len(leftovers) == sum(bool(TEMPORARY.fullmatch(name)) for name in names_in(folder / "rank00000"))
    assert len(leftovers) <= 1


def test_a_run_that_is_gone_on_with_to_its_end_is_whole(tmp_path: Path) -> None:
    from specalign.dump.writer import DumpWriter

    run_and_kill(tmp_path, 3, 0)
    with DumpWriter(tmp_path, manifest(model={}), resume=True) as writer:
        assert writer.passes >= 3
    report = validate(tmp_path)
    assert report.ok
    assert report.problems == ()

"""A process that is killed while it writes a golden leaves the old one or the new one, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specalign.golden.catalog import leftovers, remove
from specalign.golden.dumps import open_golden_dump
from specalign.golden.files import read_golden
from tests.unit.golden.made import place

WRITER = """
import itertools, sys
from pathlib import Path

import numpy

from specalign.dump.opening import open_dump
from specalign.golden.dumps import write_dump
from tests.unit.golden.made import CPU, KEY, place, written
from tests.unit.golden.test_dumps import dump

folder = Path(sys.argv[1])
sources = [open_dump(dump(folder / name, seed=seed)) for seed, name in ((0, "a"), (100, "b"))]
for number in itertools.count():
    if sys.argv[2] == "dump":
        write_dump(place(folder / "g"), KEY, CPU, sources[number % 2], fingerprint=False)
    else:
        written(folder / "g", numpy.full((256, 256), number % 2))
    print(number, flush=True)
"""


@pytest.mark.parametrize("form", ["values", "dump"])
@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_the_golden_is_whole(tmp_path: Path, form: str, after: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise RuntimeError("no output")
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)  # somewhere in the next write
    found = place(tmp_path / "g").found()
    if found is None:
        raise AssertionError("no golden is left")
    golden = read_golden(found)
    if form == "dump":
        assert len(open_golden_dump(golden).infos()) == 2
    else:
        assert golden.damaged() == ()
        assert len(np.unique(golden.data["tensor"])) == 1
    remove(leftovers(tmp_path))
    names = {path.name for path in (tmp_path / "g").iterdir()}
    assert names == {found.name} | ({golden.document.folder} if form == "dump" else set())

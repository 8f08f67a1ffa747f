"""Leases import the standard library and nothing else; torch and NVML come when they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
before = set(sys.modules)
import specalign.leases
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(added - {"specalign"} - set(sys.stdlib_module_names)))
"""


def test_leases_import_the_standard_library_only() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "impl")}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"

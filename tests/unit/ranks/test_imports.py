"""Asking for ranks imports the standard library and nothing else; torch comes in the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
before = set(sys.modules)
import specalign.ranks{more}
added = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(added - {{"specalign"}} - set(sys.stdlib_module_names)))
"""


@pytest.mark.parametrize("more", ["", ".warden", ".child"])
def test_ranks_import_the_standard_library_only(more: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "impl")}
    program = PROGRAM.format(more=more)
    ran = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"

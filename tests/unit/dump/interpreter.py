"""Runs the functions `interpreted_…` of a test file in a process of their own, in Triton's interpreter.

TRITON_INTERPRET must be set before triton is imported and changes it for good.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run_interpreted(file: Path, *, at_least: int) -> None:
    """Fail unless more than `at_least` of them pass; skip, with a reason, where triton is missing and was not asked for."""
    if find_spec("triton") is None:
        if os.environ.get("SPECALIGN_TRITON") == "1":
            pytest.fail(
                "SPECALIGN_TRITON=1 asks for the Triton kernels, and triton is not installed: pip install triton", pytrace=False
            )
        command = f"SPECALIGN_TRITON=1 python -m pytest {file.relative_to(ROOT)}"
        pytest.skip(f"the Triton kernel was NOT run: triton is not installed. pip install triton, then {command}")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command_line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_functions=interpreted_*",
        str(file),
    ]
    done = subprocess.run(
        command_line, cwd=ROOT, env=kept | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (ran := re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)), done.stdout
    assert int(ran[1]) > at_least, done.stdout

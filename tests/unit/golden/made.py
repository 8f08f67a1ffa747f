"""Small goldens for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specalign.golden.check import GoldenReport, Nonfinite, check_tensors, read_result
from specalign.golden.document import Form
from specalign.golden.environment import Environment
from specalign.golden.files import Golden, Place, read_golden, write_golden
from specalign.golden.keys import Key

KEY = Key("test_router.py", "TestRouter", "test_scores", "4-8", "scores")
CPU = Environment("cpu", "cpu", {"numpy": "2.0"})


def place(folder: Path, key: Key = KEY, arch: str = "cpu") -> Place:
    return Place(folder, key.stem, arch)


def written(folder: Path, tensors: Any, form: Form = "values", key: Key = KEY, environment: Environment = CPU) -> Golden:
    """A golden that was written and opened again."""
    leaves = read_result(key.name, tensors, "all")
    return read_golden(write_golden(place(folder, key, environment.arch), key, environment, leaves, form))


def checked(golden: Golden, tensors: Any, mode: Any = None, nonfinite: Nonfinite | None = None) -> GoldenReport:
    """A result held against it, on the CPU."""
    from specalign.compare.modes import BITS

    return check_tensors(golden, read_result(golden.document.key.name, tensors, nonfinite), CPU, mode or BITS, nonfinite)


def tree() -> dict[str, Any]:
    """Tensors of several types and shapes, a view with odd strides and a single number among them."""
    return {
        "h": [np.arange(24, dtype="f4").reshape(2, 3, 4), np.arange(12, dtype="f2").reshape(3, 4).T],
        "ids": np.arange(5, dtype="i8") - 2,
        "mask": np.array([True, False, True]),
        "loss": np.float64(-0.0),
    }

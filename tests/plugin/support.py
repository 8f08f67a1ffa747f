"""How these tests start pytest in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_XDIST = ("-p", "no:xdist", "-p", "no:xdist.looponfail")

WORKERS = [
    pytest.param(WITHOUT_XDIST, id="one process"),
    pytest.param(
        ("-n2",),
        id="xdist",
        marks=pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"),
    ),
]

BLOCKER = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (hidden by the test)", name=name)


sys.meta_path.insert(0, Blocker())
"""


def is_installed() -> bool:
    """Whether an installed distribution, editable or from a wheel, names the entry point."""
    return any(entry.value == "specalign" for entry in importlib.metadata.entry_points(group="pytest11", name="specalign"))


STRANGERS = ("-p", "no:anyio", "-p", "no:hypothesispytest")
"""Plugins that happen to be installed here, and take longer to import than all the rest of a run of one small test."""


@dataclasses.dataclass
class Run:
    """Starts pytest in a subprocess, in pytester's folder, in an environment that names none of our variables.

    `always` comes before the arguments of each run.
    """

    pytester: pytest.Pytester
    monkeypatch: pytest.MonkeyPatch
    path: list[str]
    always: tuple[str, ...] = STRANGERS

    def __call__(self, *args: str, **env: str) -> pytest.RunResult:
        for name, value in env.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join(self.path))
        result = self.pytester.runpytest_subprocess(*self.always, *args)
        for name in env:
            self.monkeypatch.delenv(name)
        return result

    def hide(self, *names: str) -> None:
        """Make imports of these packages fail in the subprocess, as if they were not installed."""
        folder = self.pytester.mkdir("hidden")
        (folder / "sitecustomize.py").write_text(BLOCKER.format(hidden=set(names)))
        self.path = [str(folder), *self.path]


Configure = Callable[..., pytest.Config]


def section(result: pytest.RunResult) -> list[str]:
    """The lines of the plugin's own section of the summary; empty where there is none."""
    begins = [number for number, line in enumerate(result.outlines) if re.fullmatch(r"=+ specalign =+", line)]
    assert len(begins) <= 1, "the section is printed more than once"
    rest = result.outlines[begins[0] + 1 :] if begins else []
    ends = [number for number, line in enumerate(rest) if re.match(r"[=!]{3,} ", line)]
    return rest[: ends[0]] if ends else rest


def failing(result: pytest.RunResult) -> dict[str, list[str]]:
    """Headline of what fails the run → what is named under it."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in section(result):
        if line.startswith("FAILED: "):
            name = line.removeprefix("FAILED: ").removesuffix(":")
            found[name] = []
        elif not line.startswith("  "):
            name = ""
        elif name and not line.startswith("  next: "):
            found[name].append(line.strip())
    return found


Gpus = Callable[..., Path]

DISCOVER = """
from specalign.leases import Device

def pytest_specalign_discover_devices(config):
    return [Device(f"GPU-{i}", i, "made up", (9, 0), 2**37, 2**37) for i in range(COUNT)]
"""

FAKE_TORCH = """
import gc, sys, types
state = types.SimpleNamespace(bytes=0, emptied=0)
cuda = types.SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1, memory_allocated=lambda number: state.bytes,
    empty_cache=lambda: setattr(state, "emptied", state.emptied + 1),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(), state=state)
"""

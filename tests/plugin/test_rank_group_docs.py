"""The examples of docs/ranks.md: the one for the CPU runs, the one for GPUs says which lease it needs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.plugin.support import ROOT, WITHOUT_XDIST, Run


def test_the_examples_work(run: Run, pytester: pytest.Pytester) -> None:
    cpu, gpus = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "ranks.md").read_text("utf-8"), flags=re.DOTALL)
    pytester.makepyfile(test_cpu=cpu, test_gpus=gpus)
    run("-p", "specalign", *WITHOUT_XDIST, "test_cpu.py").assert_outcomes(passed=1)
    pytester.makeconftest("def pytest_specalign_discover_devices(config):\n    return []\n")
    run("-p", "specalign", *WITHOUT_XDIST, "test_gpus.py", SPECALIGN_LOCK_DIR=str(pytester.path)).assert_outcomes(skipped=1)

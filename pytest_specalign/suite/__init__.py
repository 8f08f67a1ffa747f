"""Tests that run on a user's own files: `pytest -p specalign --pyargs pytest_specalign.suite.pair --specalign-draft=D …`."""

from __future__ import annotations

from pathlib import Path

import pytest


def make_module(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The collector for a module of this package, with the node id `pytest_specalign/suite/pair.py`; None for any other module.

    pytest names a module that `--pyargs` found outside rootdir by a path relative to itself, which is empty: JUnit then has no
    class name, and two suites in one run cannot be told apart.
    """
    folder = Path(__file__).parent
    if module_path.parent != folder:
        return None
    return pytest.Module.from_parent(parent, path=module_path, nodeid=f"pytest_specalign/suite/{module_path.name}")

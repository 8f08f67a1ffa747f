"""SGLang's own model code under test. Its tests need an environment of their own, which `make conformance` makes.

Where SGLang is not installed nothing here is collected, and the end of the run says so. `make conformance` fails in that case,
because pytest does when it collects nothing.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def installed() -> bool:
    """By its metadata: a folder called sglang on the path, like this one, would count as importable."""
    try:
        importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


collect_ignore_glob = [] if installed() else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not installed():
        where = HERE.relative_to(terminalreporter.config.rootpath)
        terminalreporter.write_line(f"{where} was NOT run: SGLang is not installed here. make conformance runs it.", yellow=True)

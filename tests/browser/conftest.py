"""Browser tests run when they are asked for: `make browser-test`, or this folder on the command line.

They need a Chromium (`get_chromium.sh` finds or installs one). Where they were asked for and there is none, they fail; where
they were not asked for they are deselected, and the summary says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specalign.compare.report import write_html
from tests.browser.devtools import Browser
from tests.unit.compare.report import made

HERE = Path(__file__).parent
SCREENSHOTS = HERE.parents[1] / "build" / "screenshots"

REPORTS = {
    "equal": made.equal_report,
    "different": made.different_report,
    "unproven": made.unproven_report,
    "fingerprint": made.fingerprint_report,
    "hostile": made.hostile_report,
    "big": made.big_report,
}
_left_out = pytest.StashKey[int]()


def _asked_for(config: pytest.Config) -> bool:
    paths = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return any(path == HERE or HERE in path.parents for path in paths)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _asked_for(config):
        return
    ours = [item for item in items if HERE in item.path.parents]
    config.stash[_left_out] = len(ours)
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if HERE not in item.path.parents]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            "Browser tests were NOT run: nobody asked for them. make browser-test does; it needs a Chromium."
        )


def _executable() -> str:
    names = (os.environ.get("CHROMIUM"), "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"no Chromium: run {HERE / 'get_chromium.sh'} first, or set CHROMIUM to its path", pytrace=False)
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = _executable()
    version = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True, timeout=60)
    print(version.stdout)
    with Browser(executable) as started:
        yield started


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The made reports as files."""
    folder = tmp_path_factory.mktemp("pages")
    for name, make in REPORTS.items():
        write_html(make(), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in REPORTS}

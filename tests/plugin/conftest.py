"""Fixtures that put the plugin where an installation would put it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.plugin.support import DISCOVER, ROOT, Configure, Gpus, Run, is_installed


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What PYTHONPATH must name for an installation: nothing where there is one, else the sources and a made-up dist-info."""
    if is_installed():
        return []
    made = tmp_path_factory.mktemp("site")
    info = made / "pytest_specalign-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-specalign\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nspecalign = specalign\n")
    return [str(made), str(ROOT / "impl"), str(ROOT)]


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SPECALIGN_", "PYTEST_XDIST_", "CUDA_", "GITHUB_")) or name in {
            "CI",
            "PYTEST_PLUGINS",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        }:
            monkeypatch.delenv(name)


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    clean_env: None,
    plugin_path: list[str],
) -> Run:
    if request.module.__name__.endswith("_contract"):  # users of hypothesis have its plugin
        return Run(pytester, monkeypatch, plugin_path, always=())
    return Run(pytester, monkeypatch, plugin_path)


@pytest.fixture
def configure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, clean_env: None) -> Configure:
    """Makes a config with the plugin in this process: quick, for tests about values."""
    from pytest_specalign import leases, plugin, record

    monkeypatch.setattr(leases, "take_session_lease", lambda config: None)  # values, not GPUs
    monkeypatch.setattr(record, "open_record", lambda config: None)  # nor files
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.plugins = [plugin]
    return pytester.parseconfigure


@pytest.fixture
def gpus(pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """`gpus(2)`: a machine with two. Returns its lock folder, whose variable wakes the plugin."""
    monkeypatch.setenv("SPECALIGN_LOCK_DIR", str(pytester.path / "locks"))

    def make(count: int, more: str = "") -> Path:
        pytester.makepyfile(made_up=DISCOVER.replace("COUNT", str(count)))
        pytester.makeconftest("from made_up import *\n" + more)
        run.path = [*run.path, str(pytester.path)]
        return pytester.path / "locks"

    return make

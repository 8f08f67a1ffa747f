"""Every way of loading the plugin works, registers it once, and imports nothing heavy."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.plugin.support import ROOT, WITHOUT_XDIST, WORKERS, Run

REGISTERED_ONCE = """
import sys


def test_registered_once(pytestconfig):
    plugin = sys.modules["pytest_specalign.plugin"]
    names = [name for name, registered in pytestconfig.pluginmanager.list_name_plugin() if registered is plugin]
    assert names == ["pytest_specalign.plugin"]
    assert plugin.__name__ == "pytest_specalign.plugin"


def test_options_and_markers_are_there(pytestconfig):
    assert pytestconfig.getoption("specalign_draft") is None
    assert pytestconfig.getini("specalign_engine") is None
    assert sum(line.startswith("gpu(") for line in pytestconfig.getini("markers")) == 1
"""

FROM_HERE = """

def test_from_here(pytestconfig):
    assert sys.modules["pytest_specalign.plugin"].__file__.startswith(str(pytestconfig.rootpath))
"""

WITHOUT_AUTOLOAD = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CONFTEST = 'pytest_plugins = ["{}"]'

WAYS = {
    "autoload": ([], {}, ""),
    "-p specalign": (["-p", "specalign"], {}, ""),
    "-p pytest_specalign.plugin": (["-p", "pytest_specalign.plugin"], {}, ""),
    "both -p": (["-p", "specalign", "-p", "pytest_specalign.plugin"], {}, ""),
    "both -p, the other way round": (["-p", "pytest_specalign.plugin", "-p", "specalign"], {}, ""),
    "conftest specalign": ([], {}, CONFTEST.format("specalign")),
    "conftest pytest_specalign.plugin": ([], {}, CONFTEST.format("pytest_specalign.plugin")),
    "conftest alone": ([], WITHOUT_AUTOLOAD, CONFTEST.format("specalign")),
    "-p specalign alone": (["-p", "specalign"], WITHOUT_AUTOLOAD, ""),
    "-p pytest_specalign.plugin alone": (["-p", "pytest_specalign.plugin"], WITHOUT_AUTOLOAD, ""),
    "-p and conftest alone": (["-p", "specalign"], WITHOUT_AUTOLOAD, CONFTEST.format("pytest_specalign.plugin")),
    "PYTEST_ADDOPTS alone": ([], WITHOUT_AUTOLOAD | {"PYTEST_ADDOPTS": "-p specalign"}, ""),
    "PYTEST_PLUGINS alone": ([], WITHOUT_AUTOLOAD | {"PYTEST_PLUGINS": "specalign"}, ""),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_loading_registers_once(run: Run, pytester: pytest.Pytester, way: str, workers: tuple[str, ...]) -> None:
    args, env, conftest = WAYS[way]
    pytester.makepyfile(REGISTERED_ONCE)
    pytester.makeconftest(conftest)
    if env and workers == ("-n2",):
        args = ["-p", "xdist", *args]
    elif env:
        workers = ()
    run("-Werror", "--strict-config", *args, *workers, **env).assert_outcomes(passed=2)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ["specalign", "pytest_specalign.plugin"])
def test_a_bare_checkout_needs_no_installation(run: Run, pytester: pytest.Pytester, name: str, workers: tuple[str, ...]) -> None:
    for package in ("pytest_specalign", "impl/specalign"):
        source = next(path for path in (ROOT / package, _installed(package)) if path.is_dir())
        shutil.copytree(source, pytester.path / package, ignore=shutil.ignore_patterns("__pycache__"))
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npythonpath = ["impl", "."]\n')
    pytester.makepyfile(REGISTERED_ONCE + FROM_HERE)
    run.path = []
    loaded = ("-p", "xdist", *workers) if workers == ("-n2",) else ()
    run("-Werror", "-p", name, *loaded, **WITHOUT_AUTOLOAD).assert_outcomes(passed=3)


def _installed(package: str) -> Path:
    return Path(next(iter(importlib.import_module(package.rpartition("/")[2]).__path__)))


@pytest.mark.parametrize("way", ["autoload", "-p specalign", "-p pytest_specalign.plugin", "conftest specalign"])
def test_loads_where_no_optional_package_is_installed(run: Run, pytester: pytest.Pytester, way: str) -> None:
    run.hide("hypothesis", "torch", "xdist", "jinja2", "transformers", "triton", "rich")
    args, _, conftest = WAYS[way]
    pytester.makepyfile(REGISTERED_ONCE)
    pytester.makeconftest(conftest)
    run("-Werror", "-p", "no:hypothesispytest", *WITHOUT_XDIST, *args).assert_outcomes(passed=2)


@pytest.mark.parametrize("hidden", ["hypothesis", "torch"])
@pytest.mark.parametrize("workers", WORKERS)
def test_loads_without_hypothesis_and_without_torch(
    run: Run, pytester: pytest.Pytester, hidden: str, workers: tuple[str, ...]
) -> None:
    run.hide(hidden)
    pytester.makepyfile(REGISTERED_ONCE)
    run("-Werror", "-p", "no:hypothesispytest", "-p", "specalign", *workers).assert_outcomes(passed=2)


def test_p_no_specalign_turns_the_entry_point_off(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile('import sys\n\ndef test_off():\n    assert "pytest_specalign.plugin" not in sys.modules\n')
    run("-p", "no:specalign").assert_outcomes(passed=1)


HEAVY = {"torch", "numpy", "jinja2", "hypothesis", "filelock", "tomllib", "safetensors", "rich", "triton", "transformers"}

DUMP_MODULES = """
import json, sys


def pytest_unconfigure(config):
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""


def _modules(run: Run, pytester: pytest.Pytester, *args: str) -> set[str]:
    pytester.makeconftest(DUMP_MODULES)
    pytester.makepyfile("def test_nothing():\n    pass\n")
    run("-p", "no:hypothesispytest", *WITHOUT_XDIST, *args).assert_outcomes(passed=1)
    return set(json.loads((pytester.path / "modules.json").read_text()))


@pytest.mark.parametrize("args", [(), ("-p", "specalign"), ("-p", "specalign", "--specalign-engine=sglang")], ids=" ".join)
def test_start_imports_ourselves_and_small_parts_of_the_standard_library_only(
    run: Run, pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    added = _modules(run, pytester, *args) - _modules(run, pytester, "-p", "no:specalign")
    assert "pytest_specalign.plugin" in added
    assert not {name.partition(".")[0] for name in added} & HEAVY
    assert {name.partition(".")[0] for name in added} <= {"specalign", "pytest_specalign"} | set(sys.stdlib_module_names)
    assert not {name for name in added if name.startswith("specalign.")}, "the plugin starts without a room of the library"

"""GPU tests that never became reports: taken out of the run, in a module that is skipped as a whole, or swallowed by a plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specalign.gpu_sources import names_gpu_tests
from tests.plugin.support import WITHOUT_XDIST, WORKERS, Gpus, Run, failing, section

THREE = """
import pytest

@pytest.mark.gpu
def test_one(): pass

@pytest.mark.gpu
def test_two(): pass

def test_cpu(): pass
"""

REQUIRE = "--specalign-gpu-policy=require"
TAKEN_OUT = "GPU tests were taken out of the run, and no option asked for that"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("args", [("-k", "not two"), ("--deselect=test_it.py::test_two",)], ids=["-k", "--deselect"])
def test_what_an_option_deselects_is_stated_and_fails_nothing(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, args: tuple[str, ...], workers: tuple[str, ...]
) -> None:
    gpus(1)
    pytester.makepyfile(test_it=THREE)
    result = run(REQUIRE, *args, *workers)
    assert result.ret == pytest.ExitCode.OK
    assert "gpu: 1 run, 0 not run, 1 deselected by options" in section(result)


DROPS = {
    "in silence": ("", "a plugin or conftest that did not call pytest_deselected"),
    "with a word": ("config.hook.pytest_deselected(items=[item for item in items if 'two' in item.name])", "conftest.py"),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("way", DROPS)
def test_what_a_conftest_takes_out_fails_the_run_by_name(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, way: str, workers: tuple[str, ...]
) -> None:
    more, who = DROPS[way]
    gpus(1, "def pytest_collection_modifyitems(config, items):\n    " + (more or "pass"))
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + "\n    items[:] = [item for item in items if 'two' not in item.name]\n")
    pytester.makepyfile(test_it=THREE)
    result = run(REQUIRE, *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failing(result) == {TAKEN_OUT: [f"test_it.py::test_two: taken out by {who}"]}
    assert f"  1 not run: taken out by {who}" in section(result)


def test_a_shard_is_somebodys_wish(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(
        1,
        "def pytest_addoption(parser):\n    parser.addoption('--splits', dest='splits', type=int)\n"
        "def pytest_collection_modifyitems(config, items):\n    items[:] = items[::2]\n",
    )
    pytester.makepyfile(test_it=THREE)
    result = run(REQUIRE, "--splits=2", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert "gpu: 1 run, 0 not run, 1 deselected by options" in section(result)


def test_a_mark_that_a_conftest_adds_counts(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(
        1,
        "import pytest\ndef pytest_collection_modifyitems(items):\n    for item in items: item.add_marker(pytest.mark.gpu)\n",
    )
    pytester.makepyfile(test_it="import pytest\ndef test_it(): pytest.skip('why')\ndef test_ran(): pass\n")
    result = run(REQUIRE, *WITHOUT_XDIST)
    assert failing(result) == {"GPU tests did not run": ["test_it.py::test_it: why"]}


MODULES = {
    "test_import": 'import pytest\nengine = pytest.importorskip("no_such_engine")\n@pytest.mark.gpu\ndef test_it(): pass\n',
    "test_level": 'import pytest\npytest.skip("not here", allow_module_level=True)\ndef test_it(gpu_lease): pass\n',
    "test_other": 'import pytest\npytest.skip("not here", allow_module_level=True)\ndef test_it(): pass\n',
    "test_ran": "import pytest\npytestmark = pytest.mark.gpu\ndef test_it(): pass\n",
}


@pytest.mark.parametrize("workers", WORKERS)
def test_a_skipped_module_that_holds_gpu_tests_fails_the_run_by_name(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    gpus(1)
    pytester.makepyfile(**MODULES)
    result = run(REQUIRE, *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    named = failing(result)["modules that hold GPU tests were skipped as a whole"]
    assert [line.split(": ")[0] for line in named] == ["test_import.py", "test_level.py"]
    assert named[0].startswith("test_import.py: could not import 'no_such_engine'")
    assert "gpu: 1 run, 2 not run" in section(result)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@pytest.mark.gpu\ndef test(): ...", True),
        ("@pytest.mark.gpu(count=2)\ndef test(): ...", True),
        ("@mark.gpu\ndef test(): ...", True),
        ("def test(specalign_device): ...", True),
        ("@pytest.mark.usefixtures('module_gpu_lease')\ndef test(): ...", True),
        ("def test(*, gpu_lease): ...", True),
        ("def test(): return args.gpu", False),
        ("# pytest.mark.gpu\ndef test(): ...", False),
        ("def test(): return 'a gpu_lease'", False),
        ("def broken(:", True),
        ("", False),
    ],
)
def test_what_a_source_says_about_gpus(tmp_path: Path, source: str, expected: bool) -> None:
    (tmp_path / "test_it.py").write_text(source)
    assert names_gpu_tests(tmp_path / "test_it.py") is expected


def test_a_source_that_cannot_be_read_counts_as_gpu_tests(tmp_path: Path) -> None:
    assert names_gpu_tests(tmp_path / "none.py") is True


def test_a_test_without_a_report_fails_the_run_by_name(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1, "def pytest_runtest_protocol(item):\n    return True if 'two' in item.name else None\n")
    pytester.makepyfile(test_it=THREE)
    result = run(REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failing(result) == {"GPU tests were to run, and no report of them came": ["test_it.py::test_two: no report came"]}

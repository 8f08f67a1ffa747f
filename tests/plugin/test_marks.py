"""The markers are known everywhere; where the plugin was asked for, a bad argument fails at collection with its reason."""

from __future__ import annotations

import re

import pytest

from pytest_specalign.marks import BitwiseMark, GpuMark, read_mark
from tests.plugin.support import WORKERS, Run


def _mark(name: str, *args: object, **kwargs: object) -> pytest.Mark:
    """A mark without `pytest.mark`, which knows the names only where the plugin is loaded."""
    return pytest.Mark(name, args, kwargs, _ispytest=True)


@pytest.mark.parametrize(
    ("mark", "meaning"),
    [
        (_mark("gpu"), GpuMark(1, None, None)),
        (_mark("gpu", 2), GpuMark(2, None, None)),
        (_mark("gpu", count=4, capability=(9, 0), memory="40GiB"), GpuMark(4, (9, 0), "40GiB")),
        (_mark("gpu", memory="512 MiB"), GpuMark(1, None, "512 MiB")),
        (_mark("gpu", memory="1.5TiB"), GpuMark(1, None, "1.5TiB")),
        (_mark("bitwise"), BitwiseMark(2)),
        (_mark("bitwise", 5), BitwiseMark(5)),
        (_mark("bitwise", runs=3), BitwiseMark(3)),
    ],
)
def test_good_marks(mark: pytest.Mark, meaning: object) -> None:
    assert read_mark(mark) == meaning


BAD = {
    "gpu(count=0)": "count is 0: give a whole number of at least 1",
    "gpu(-1)": "count is -1: give a whole number of at least 1",
    "gpu(count=1.5)": "count is 1.5: give a whole number of at least 1",
    "gpu(count=True)": "count is True: give a whole number of at least 1",
    "gpu(count=None)": "count is None: give a whole number of at least 1",
    "gpu(capability='9.0')": "capability is '9.0': give two whole numbers, (major, minor), like (9, 0)",
    "gpu(capability=(9,))": "capability is (9,): give two whole numbers, (major, minor), like (9, 0)",
    "gpu(capability=(9, -1))": "capability is (9, -1): give two whole numbers, (major, minor), like (9, 0)",
    "gpu(capability=9)": "capability is 9: give two whole numbers, (major, minor), like (9, 0)",
    "gpu(memory=40)": 'memory is 40: give a size like "40GiB" (MiB, GiB or TiB)',
    "gpu(memory='40GB')": "memory is '40GB': give a size like \"40GiB\" (MiB, GiB or TiB)",
    "gpu(memory='0GiB')": "memory is '0GiB': give a size like \"40GiB\" (MiB, GiB or TiB)",
    "gpu(gpus=2)": "got an unexpected keyword argument 'gpus'",
    "gpu(1, (9, 0), '1GiB', 4)": "takes from 1 to 4 positional arguments but 5 were given",
    "bitwise(runs=1)": "runs is 1: give a whole number of at least 2",
    "bitwise(runs='2')": "runs is '2': give a whole number of at least 2",
    "bitwise(times=2)": "got an unexpected keyword argument 'times'",
}


@pytest.mark.parametrize("spelled", BAD)
def test_bad_marks_say_what_would_be_valid(spelled: str) -> None:
    name, _, arguments = spelled.partition("(")
    mark = eval(f"_mark({name!r}, {arguments}")
    with pytest.raises(ValueError, match=re.escape(BAD[spelled]) + "$"):
        read_mark(mark)


PLACES = {
    "function": "@pytest.mark.gpu(count=0)\ndef test_it(): pass",
    "class": "@pytest.mark.gpu(count=0)\nclass TestIt:\n    def test_it(self): pass",
    "module": "pytestmark = pytest.mark.gpu(count=0)\ndef test_it(): pass",
    "param": "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.gpu(count=0))])\ndef test_it(x): pass",
    "unittest": "class TestIt(unittest.TestCase):\n    @pytest.mark.gpu(count=0)\n    def test_it(self): pass",
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_mark_fails_collection_wherever_it_stands(
    run: Run, pytester: pytest.Pytester, place: str, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_bad=f"import pytest, unittest\n\n{PLACES[place]}\n", test_good="def test_good(): pass\n")
    result = run("-p", "specalign", *workers)
    result.assert_outcomes(errors=1, passed=int(workers == ("-n2",)))  # after such an error pytest stops, xdist goes on
    result.stdout.fnmatch_lines(["test_bad.py::*test_it*: bad mark @pytest.mark.gpu(count=0): count is 0: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*Traceback*")
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)


def test_every_bad_mark_of_a_test_is_named(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.gpu(0)\n@pytest.mark.bitwise(1)\n@pytest.mark.gpu(-2)\ndef test_it(): pass\n"
    )
    lines = run("-p", "specalign").stdout.str()
    assert all(f"bad mark @pytest.mark.{spelled}: " in lines for spelled in ("gpu(0)", "gpu(-2)", "bitwise(1)"))


DISCOVER = """
import pytest
from specalign.leases import Device

def pytest_specalign_discover_devices():
    return [Device(f"GPU-{i}", i, "made up", (9, 0), 2**37, 2**37) for i in range(2)]
"""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
def test_strict_markers_knows_them_and_the_tests_run(
    run: Run, pytester: pytest.Pytester, asked: tuple[str, ...], workers: tuple[str, ...]
) -> None:
    pytester.makeini(f"[pytest]\nspecalign_lock_dir = {pytester.path / 'locks'}\n" if asked else "[pytest]\n")
    pytester.makeconftest(DISCOVER)
    marks = "@pytest.mark.gpu(count=2, capability=(9, 0), memory='40GiB')\n@pytest.mark.bitwise\n"
    test = "def test_it(bitwise): bitwise.observe('a', numpy.ones(1))\n"
    pytester.makepyfile(f"import numpy, pytest\n\n{marks}{test}")
    run("-Werror", "--strict-markers", *asked, *workers).assert_outcomes(passed=1)


def test_markers_says_what_they_do(run: Run) -> None:
    result = run("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gpu(count=1, capability=None, memory=None): *runs under a lease*"])
    result.stdout.fnmatch_lines(["@pytest.mark.bitwise(runs=2): *must have the same bits each time*"])

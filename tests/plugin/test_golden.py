"""The fixture golden: what is written where, what passes, what fails, under each --specalign-golden."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import safetensors.numpy

from tests.plugin.support import Run

TESTS = """
import numpy
import pytest

from values import VALUES


@pytest.mark.parametrize("scale", ["a-b", "b-a"])
def test_f(golden, scale):
    golden.check("h", tensors=VALUES[scale])
    golden.check("tree", tensors={"x": [VALUES[scale], VALUES["n"]]})


class TestA:
    def test_m(self, specalign_golden):
        specalign_golden.check(tensors=VALUES["n"])
"""

VALUES = """
import numpy

VALUES = {"a-b": numpy.arange(4, dtype="f4"), "b-a": numpy.arange(4, dtype="f4") + 4, "n": numpy.float64(A)}
"""

NAMES = [
    "test_it.py~TestA~test_m.cpu.safetensors",
    "test_it.py~~test_f~a-b~h.cpu.safetensors",
    "test_it.py~~test_f~a-b~tree.cpu.safetensors",
    "test_it.py~~test_f~b-a~h.cpu.safetensors",
    "test_it.py~~test_f~b-a~tree.cpu.safetensors",
]


def values(pytester: pytest.Pytester, n: str) -> None:
    pytester.makepyfile(values=VALUES.replace("A)", f"{n})"))


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    """Three tests below rootdir, in a folder of their own."""
    values(pytester, "1.0")
    pytester.makeini("[pytest]\npythonpath = .\n")
    folder = pytester.mkdir("sub")
    (folder / "test_it.py").write_text(TESTS)
    return folder


def test_new_writes_what_is_missing_beside_the_test_and_check_reads_it(run: Run, suite: Path) -> None:
    missing = run()
    missing.assert_outcomes(failed=3)
    missing.stdout.fnmatch_lines(["*there is no golden for cpu*", "*next: write it with --specalign-golden=new*"])
    assert not (suite / "__golden__").exists()
    run("--specalign-golden=new").assert_outcomes(passed=3)
    assert sorted(path.name for path in (suite / "__golden__").iterdir()) == NAMES
    written = safetensors.numpy.load_file(suite / "__golden__" / NAMES[3])
    assert written["tensor"].tolist() == [4, 5, 6, 7]
    run("-Werror").assert_outcomes(passed=3)


def test_new_leaves_a_golden_as_it_is_and_update_replaces_it(run: Run, suite: Path, pytester: pytest.Pytester) -> None:
    run("--specalign-golden=new").assert_outcomes(passed=3)
    before = {path.name: path.read_bytes() for path in (suite / "__golden__").iterdir()}
    values(pytester, "2.0")
    for mode in ("check", "new"):
        run(f"--specalign-golden={mode}").assert_outcomes(failed=3)
    assert {path.name: path.read_bytes() for path in (suite / "__golden__").iterdir()} == before
    result = run("--specalign-golden=update")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["sub/test_it.py::TestA::test_m (cpu) updated: different, at most 4503599627370496 ulp"])
    run().assert_outcomes(passed=3)
    after = {path.name: path.read_bytes() for path in (suite / "__golden__").iterdir()}
    assert {name for name in NAMES if after[name] != before[name]} == {NAMES[0], NAMES[2], NAMES[4]}  # h did not change


def test_a_failure_says_where_and_by_how_much(run: Run, suite: Path, pytester: pytest.Pytester) -> None:
    run("--specalign-golden=new")
    values(pytester, "numpy.nextafter(1.0, 2)")
    result = run("-k", "test_m", "--junit-xml=junit.xml")
    result.stdout.fnmatch_lines(
        [
            ">*specalign_golden.check(tensors=VALUES*",
            "E*golden test_it.py::TestA::test_m: different, at most 1 ulp",
            "E*first at []: 0x3ff0000000000000 (1.0) in the golden, 0x3ff0000000000001 (1.0000000000000002) in the result*",
            "E*golden: */sub/__golden__/test_it.py~TestA~test_m.cpu.safetensors",
        ]
    )
    told = properties(pytester.path / "junit.xml")
    assert told["specalign_golden_result"] == "different, at most 1 ulp"
    noted = json.loads(told["specalign_comparison"])
    assert (noted["kind"], noted["name"], noted["verdict"], noted["unit"]) == ("golden", "result", "different", "tensors")
    assert (noted["compared"], noted["differing"]) == (1, 1)
    assert "first at []: 0x3ff0000000000000 (1.0) in the golden" in noted["first"]


def test_goldens_that_agree_are_comparisons_of_the_run(run: Run, suite: Path, pytester: pytest.Pytester) -> None:
    run("--specalign-golden=new")
    run("-k", "test_m", "--junit-xml=junit.xml").assert_outcomes(passed=1, deselected=2)
    noted = json.loads(properties(pytester.path / "junit.xml")["specalign_comparison"])
    assert (noted["verdict"], noted["compared"], noted["differing"], noted["first"]) == ("equal", 1, 0, "")


def properties(file: Path) -> dict[str, str]:
    """The properties of the only test of a JUnit file."""
    (case,) = ElementTree.parse(file).getroot().iter("testcase")  # pytest's own file
    return {found.get("name") or "": found.get("value") or "" for found in case.iter("property")}


def test_a_tolerance_is_asked_for_by_name(run: Run, pytester: pytest.Pytester) -> None:
    test = "import numpy\n\ndef test_f(golden):\n    golden.check(tensors=numpy.float64({}), mode={!r})\n"
    path = pytester.makepyfile(test_tolerance=test.format("1.0", "bits"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    for value, mode, outcome in (("1.001", "abs:0.01", "passed"), ("1.1", "abs:0.01", "failed"), ("1.0", "about", "failed")):
        path.write_text(test.format(value, mode))
        run().assert_outcomes(**{outcome: 1})
    path.write_text(test.format("1.001", "abs:0.01"))
    before = next((pytester.path / "__golden__").iterdir()).read_bytes()
    run("--specalign-golden=update").assert_outcomes(passed=1)
    assert next((pytester.path / "__golden__").iterdir()).read_bytes() == before  # it agrees, so there is nothing to update


REFUSED = {
    "golden.check()": "give either tensors=",
    "golden.check(tensors=None)": "give either tensors=",
    "golden.check(tensors=x, dump='d')": "give either tensors=",
    "golden.check(tensors=[])": "holds no tensor",
    "golden.check(tensors=1.5)": "only torch tensors and numpy arrays",
    "golden.check(name=3, tensors=x)": "the name of a golden is 3",
    "golden.check('a\\x1b[m', tensors=x)": "the name of a golden is 'a*x1b[m': give a text without control characters",
    "golden.check('a\\udcff', tensors=x)": "the name of a golden is 'a*udcff': give a text without control characters",
    "golden.check(tensors=x, keep='zip')": "keep is 'zip'",
    "golden.check(tensors=x, keep='fingerprint', mode='ulp:1')": "fingerprints tell equal bits from others",
    "golden.check(tensors=x, arch='H100!')": "arch is 'H100!'",
    "golden.check(tensors=x, keep='external')": "nothing says which: implement pytest_specalign_golden_store",
    "golden.check(tensors=x * numpy.nan)": "non-finite values",
    "golden.check(tensors=x, allow_nonfinite='some')": "allow_nonfinite is 'some'",
    "golden.check(tensors=x); golden.check(tensors=x)": "the name '' was used before in this test",
    "golden.check('a', tensors=x); golden.check('A', tensors=x)": "the name 'A' differs from 'a' in capitals alone",
    "assert x == golden('a'); assert x == golden('a')": "the name 'a' was used before in this test",
    "pass": "the test passed and compared nothing with a golden",
    "golden('a')": "the test passed and compared nothing with a golden",
}


def test_what_proves_nothing_fails(run: Run, pytester: pytest.Pytester) -> None:
    lines = ["import numpy", "x = numpy.ones(3)"]
    lines += [f"def test_{number}(golden):\n    {body}" for number, body in enumerate(REFUSED)]
    pytester.makepyfile("\n".join(lines))
    result = run("--specalign-golden=new", "-rA")
    result.assert_outcomes(failed=len(REFUSED) - 2, passed=2, errors=2)  # the last two fail when their fixture ends
    for reason in REFUSED.values():
        result.stdout.fnmatch_lines([f"*{reason.replace('[', '[[]')}*"])


def test_a_golden_of_another_architecture_is_refused_by_name(run: Run, pytester: pytest.Pytester) -> None:
    test = "import numpy\n\ndef test_f(golden):\n    golden.check(tensors=numpy.ones(3), arch={!r})\n"
    path = pytester.makepyfile(test_arch=test.format("sm90"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    assert [p.name for p in (pytester.path / "__golden__").iterdir()] == ["test_arch.py~~test_f.sm90.safetensors"]
    path.write_text(test.format(None))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is no golden for cpu; there is one for sm90, which says nothing of cpu"])
    path.write_text(test.format("any"))
    run().assert_outcomes(failed=1)
    run("--specalign-golden=new").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)


def test_the_architecture_is_that_of_the_leased_gpu(run: Run, pytester: pytest.Pytester, gpus: object) -> None:
    gpus(1)  # type: ignore[operator]  # a made-up GPU of capability 9.0
    pytester.makepyfile("import numpy\n\ndef test_f(gpu_lease, golden):\n    golden.check(tensors=numpy.ones(3))\n")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    assert [p.name.split(".")[-2] for p in (pytester.path / "__golden__").iterdir()] == ["sm90"]


def test_a_damaged_golden_fails_and_update_writes_it_anew(run: Run, suite: Path) -> None:
    run("--specalign-golden=new")
    path = suite / "__golden__" / NAMES[0]
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    result = run("--specalign-golden=new", "-k", "test_m")
    result.assert_outcomes(failed=1, deselected=2)
    run("--specalign-golden=update").assert_outcomes(passed=3)
    run().assert_outcomes(passed=3)
    assert np.array_equal(safetensors.numpy.load_file(path)["tensor"], 1.0)


def test_the_short_name_may_be_overridden(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest\n\n@pytest.fixture\ndef golden():\n    return 'mine'\n")
    pytester.makepyfile(
        "import numpy\n\ndef test_f(golden, specalign_golden):\n"
        "    assert golden == 'mine'\n    specalign_golden.check(tensors=numpy.ones(1))\n"
    )
    run("--specalign-golden=new").assert_outcomes(passed=1)


def test_torch_is_not_imported(run: Run, suite: Path, pytester: pytest.Pytester) -> None:
    run.hide("torch", "transformers", "triton", "jinja2", "fsspec")
    run("--specalign-golden=new").assert_outcomes(passed=3)
    values(pytester, "3.0")
    run("--specalign-artifacts=out").assert_outcomes(failed=3)


RERUN = """
import pytest
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures does, without the reports of the first run
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    runtestprotocol(item, nextitem=nextitem)
    return True
"""


def test_a_rerun_that_compares_nothing_fails(run: Run, pytester: pytest.Pytester) -> None:
    """What the first run raised says nothing of the second."""
    pytester.makeconftest(RERUN)
    pytester.makepyfile("ran = []\n\ndef test_f(golden):\n    ran.append(1)\n    assert len(ran) == 2\n")
    result = run()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["E*the test passed and compared nothing with a golden*"])

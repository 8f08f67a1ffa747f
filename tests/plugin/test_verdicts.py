"""What a test compared is noted beside it, and reaches JUnit and the summary, also out of xdist's workers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_specalign.verdicts import PROPERTY, Comparison
from tests.plugin.support import WITHOUT_XDIST, WORKERS, Run, section

TESTS = """
import numpy
import pytest
from pytest_specalign.verdicts import Comparison, note_comparison

def test_equal(request):
    note_comparison(request.node, Comparison("logits", "equal", 4096, unit="rows", kind="golden"))

def test_different(request):
    note_comparison(
        request.node,
        Comparison("logits", "different", 4096, 3, "rows", "golden", "row 17: 0x3f80 is not 0x3f81", ("out/logits.html",)),
    )
    raise AssertionError

def test_expects_it(request):
    note_comparison(request.node, Comparison("control", "different", 8, 8, first="element 0"))

@pytest.fixture
def early(request):
    note_comparison(request.node, Comparison("early", "not-proven", 0, first="no golden of sm90"))
    raise RuntimeError

def test_in_a_fixture(early): pass

@pytest.mark.bitwise(runs=3)
def test_bits(bitwise):
    bitwise.observe("same", numpy.ones(3))
    bitwise.observe("drifts", [numpy.array([float(bitwise.run)]), numpy.ones(1)])

@pytest.mark.bitwise
def test_nothing(bitwise): pass

@pytest.mark.bitwise
def test_breaks(bitwise):
    bitwise.observe("x", numpy.ones(3))
    if bitwise.run == 2:
        raise ValueError
"""


def _properties(path: Path, name: str | None = None) -> list[tuple[str, str]]:
    """Of the tests of that name; of the test suite without one."""
    (suite,) = ET.parse(path).getroot()
    nodes = [suite] if name is None else [case for case in suite.findall("testcase") if case.get("name") == name]
    return [(p.get("name", ""), p.get("value", "")) for node in nodes for p in node.findall("properties/property")]


@pytest.mark.parametrize("workers", WORKERS)
def test_every_comparison_is_a_property_of_its_test(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS)
    run("-p", "specalign", "--junit-xml=junit.xml", *workers).assert_outcomes(passed=2, failed=4, errors=1)

    def noted(name: str) -> list[Comparison]:
        found = _properties(pytester.path / "junit.xml", name)
        assert {key for key, _ in found} == {PROPERTY}
        return [Comparison.from_dict(json.loads(value)) for _, value in found]

    assert noted("test_equal") == [Comparison("logits", "equal", 4096, unit="rows", kind="golden")]
    artifact = str(pytester.path / "out" / "logits.html")
    first = "row 17: 0x3f80 is not 0x3f81"
    assert noted("test_different") == [Comparison("logits", "different", 4096, 3, "rows", "golden", first, (artifact,))]
    assert noted("test_in_a_fixture") == [Comparison("early", "not-proven", 0, first="no golden of sm90")]
    same, drifts = noted("test_bits")
    assert same == Comparison("same", "equal", 2, 0, "tensors", "bitwise")
    assert (drifts.verdict, drifts.compared, drifts.differing) == ("different", 4, 2)
    assert drifts.first.startswith("run 2, 'drifts'[0]")
    assert noted("test_nothing") == [Comparison("(nothing)", "not-proven", 0, 0, "tensors", "bitwise", "nothing was observed")]
    assert noted("test_breaks") == [Comparison("x", "equal", 1, 0, "tensors", "bitwise")]
    counted = dict(_properties(pytester.path / "junit.xml"))
    assert (counted["specalign_comparisons"], counted["specalign_divergences"]) == ("8", "4")
    assert counted["specalign_verdict"] == "failed"


@pytest.mark.parametrize("workers", WORKERS)
def test_the_summary_names_what_differs(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = run("-p", "specalign", "--specalign-gpu-policy=allow", *workers)
    lines = section(result)
    assert "comparisons: 8, 4 not equal, 1 not equal in tests that passed" in lines
    artifact = pytester.path / "out" / "logits.html"
    assert (
        "  test_it.py::test_different: golden 'logits': different: 3 of 4,096 rows: row 17: 0x3f80 is not 0x3f81"
        f" (see {artifact})" in lines
    )
    assert "  test_it.py::test_expects_it: 'control': different: 8 of 8 elements: element 0" in lines
    assert "  test_it.py::test_in_a_fixture: 'early': not-proven: 0 of 0 elements: no golden of sm90" in lines
    assert lines[-1] == "verdict: failed"


def test_where_all_is_equal_and_nobody_requires_anything_nothing_is_said(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.split("def test_different")[0])
    result = run("-p", "specalign", "--specalign-gpu-policy=allow", *WITHOUT_XDIST)
    result.assert_outcomes(passed=1)
    assert section(result) == []


WRONG = {
    "an unknown verdict": (("x", "same", 1), "verdict is 'same': equal, different, not-proven"),
    "more than all": (("x", "different", 1, 2), "2 of 1 elements cannot differ"),
    "equal and different": (("x", "equal", 2, 1), "is called equal with 1 of 2 different"),
    "equal and nothing compared": (("x", "equal", 0), "is called equal with 0 of 0 different"),
    "different without a place": (("x", "different", 2, 1), "is different without saying where or why"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_comparison_that_cannot_be_is_refused(case: str) -> None:
    args, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        Comparison(*args)  # type: ignore[arg-type]


def test_the_same_name_again_replaces_what_was_noted(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_specalign.verdicts import Comparison, noted_comparisons, note_comparison

        def test_it(request):
            request.node.user_properties.append(("mine", "1"))
            note_comparison(request.node, Comparison("x", "equal", 1))
            note_comparison(request.node, Comparison("y", "equal", 1))
            note_comparison(request.node, Comparison("x", "equal", 2))
            note_comparison(request.node, Comparison("x", "equal", 3, kind="golden"))
            assert [(one.name, one.compared) for one in noted_comparisons(request.node)] == [("x", 2), ("y", 1), ("x", 3)]
            assert [name for name, _ in request.node.user_properties] == ["mine"] + ["specalign_comparison"] * 3
        """
    )
    run("-p", "specalign", *WITHOUT_XDIST).assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", WORKERS)
def test_texts_that_no_file_takes_are_spelled_out(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    """A lone surrogate, of a path or of a damaged text for instance, ends xdist's worker and leaves an empty XML file."""
    pytester.makepyfile(
        "from pytest_specalign.verdicts import Comparison, note_comparison\n"
        "def test_f(request):\n"
        "    note_comparison(request.node, Comparison('n\\udcff\\x1b', 'different', 2, 1, first='f\\udcfe', artifacts=('a\\udcfd',)))\n"
        "    assert False\n"
    )
    result = run("-p", "specalign", *workers, "--junit-xml=j.xml")
    result.assert_outcomes(failed=1)
    (told,) = [json.loads(value) for name, value in _properties(pytester.path / "j.xml", "test_f") if name == PROPERTY]
    assert (told["name"], told["first"]) == ("n\\udcff\x1b", "f\\udcfe")
    assert told["artifacts"][0].endswith("a\\udcfd")

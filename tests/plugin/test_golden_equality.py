"""`assert result == golden`: one answer for arrays of every kind, from either side, with the first differing bit in the message."""

from __future__ import annotations

import pytest

from tests.plugin.support import Run

SIDES = {
    "numpy array": "numpy.float32([[1, 2], [3, 4]])",
    "numpy number": "numpy.float32(2)",
    "float that numpy makes": "numpy.float64(2)",
    "dict": "{'a': numpy.float32([1, 2])}",
    "list": "[numpy.float32([1, 2]), numpy.float32([3])]",
    "tuple": "(numpy.float32([1, 2]),)",
    "torch": "torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)",
    "torch parameter": "torch.nn.Parameter(torch.ones(2))",
    "torch bool": "torch.tensor([True, False])",
}

CHANGED = """
def changed(value):
    if isinstance(value, dict):
        return {key: changed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(changed(item) for item in value)
    if isinstance(value, torch.Tensor):
        other = value.detach().clone()
        other.view(-1).view(torch.uint8)[0] ^= 1
        return other
    other = numpy.array(value)
    other.reshape(-1).view("u1")[0] ^= 1
    return other if value.shape else other[()]
"""


def suite(expression: str) -> str:
    lines = ["import numpy", "import torch", "import pytest", CHANGED, f"SIDES = [{', '.join(SIDES.values())}]"]
    lines += ['@pytest.mark.parametrize("number", range(len(SIDES)))', "def test_f(golden, number):", "    x = SIDES[number]"]
    return "\n".join([*lines, f"    {expression}"]) + "\n"


def test_equality_reaches_the_golden_from_either_side(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    path = pytester.makepyfile(test_sides=suite("assert (x == golden) is True"))
    run("--specalign-golden=new").assert_outcomes(passed=len(SIDES))
    for expression, outcomes in (
        ("assert x == golden", ["passed"]),
        ("assert golden == x", ["passed"]),
        ("assert (changed(x) == golden) is False", ["passed", "errors"]),  # one answer, and no test that wants it
        ("assert changed(x) == golden", ["failed"]),
        ("assert golden == changed(x)", ["failed"]),
    ):
        path.write_text(suite(expression))
        run().assert_outcomes(**dict.fromkeys(outcomes, len(SIDES)))


TEST = """
import numpy


def test_f(golden):
    x = numpy.float16([[1, 2], [3, 4]])
    assert {} == golden("h")
"""


def test_the_message_names_the_first_differing_bit(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_message=TEST.format("x"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    path.write_text(TEST.format("x * numpy.float16([1, -1])"))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*assert x * numpy.float16(*",
            "E*assert golden test_message.py::test_f::h: different, at most * ulp",
            "E*first at [[]0, 1]: 0x4000 (2.0) in the golden, 0xc000 (-2.0) in the result, highest differing bit 15; 2 of 4*",
        ]
    )


def test_a_tolerance_stands_with_the_name(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_message=TEST.format("x"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    near = TEST.replace('golden("h")', 'golden("h", mode="ulp:1")').format("(x.view('u2') + numpy.uint16(1)).view('f2')")
    path.write_text(near)
    run().assert_outcomes(passed=1)
    path.write_text(near.replace("ulp:1", "bits"))
    run().assert_outcomes(failed=1)


UNASSERTED = {
    "x == golden('a')": "test_0 errors: no assert",
    "ok = [x, x] == [golden('a'), golden('b')]": "the first of two ends the list",
    "assert not (x == golden('a'))": "it says what the result is not",
    "assert x == golden('a') or True": "nobody looks",
}


def test_an_inequality_that_nobody_asserts_fails(run: Run, pytester: pytest.Pytester) -> None:
    """A missing golden, too: else a forgotten assert would pass for ever."""
    head = "import numpy, pytest\nx = numpy.ones(3)\n"
    bodies = "".join(f"def test_{number}(golden):\n    {body}\n" for number, body in enumerate(UNASSERTED))
    path = pytester.makepyfile(test_it=head + bodies)
    result = run()
    result.assert_outcomes(passed=len(UNASSERTED), errors=len(UNASSERTED))
    result.stdout.fnmatch_lines(
        ["E*test_it.py::test_0: the test passed, and `result == golden` was false: *::a: missing.*assert*"]
    )
    path.write_text(head + "def test_0(golden):\n    assert x == golden('a')\n")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    path.write_text(head + "def test_0(golden):\n    x + 1 == golden('a')\n")
    run().assert_outcomes(passed=1, errors=1)


def test_a_failure_or_an_expected_one_is_told_once(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import numpy, pytest\n"
        "def test_a(golden):\n    assert numpy.ones(3) == golden\n"
        "@pytest.mark.xfail\ndef test_b(golden):\n    assert numpy.ones(3) == golden\n"
        "def test_c(golden):\n    with pytest.raises(pytest.fail.Exception):\n        golden.check(tensors=numpy.ones(3))\n"
    )
    run().assert_outcomes(failed=1, xfailed=1, passed=1)


WRONG = {
    "assert x != golden": "a golden says what a result is, not what it is not",
    "assert golden": "a golden alone is neither true nor false",
    "assert golden == golden('b')": "a golden was compared with a golden",
    "assert 'text' == golden": "only torch tensors and numpy arrays",
    "assert None == golden": "only torch tensors and numpy arrays",
    "{golden}": "unhashable",
}


def test_other_uses_fail(run: Run, pytester: pytest.Pytester) -> None:
    lines = ["import numpy", "x = numpy.ones(3)"]
    lines += [f"def test_{number}(golden):\n    {body}" for number, body in enumerate(WRONG)]
    pytester.makepyfile("\n".join(lines))
    result = run("--specalign-golden=new")
    result.assert_outcomes(failed=len(WRONG))
    for reason in WRONG.values():
        result.stdout.fnmatch_lines([f"E *{reason}*"])
    assert not (pytester.path / "__golden__").exists()


def test_comparisons_of_others_keep_their_message(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_f():\n    assert [1, 2] == [1, 3]\n")
    run("-p", "specalign").stdout.fnmatch_lines(["E*At index 1 diff: 2 != 3"])

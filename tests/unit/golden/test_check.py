"""A result held against its golden: every way to differ is found, named and measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specalign.compare.leaves import NotComparableError
from specalign.compare.modes import parse_mode
from specalign.golden.check import check_tensors, illegal_values, read_result
from specalign.golden.environment import Environment
from specalign.golden.errors import GoldenError
from specalign.golden.keys import Key
from tests.unit.golden.made import CPU, KEY, checked, tree, written

ROWS = np.arange(12, dtype="f4").reshape(3, 4)
FORMS = pytest.mark.parametrize("form", ["values", "fingerprint"])


@FORMS
def test_the_same_bits_agree(tmp_path: Path, form: Any) -> None:
    report = checked(written(tmp_path, tree(), form), tree())
    assert report.ok
    assert report.compared == 5
    assert report.verdict == "equal (bits)"


@FORMS
@pytest.mark.parametrize("bit", [0, 1, 12, 22, 31])
def test_every_single_flipped_bit_is_found_where_it_is(tmp_path: Path, form: Any, bit: int) -> None:
    golden = written(tmp_path, {"h": ROWS}, form)
    changed = ROWS.copy()
    changed.view("u4")[1, 2] ^= np.uint32(1 << bit)  # 6.0 = 0x40c00000: no flip of these makes it non-finite
    report = checked(golden, {"h": changed})
    assert not report.ok
    assert [check.first_row for check in report.checks] == [1]
    text = report.format()
    assert "['h'] (F32 [3, 4])" in text
    if form == "values":
        assert f"first at [1, 2]: 0x40c00000 (6.0) in the golden, 0x{0x40C00000 ^ 1 << bit:08x} (" in text
        assert f"highest differing bit {bit}; 1 of 12 elements differ" in text
    else:
        assert "1 of 3 rows have other bits, first row 1" in text


def test_the_distance_is_in_steps_of_the_type(tmp_path: Path) -> None:
    golden = written(tmp_path, np.float16([1.0, 2.0]))
    report = checked(golden, np.float16([1.0, 2.0 + 3 * 2.0**-9]))  # one step above 2 is 2^-9 in FP16
    assert report.max_ulp == 3
    assert report.verdict == "different, at most 3 ulp"


@FORMS
def test_negative_zero_is_not_zero(tmp_path: Path, form: Any) -> None:
    assert not checked(written(tmp_path, np.float32([0.0]), form), np.float32([-0.0])).ok


@pytest.mark.parametrize(
    ("mode", "ok"), [("bits", False), ("ulp:1", False), ("ulp:2", True), ("abs:1e-6", True), ("rel:1e-9", False)]
)
def test_a_tolerance_is_the_callers(tmp_path: Path, mode: str, ok: bool) -> None:
    golden = written(tmp_path, np.float32([1.0]))
    assert checked(golden, np.float32([1.0 + 2 * 2.0**-23]), parse_mode(mode)).ok is ok


@FORMS
def test_element_type_and_shape_must_be_the_same(tmp_path: Path, form: Any) -> None:
    golden = written(tmp_path, ROWS, form)
    assert "element type F32 in the golden, I32 in the result" in checked(golden, ROWS.view("i4")).format()
    assert "shape [3, 4] in the golden, [4, 3] in the result" in checked(golden, ROWS.reshape(4, 3)).format()


@FORMS
def test_missing_and_additional_tensors_fail(tmp_path: Path, form: Any) -> None:
    golden = written(tmp_path, {"a": ROWS, "b": ROWS}, form)
    fewer, more = checked(golden, {"a": ROWS}), checked(golden, {"a": ROWS, "b": ROWS, "c": ROWS})
    assert (fewer.ok, more.ok) == (False, False)
    assert "the result lacks ['b'], which the golden has" in fewer.format()
    assert "the result has ['c'], which the golden lacks" in more.format()
    assert checked(golden, {"b": ROWS, "a": ROWS}).ok  # the order of a dict says nothing


@FORMS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_fail_though_they_are_the_same(tmp_path: Path, form: Any, value: float) -> None:
    bad = np.float32([[1.0, value]])
    golden = written(tmp_path, {"h": bad}, form)
    assert not checked(golden, {"h": bad}).ok
    assert "non-finite" in checked(golden, {"h": bad}).format()
    assert checked(golden, {"h": bad}, nonfinite="all").ok
    assert checked(golden, {"h": bad}, nonfinite="inf").ok is (value == -np.inf)


@FORMS
@pytest.mark.parametrize(("name", "tree_key"), [("logits", None), ("logprobs", None), ("x", "logits"), ("x", "logprobs")])
def test_in_logits_minus_infinity_is_legal_and_nan_is_not(tmp_path: Path, form: Any, name: str, tree_key: str | None) -> None:
    masked, broken = np.float32([1.0, -np.inf]), np.float32([1.0, np.nan])
    key = Key("t.py", "", "f", None, name)
    for values, ok in ((masked, True), (broken, False)):
        result = values if tree_key is None else {tree_key: [values]}
        assert checked(written(tmp_path, result, form, key), result).ok is ok
        assert (illegal_values(name, read_result(name, result, None), None) == ()) is ok


@FORMS
def test_the_same_nan_bits_are_equal_where_nan_is_legal_and_others_are_not(tmp_path: Path, form: Any) -> None:
    quiet, other = np.uint32([0x7FC00000]).view("f4"), np.uint32([0x7FC00001]).view("f4")
    golden = written(tmp_path, quiet, form)
    assert checked(golden, quiet, nonfinite="all").ok
    assert not checked(golden, other, nonfinite="all").ok


@FORMS
def test_another_architecture_is_refused_by_name(tmp_path: Path, form: Any) -> None:
    golden = written(tmp_path, ROWS, form, environment=Environment("cuda", "sm90"))
    with pytest.raises(GoldenError, match="was computed on sm90, and this result on cpu"):
        checked(golden, ROWS)


def test_versions_explain_a_failure_and_decide_nothing(tmp_path: Path) -> None:
    golden = written(tmp_path, ROWS)
    now = Environment("cpu", "cpu", {"numpy": "3.0", "torch": "2.13.0"})
    same = check_tensors(golden, read_result("", ROWS, None), now)
    other = check_tensors(golden, read_result("", ROWS + 1, None), now)
    assert same.ok
    assert "numpy" not in same.format()
    assert "since the golden was written: numpy 2.0 → 3.0, torch not loaded → 2.13.0" in other.format()


@pytest.mark.parametrize("mode", ["bits", "abs:1000"])
def test_a_damaged_golden_is_an_error_and_not_a_difference(tmp_path: Path, mode: str) -> None:
    path = written(tmp_path, ROWS).path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    from specalign.golden.files import read_golden

    with pytest.raises(GoldenError, match="the data of tensor do not have their checksum"):
        checked(read_golden(path), ROWS, parse_mode(mode))


def test_fingerprints_take_no_tolerance(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="holds fingerprints"):
        checked(written(tmp_path, ROWS, "fingerprint"), ROWS, parse_mode("ulp:1"))


@pytest.mark.parametrize("nothing", [None, [], {}, "text", np.zeros((0, 4)), 1.0, np.array(["a"])])
def test_what_cannot_be_compared_is_refused(nothing: Any) -> None:
    with pytest.raises(NotComparableError):
        read_result("x", nothing, None)


def test_two_tensors_of_one_path_are_refused() -> None:
    class Key:
        def __repr__(self) -> str:
            return "'k'"

    with pytest.raises(GoldenError, match="two tensors have this path"):
        read_result("x", {Key(): ROWS, Key(): ROWS}, None)


def test_a_result_is_not_copied(tmp_path: Path) -> None:
    assert np.shares_memory(read_result("x", ROWS, None)[0].bits, ROWS)


def test_nothing_imports_torch(tmp_path: Path) -> None:
    golden = written(tmp_path, ROWS)
    code = (
        "import sys, numpy; from pathlib import Path; from tests.unit.golden.made import *;"
        f"golden = read_golden(Path({str(golden.path)!r}));"
        "assert checked(golden, numpy.arange(12, dtype='f4').reshape(3, 4)).ok; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_tensors_are_compared_by_their_bits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, -0.0], [2.5, 3.0]])
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float64):
        golden = written(tmp_path, values.to(dtype))
        assert checked(golden, values.to(dtype)).ok
        assert not checked(golden, values.abs().to(dtype)).ok
    golden = written(tmp_path, values.T)
    assert golden.data["tensor"].view("f4").tolist() == values.T.tolist()
    assert checked(golden, values.numpy().T.copy()).ok
    assert golden.document.key == KEY
    assert golden.document.environment == CPU

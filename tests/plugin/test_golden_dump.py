"""Goldens that are dumps: the comparison of all layers, its report, and what a bitwise test observes of them."""

from __future__ import annotations

import importlib.util
import json

import pytest

from specalign.dump.opening import open_dump
from tests.plugin.support import ROOT, Run

TEST = """
import itertools
import sys

import pytest

sys.path.insert(0, ROOT)
from tests.unit.golden.test_dumps import dump

count = itertools.count(1)


MARK
def test_f(golden, tmp_path):
    run = next(count)
    golden.check("layers", dump=dump(tmp_path / str(run), flip=FLIP), keep=KEEP)
"""


def suite(pytester: pytest.Pytester, *, flip: str = "False", keep: str = "values", mark: str = "") -> None:
    text = TEST.replace("ROOT", repr(str(ROOT))).replace("MARK", mark).replace("FLIP", flip).replace("KEEP", repr(keep))
    pytester.makepyfile(test_it=text)


@pytest.mark.parametrize("keep", ["values", "fingerprint"])
def test_a_dump_is_held_against_one(run: Run, pytester: pytest.Pytester, keep: str) -> None:
    suite(pytester, keep=keep)
    run("--specalign-golden=new").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    suite(pytester, flip="True", keep=keep)
    result = run("--specalign-artifacts=out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*golden test_it.py::test_f::layers: different*", "E*boundary.2*"])
    folder = pytester.path / "out" / "golden" / "__golden__" / "test_it.py~~test_f~~layers.cpu"
    assert json.loads((folder / "compare.json").read_text())["first"]["key"] == "boundary.2"
    keys = {key for info in open_dump(folder / "actual.dump").infos() for key in info.tensors}
    assert keys == {"boundary.2"}
    run("--specalign-golden=update").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    names = sorted(path.name for path in (pytester.path / "__golden__").iterdir())
    assert len(names) == 2  # the document, and the dump that it names
    assert names[1] == "test_it.py~~test_f~~layers.cpu.json"


def test_an_update_keeps_a_dump_as_the_test_asks_now(run: Run, pytester: pytest.Pytester) -> None:
    def kept() -> set[bool]:
        (folder,) = (pytester.path / "__golden__").glob("*.dump")
        return {spec.fingerprint for info in open_dump(folder).infos() for spec in info.tensors.values()}

    suite(pytester)
    run("--specalign-golden=new").assert_outcomes(passed=1)
    for keep, hashed, was in (("fingerprint", True, "dump"), ("values", False, "dump of fingerprints")):
        suite(pytester, keep=keep)
        result = run("--specalign-golden=update", "-p", "specalign")
        result.stdout.fnmatch_lines([f"*test_f::layers (cpu) updated: it was kept as {was}"])
        assert kept() == {hashed}
        assert "updated" not in run("--specalign-golden=update", "-p", "specalign").stdout.str()


def test_a_dump_is_no_golden_of_tensors_nor_kept_in_a_store(run: Run, pytester: pytest.Pytester) -> None:
    suite(pytester, keep="external")
    run("--specalign-golden=new").stdout.fnmatch_lines(['E*keep="external" is for tensors*'])
    suite(pytester)
    run("--specalign-golden=new").assert_outcomes(passed=1)
    pytester.makepyfile(test_it="import numpy\n\ndef test_f(golden):\n    golden.check('layers', tensors=numpy.ones(1))\n")
    run().stdout.fnmatch_lines(["E*is a golden of the form dump, which holds no tensors"])


RECORDED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = torch.nn.Embedding(16, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        with torch.no_grad():
            self.layers[1].bias[2] += ADD

    def forward(self, input_ids):
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def test_f(golden, layer_dump):
    model = Model()
    with layer_dump(model) as recording:
        model(torch.arange(6)[None])
    golden.check("layers", dump=recording.path)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_recording_of_a_model_is_held_against_one(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=RECORDED.replace("ADD", "0"))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    path.write_text(RECORDED.replace("ADD", "0.5"))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*first at boundary.2 (after block 1)*"])  # boundaries 0 and 1 agree


def test_every_row_of_a_dump_is_observed_in_a_bitwise_test(run: Run, pytester: pytest.Pytester) -> None:
    suite(pytester, mark="@pytest.mark.bitwise")
    run("--specalign-golden=new").assert_outcomes(passed=1)
    suite(pytester, mark="@pytest.mark.bitwise", flip="run == 2")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*run 2, 'golden layers'[[]'rank 0 pass 1 boundary.2'] (U64 [[]1, 2]): element *"])


ILLEGAL = """
import sys

import numpy

sys.path.insert(0, ROOT)
from tests.unit.golden.test_dumps import with_padding


def test_f(golden, tmp_path):
    golden.check("layers", dump=with_padding(tmp_path / "d", "boundary.1", [1.0, numpy.nan], [0, 0]), keep="fingerprint")
"""


def test_no_golden_is_made_of_a_dump_with_illegal_values(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ILLEGAL.replace("ROOT", repr(str(ROOT))))
    result = run("--specalign-golden=new")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*no golden is written of this result: *boundary.1: 1 rows hold non-finite values, row 1 first"]
    )
    assert not (pytester.path / "__golden__").exists()

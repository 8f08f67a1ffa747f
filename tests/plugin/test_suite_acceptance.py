"""`pytest --pyargs pytest_specalign.suite.acceptance`: a pair measured and held against its golden, as tests."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specalign.suite import acceptance as suite
from specalign.acceptance import read_prompts
from specalign.acceptance.gate import judge
from specalign.acceptance.golden_file import AcceptanceGolden, write_golden
from specalign.acceptance.report import Measured
from specalign.acceptance.table import LoopCheck, Table
from tests.plugin.support import ROOT, Gpus, Run

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from specalign.integrations.pair import load_pair, measure_pair  # what it loads needs both
from specalign.speculate.table import Settings
from tests.unit.cli.tiny_pair import HEAD, better_golden, golden_by_hand, write_head, write_pair

SUITE = ("-p", "specalign", "--pyargs", "pytest_specalign.suite.acceptance")
DEPTH = 2
TESTS = DEPTH + 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def golden(place: Path) -> AcceptanceGolden:
    """Of the first seven of eight prompts, as `--limit 7` gives it."""
    pair = load_pair(place / "target", place / "draft", read_prompts(place / "prompts.jsonl")[:7], new_tokens=20)
    return golden_by_hand(measure_pair(pair, Settings(DEPTH, 20, 4)), pair.identity())


@pytest.fixture
def options(place: Path, golden: AcceptanceGolden, pytester: pytest.Pytester) -> list[str]:
    """Those of a right pair with its golden in golden.json."""
    write_golden(golden, pytester.path / "golden.json")
    parts = {"target": place / "target", "draft": place / "draft", "prompts": place / "prompts.jsonl"}
    return [*(f"--specalign-{name}={path}" for name, path in parts.items()), "--specalign-acceptance-golden=golden.json"]


def test_a_pair_that_reaches_its_golden_passes(run: Run, options: list[str], pytester: pytest.Pytester) -> None:
    result = run(*SUITE, *options, "--junitxml=out.xml", "--specalign-artifacts=out/deep", "-v")
    result.assert_outcomes(passed=TESTS)
    result.stdout.fnmatch_lines(["*suite/acceptance.py::test_position?2? PASSED*"])
    cases = {case.get("name"): case for case in ElementTree.parse(pytester.path / "out.xml").iter("testcase")}
    told = {one.get("name"): one.get("value") for one in cases["test_length"].iter("property")}
    assert told["specalign_drop"] == "0.000 [0.000, 0.000]"
    assert told["specalign_value"] == told["specalign_golden"]
    noted = json.loads(str(told["specalign_comparison"]))
    assert (noted["kind"], noted["name"], noted["verdict"]) == ("acceptance", "length", "equal")
    report = json.loads((pytester.path / "out" / "deep" / "acceptance.json").read_text("utf-8"))
    assert (report["schema"], report["depth"], report["rows"][0]["prompts"]) == ("specalign.acceptance/1", DEPTH, 7)


def test_a_drop_fails_by_concern(run: Run, options: list[str], golden: AcceptanceGolden, pytester: pytest.Pytester) -> None:
    write_golden(better_golden(golden), pytester.path / "golden.json")
    result = run(*SUITE, *options)
    result.assert_outcomes(passed=TESTS - 1 - DEPTH, failed=1 + DEPTH)
    result.stdout.fnmatch_lines(
        [
            "*test_length*",
            "the acceptance length dropped by*",
            "looks like: none of the known faults",
            "*FAIL: acceptance length*",
        ]
    )
    result.stdout.fnmatch_lines(["the rate of position 2 dropped by*"])
    assert "Traceback" not in result.stdout.str()


def test_another_head_and_other_prompts_fail_with_what_differs(
    run: Run, options: list[str], place: Path, pytester: pytest.Pytester
) -> None:
    shutil.copytree(place / "draft", pytester.path / "draft")
    write_head(pytester.path / "draft", HEAD, seed=2)
    (pytester.path / "p.jsonl").write_text('{"id": "p0", "prompt": "w1 w2"}\n', "utf-8")
    result = run(*SUITE, *options, "--specalign-draft=draft", "--specalign-prompts=p.jsonl")
    result.assert_outcomes(errors=TESTS)
    told = "specalign: the golden is of another pair or another way to measure it: prompts: * here, * there; weights: * here, * there"
    result.stdout.fnmatch_lines([told])


def test_a_golden_that_says_no_dtype_is_not_guessed(
    run: Run, options: list[str], golden: AcceptanceGolden, pytester: pytest.Pytester
) -> None:
    write_golden(dataclasses.replace(golden, pair={"model": "mine"}), pytester.path / "golden.json")
    run(*SUITE, *options, "-k", "length").stdout.fnmatch_lines(["specalign: the golden was measured in dtype ''*"])


def test_each_concern_fails_its_own_test_and_a_loop_that_differs_fails_too(golden: AcceptanceGolden) -> None:
    """Called as functions: no model makes the real loop differ from the replay."""
    run = golden.counts[:5]
    verdict = judge(dataclasses.replace(golden, counts=run), run)
    assert [problem.concern for problem in verdict.found] == ["prompts"]
    table = Table((), (LoopCheck("right", 5, ("p1",)),), DEPTH, 20, run)
    held = suite.Held(Measured(table, "t", "d", "p", {}, 1.0), verdict)
    told: list[str] = []
    node = SimpleNamespace(stash=pytest.Stash(), user_properties=[], add_report_section=lambda *parts: told.append(parts[-1]))
    request: Any = SimpleNamespace(node=node)
    suite.test_length(held, request)
    suite.test_position(1, held, request)
    suite.test_clears_the_dead_control(held, request)
    with pytest.raises(pytest.fail.Exception, match="5 prompts with rounds can show no drop"):
        suite.test_prompts_show_a_drop(held, request)
    with pytest.raises(pytest.fail.Exception, match="the real loop and the replay count different rounds"):
        suite.test_the_loop_counts_what_the_replay_counts(held, request)
    verdicts = {
        json.loads(value)["name"]: json.loads(value)["verdict"] for name, value in node.user_properties if "comparison" in name
    }
    assert verdicts == {
        "length": "equal",
        "position 1": "equal",
        "dead control": "equal",
        "prompts": "not-proven",
        "loop": "different",
    }
    assert told[0].startswith("FAIL: acceptance length")
    assert told[-1] == "real loop, 'right': 5 prompts, OTHER rounds on 1: p1"


def test_what_is_missing_is_one_line(run: Run, options: list[str], pytester: pytest.Pytester) -> None:
    result = run(*SUITE, *options[:2])
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*needs --specalign-prompts, --specalign-acceptance-golden; a golden is made with*"])
    (pytester.path / "golden.json").write_text("{}", "utf-8")
    result = run(*SUITE, *options)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["specalign: *golden.json: its schema is None*"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_gpu_that_was_asked_for_and_cannot_be_had_fails(run: Run, options: list[str], gpus: Gpus) -> None:
    """One that is not there, and one of this machine's that torch does not see."""
    asked = (*SUITE, *options, "--specalign-device=cuda", "-k", "length")
    for count in (0, 1):
        gpus(count)
        result = run(*asked, CUDA_VISIBLE_DEVICES="")
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["specalign: --specalign-device=cuda: *"])


def test_the_example_of_the_docs_runs(run: Run, place: Path, pytester: pytest.Pytester) -> None:
    """On a random head, whose table proves nothing: the fixture says so, and writes no golden."""
    text = (ROOT / "docs" / "acceptance.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?acceptance_gate.*?)```", text, re.DOTALL)
    for old, new in {
        "path/to/": f"{place}/",
        "prompts.jsonl": str(place / "prompts.jsonl"),
        "new_tokens=64": "new_tokens=9",
    }.items():
        assert old in example
        example = example.replace(old, new)
    pytester.makepyfile(test_it=example)
    result = run("--specalign-golden=new")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*acceptance 'smollm2-A': no golden is made of a table that proves too little*"])
    assert not list(pytester.path.rglob("__golden__"))

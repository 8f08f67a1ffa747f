"""The fixture acceptance_gate: what is written where, what passes, what fails, under each --specalign-golden."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specalign.golden.catalog import entries, leftovers
from tests.plugin.support import ROOT, WORKERS, Run

HEAD = """
import dataclasses
import pytest
from specalign.acceptance import Served, measure
from tests.unit.acceptance.made_runs import PAIR, RIGHT, SHIFTED, UNNORMED, drawn, table

TABLE = table(40)


def told(run, **changes):
    found = measure(run)
    length = found.length.value
    made = Served("vLLM", "x", length, length, length, found.per_position, found.rounds, found.accepted, found.proposed, "x")
    return dataclasses.replace(made, **changes)

"""

HOLD = "acceptance_gate.check('A/1', {measured}, pair={pair}, depth=4, new_tokens=64)"
SAME = "table(40)"
WORSE = "drawn(7000, UNNORMED, 40)"
BETTER = "dataclasses.replace(TABLE, counts=tuple(drawn(8003, (0.8, 0.8, 0.8, 0.8), 40)))"


@pytest.fixture
def write(run: Run, pytester: pytest.Pytester) -> Path:
    """A folder of tests below rootdir; tests in it see what this repository's own tests are made of."""
    run.path = [*run.path, str(ROOT)]
    pytester.makeini("[pytest]\n")
    return pytester.mkdir("sub")


def body(folder: Path, *lines: str, name: str = "test_it.py") -> None:
    (folder / name).write_text(HEAD + "\ndef test_a(acceptance_gate):\n" + "".join(f"    {line}\n" for line in lines))


def hold(measured: str = SAME, pair: str = "PAIR") -> str:
    return HOLD.format(measured=measured, pair=pair)


def golden(folder: Path) -> Path:
    return folder / "__golden__" / "A%2F1.acceptance-golden.json"


def properties(file: Path) -> dict[str, str]:
    (case,) = ElementTree.parse(file).getroot().iter("testcase")  # pytest's own file
    return {found.get("name") or "": found.get("value") or "" for found in case.iter("property")}


@pytest.fixture
def kept(run: Run, write: Path) -> Path:
    """A folder whose test has its golden."""
    body(write, hold())
    run("--specalign-golden=new").assert_outcomes(passed=1)
    return write


def test_new_writes_what_is_missing_and_check_reads_it(run: Run, write: Path, pytester: pytest.Pytester) -> None:
    body(write, hold())
    missing = run("--junit-xml=junit.xml")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["*acceptance 'A/1': there is no golden of this pair*", "*next: write it with --specalign-golden=new*"]
    )
    assert properties(pytester.path / "junit.xml")["specalign_acceptance_A/1"] == "missing"
    assert not golden(write).parent.exists()
    written = run("--specalign-golden=new")
    written.assert_outcomes(passed=1)
    written.stdout.fnmatch_lines(["sub/test_it.py::test_a::A/1 new"])
    assert [path.name for path in golden(write).parent.iterdir()] == ["A%2F1.acceptance-golden.json"]
    assert json.loads(golden(write).read_text("utf-8"))["schema"] == "specalign.acceptance-golden/1"
    run("-Werror").assert_outcomes(passed=1)


def test_a_drop_fails_with_the_verdict_and_is_a_comparison(run: Run, kept: Path, pytester: pytest.Pytester) -> None:
    body(kept, hold(WORSE))
    result = run("--junit-xml=junit.xml", "-p", "specalign")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*acceptance_gate.check('A/1'*",
            "E*acceptance 'A/1': FAIL: acceptance length 1.* against 2.* in the golden",
            "E*the acceptance length dropped by*",
            "E*looks like: norm before fc ignored",
            "E*golden: */sub/__golden__/A%2F1.acceptance-golden.json",
        ]
    )
    told = properties(pytester.path / "junit.xml")
    assert told["specalign_acceptance_A/1"].startswith("FAIL: acceptance length 1.")
    assert 1 < float(told["specalign_acceptance_length_A/1"]) < 1.4
    assert len(told["specalign_acceptance_per_position_A/1"].split()) == 4
    noted = json.loads(told["specalign_comparison"])
    assert (noted["kind"], noted["name"], noted["verdict"], noted["compared"]) == ("acceptance", "A/1", "different", 5)
    assert noted["differing"] >= 2
    assert noted["first"].startswith("the acceptance length dropped by")


def test_what_agrees_is_counted_as_a_comparison(run: Run, kept: Path, pytester: pytest.Pytester) -> None:
    run("--junit-xml=junit.xml").assert_outcomes(passed=1)
    told = properties(pytester.path / "junit.xml")
    noted = json.loads(told["specalign_comparison"])
    assert (noted["verdict"], noted["compared"], noted["differing"], noted["first"]) == ("equal", 5, 0, "")
    assert told["specalign_acceptance_A/1"].startswith("PASS: ")


def test_new_leaves_a_golden_and_update_replaces_one_that_does_not_agree(run: Run, kept: Path) -> None:
    before = golden(kept).read_bytes()
    run("--specalign-golden=update").assert_outcomes(passed=1)
    assert golden(kept).read_bytes() == before  # it agrees
    body(kept, hold(BETTER))
    for mode in ("check", "new"):
        run(f"--specalign-golden={mode}").assert_outcomes(passed=1)
    assert golden(kept).read_bytes() == before
    run("--specalign-golden=update").stdout.fnmatch_lines(["sub/test_it.py::test_a::A/1 updated: it rose"])
    assert golden(kept).read_bytes() != before
    body(kept, hold())
    run().assert_outcomes(failed=1)
    result = run("--specalign-golden=update")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["sub/test_it.py::test_a::A/1 updated: the acceptance length dropped by*"])
    assert golden(kept).read_bytes() == before


def test_another_pair_is_refused_and_update_takes_it(run: Run, kept: Path) -> None:
    body(kept, hold(pair="PAIR | {'weights': 'xyz'}"))
    run().stdout.fnmatch_lines(["E*acceptance 'A/1': the golden is of another pair*weights: xyz here, abc there"])
    run("--specalign-golden=new").assert_outcomes(failed=1)
    run("--specalign-golden=update").assert_outcomes(passed=1)
    assert json.loads(golden(kept).read_text("utf-8"))["pair"]["weights"] == "xyz"


def test_what_makes_no_golden_is_one_line(run: Run, write: Path) -> None:
    few = "dataclasses.replace(table(5), rows=(table(5).rows[0], *table(5).rows[2:]))"
    expected = {
        hold("drawn(0, RIGHT, 40)"): "a golden is made of a whole table",
        hold("dataclasses.replace(TABLE, rows=TABLE.rows[:1])"): "needs the whole table",
        hold("table(5)"): "proves too little: 'ids +1' is not told apart",
        hold(few): "5 prompts with rounds can show no drop",
        hold("[1, 2]"): "takes a table or a list of PromptRounds, and got list",
        hold(pair="{}"): "pair says what was measured, and is empty",
        "acceptance_gate.check('A/1', drawn(0, RIGHT, 40), pair=PAIR)": "give depth=… and new_tokens=…",
        "acceptance_gate.check('', TABLE, pair=PAIR)": "the name of a pair is ''",
        "acceptance_gate.check('a' * 121, TABLE, pair=PAIR)": "give a short text",
        "acceptance_gate.check('a\\n', TABLE, pair=PAIR)": "without control characters",
        "acceptance_gate.check_served('A/1', told(TABLE.counts))": "make it of a measured table first",
        "pass": "held nothing against a golden",
    }
    tests = [f"\ndef test_{at}(acceptance_gate):\n    {line}\n" for at, line in enumerate(expected)]
    (write / "test_it.py").write_text(HEAD + "".join(tests))
    result = run("--specalign-golden=new", "-rfE")
    result.assert_outcomes(passed=1, failed=11, errors=1)
    told = result.stdout.str().split("short test summary")[0]
    for line, message in expected.items():
        assert message in told, line
    assert not list(write.rglob("*.json"))


def test_ci_writes_only_what_is_named(run: Run, write: Path) -> None:
    body(write, hold())
    result = run("--specalign-golden=new", CI="1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this is CI*--specalign-golden-force='sub/test_it.py::test_a::A/1'*"])
    run("--specalign-golden=new", "--specalign-golden-force=*::A/1", CI="1").assert_outcomes(passed=1)
    assert golden(write).exists()


def test_a_damaged_golden_is_one_line(run: Run, kept: Path) -> None:
    golden(kept).write_text("{}", "utf-8")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*acceptance 'A/1': *A%2F1.acceptance-golden.json: its schema is None*"])


def test_a_table_that_proves_too_little_fails_though_the_rounds_agree(run: Run, kept: Path) -> None:
    body(
        kept,
        "from specalign.acceptance.table import LoopCheck",
        hold("dataclasses.replace(TABLE, loops=(LoopCheck('right', 8, ('p1',)),))"),
    )
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*FAIL: the table proves too little: the real loop and the replay count different rounds*"])


def test_names_that_differ_in_capitals_alone_are_refused(run: Run, kept: Path) -> None:
    body(kept, hold().replace("A/1", "a/1"))
    run("--specalign-golden=new").stdout.fnmatch_lines(["E*differs from A%2F1.acceptance-golden.json in capitals alone*"])


@pytest.mark.parametrize("workers", WORKERS)
def test_tests_share_a_golden_and_no_other_report_takes_it_for_one_of_its_own(
    run: Run, kept: Path, workers: tuple[str, ...]
) -> None:
    """Nobody calls it unused or a collision, whether or not its test ran."""
    body(kept, hold(), name="test_other.py")
    result = run("-p", "specalign", *workers)
    result.assert_outcomes(passed=2)
    assert "unused" not in result.stdout.str()
    assert "COLLISION" not in result.stdout.str()
    assert entries(golden(kept).parent) == []  # what specalign golden lists
    assert leftovers(kept) == []  # and what it removes
    for name in ("test_it.py", "test_other.py"):
        (kept / name).unlink()
    (kept / "test_plain.py").write_text("def test_p():\n    pass\n")
    assert "unused" not in run("-p", "specalign", *workers).stdout.str()


def test_figures_of_an_engine_are_held_against_the_same_golden(run: Run, kept: Path, pytester: pytest.Pytester) -> None:
    body(kept, "acceptance_gate.check_served('A/1', told(TABLE.counts))")
    run("--junit-xml=junit.xml").assert_outcomes(passed=1)
    assert properties(pytester.path / "junit.xml")["specalign_acceptance_A/1"].startswith("PASS: vLLM's acceptance length 2.")
    body(kept, "acceptance_gate.check_served('A/1', told(drawn(7000, UNNORMED, 40)))")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*acceptance 'A/1': FAIL: vLLM's acceptance length 1.*", "E*prompts are not paired*"])
    body(kept, "acceptance_gate.check_served('A/1', told(TABLE.counts, rounds=None))")
    run().stdout.fnmatch_lines(["E*acceptance 'A/1': vLLM, x: how many rounds*"])


def test_the_verdict_is_given_to_the_test(run: Run, kept: Path) -> None:
    body(
        kept,
        f"assert {hold()}.run.length.value > 2",
        "with pytest.raises(pytest.fail.Exception, match='dropped'):",
        f"    {hold(WORSE)}",
    )
    run().assert_outcomes(passed=1)


def test_it_lies_below_the_folder_that_is_given(run: Run, write: Path, pytester: pytest.Pytester) -> None:
    body(write, hold())
    run("--specalign-golden=new", "--specalign-golden-dir=kept").assert_outcomes(passed=1)
    assert (pytester.path / "kept" / "sub" / "A%2F1.acceptance-golden.json").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("check('A/1', TABLE, pair=['t'])", "pair is a mapping of texts*and not list"),
        ("check('A/1', TABLE, pair='t')", "pair is a mapping of texts*and not str"),
        ("check_served('A/1', 'http://localhost:8000/metrics')", "check_served takes what read_served gives, and got str"),
        ("check_served('A/1', TABLE)", "check_served takes what read_served gives, and got Table"),
    ],
)
def test_what_is_no_pair_and_no_figures_is_one_line(run: Run, kept: Path, call: str, message: str) -> None:
    body(kept, f"acceptance_gate.{call}")
    result = run()
    result.stdout.fnmatch_lines([f"E*Failed: acceptance 'A/1': {message}*"])
    assert "AttributeError" not in result.stdout.str()

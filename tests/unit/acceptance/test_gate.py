"""The gate on runs whose true rates are known: it lets equal heads pass, stops each drop, names its fault, and has teeth or fails."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round, difference, measure
from specalign.acceptance.gate import check_settings, format_verdict, judge
from specalign.acceptance.golden_file import AcceptanceGolden, golden_of, read_golden, write_golden
from tests.unit.acceptance.made_runs import DEAD, PAIR, RIGHT, SHIFTED, UNNORMED, drawn, table


@pytest.fixture(scope="module")
def golden() -> AcceptanceGolden:
    return golden_of(table(), PAIR)


def test_equal_heads_pass_but_for_the_false_alarms_that_the_level_allows(golden: AcceptanceGolden) -> None:
    """2.5% for the length and 2.5% for all positions together; the golden is one draw of many, so it is drawn anew each time."""
    alarms, runs = 0, 120
    for seed in range(runs):
        mine = dataclasses.replace(golden, counts=tuple(drawn(1000 + seed, RIGHT)))
        alarms += not judge(mine, drawn(5000 + seed, RIGHT)).ok
    assert alarms / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


@pytest.mark.parametrize(("name", "chances"), [("ids +1", SHIFTED), ("norm before fc ignored", UNNORMED)])
def test_a_drop_is_stopped_and_named(golden: AcceptanceGolden, name: str, chances: tuple[float, ...]) -> None:
    for seed in range(20):
        found = judge(golden, drawn(7000 + seed, chances))
        assert not found.ok
        assert found.looks_like[:1] == (name,), seed
        assert "the acceptance length dropped by" in format_verdict(found)
        assert f"looks like: {name}" in format_verdict(found)


def test_a_drop_like_no_known_fault_says_so(golden: AcceptanceGolden) -> None:
    found = judge(golden, drawn(8000, (0.4, 0.3, 0.3, 0.3)))
    assert not found.ok
    assert found.looks_like == ()
    assert "looks like: none of the known faults" in format_verdict(found)


def test_a_dead_head_does_not_clear_the_floor(golden: AcceptanceGolden) -> None:
    found = judge(golden, drawn(8001, DEAD))
    assert any("does not clear the dead control" in problem for problem in found.problems)


def test_a_drop_at_one_late_position_is_seen_there(golden: AcceptanceGolden) -> None:
    found = judge(golden, drawn(8002, (0.61, 0.61, 0.2, 0.64)))
    assert any(problem.startswith("the rate of position 3 dropped") for problem in found.problems)


def test_too_few_prompts_prove_nothing_and_fail(golden: AcceptanceGolden) -> None:
    few = dataclasses.replace(golden, counts=golden.counts[:5])
    assert any("5 prompts with rounds can show no drop" in problem for problem in judge(few, few.counts).problems)
    short = drawn(1, RIGHT, 8, 6)
    right = dataclasses.replace(golden.rows[0], length=measure(short).length)
    blunt = dataclasses.replace(golden, counts=tuple(short), rows=(right, *golden.rows[1:]))
    found = judge(blunt, drawn(2, RIGHT, 8, 6))
    assert any("a pass would prove nothing" in problem for problem in found.problems)


def test_four_prompts_that_changed_alike_are_no_drop(golden: AcceptanceGolden) -> None:
    """By chance they do in 1 of 16 runs; a bootstrap interval alone would call it one."""
    changed = list(golden.counts)
    for place in range(4):
        rounds = list(changed[place].rounds)
        best = max(range(len(rounds)), key=lambda i: rounds[i].accepted)
        rounds[best : best + 1] = [Round(4, 0, 1)] * rounds[best].tokens
        changed[place] = PromptRounds(changed[place].name, tuple(rounds))
    found = judge(golden, changed)
    assert found.drop.value > 0
    assert not any("length dropped" in problem for problem in found.problems)


def test_a_rise_passes_and_is_told(golden: AcceptanceGolden) -> None:
    found = judge(golden, drawn(8003, (0.75, 0.75, 0.75, 0.75)))
    assert found.ok
    assert found.rose
    assert "write a new golden" in format_verdict(found)


def test_the_same_run_passes_with_no_drop_at_all(golden: AcceptanceGolden) -> None:
    found = judge(golden, golden.counts)
    assert found.ok
    assert found.drop.value == 0.0
    assert {item.value for item in found.position_drops} == {0.0}


def test_other_prompts_are_refused(golden: AcceptanceGolden) -> None:
    with pytest.raises(AcceptanceError, match=r"first difference at 79"):
        judge(golden, list(golden.counts[:-1]))


def test_a_file_gives_the_same_golden(golden: AcceptanceGolden, tmp_path: Path) -> None:
    write_golden(golden, tmp_path / "g.json")
    assert read_golden(tmp_path / "g.json") == golden
    schema = json.loads(resources.files("specalign").joinpath("schemas/acceptance-golden-1.json").read_text("utf-8"))
    jsonschema.validate(json.loads((tmp_path / "g.json").read_text("utf-8")), schema)


def test_a_table_that_proves_too_little_makes_no_golden() -> None:
    short = table()
    with pytest.raises(AcceptanceError, match="needs the whole table"):
        golden_of(dataclasses.replace(short, rows=short.rows[:3]), PAIR)
    blind = dataclasses.replace(short.rows[1], difference=difference(short.counts, short.counts))
    with pytest.raises(AcceptanceError, match="proves too little: 'ids \\+1' is not told apart"):
        golden_of(dataclasses.replace(short, rows=(short.rows[0], blind, *short.rows[2:])), PAIR)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"specalign.acceptance-golden/1"', '"specalign.acceptance-golden/2"'),
        ('"counts"', '"count"'),
        ("[4, 4, 5]", "[4, 5, 6]"),
        ("[4, 4, 5]", "[4, 4.5, 5]"),
        ('"random head"', '"another"'),
        ('"depth": 4', '"depth": "4"'),
        ("{", ""),
    ],
)
def test_a_file_that_was_changed_is_one_error(golden: AcceptanceGolden, tmp_path: Path, old: str, new: str) -> None:
    write_golden(golden, tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text("utf-8")
    assert old in text
    (tmp_path / "g.json").write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(AcceptanceError, match=r"g\.json"):
        read_golden(tmp_path / "g.json")


def test_another_pair_is_refused(golden: AcceptanceGolden) -> None:
    check_settings(golden, PAIR, 4, 64)
    with pytest.raises(AcceptanceError, match="weights: xyz here, abc there"):
        check_settings(golden, PAIR | {"weights": "xyz"}, 4, 64)
    with pytest.raises(AcceptanceError, match="depth: 5 here, 4 there"):
        check_settings(golden, PAIR, 5, 64)

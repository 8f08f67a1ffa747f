"""The reports of a table whose figures are known by hand: text, JSON and page say them, each where it belongs, and escape what they quote."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from specalign.acceptance.metrics import Acceptance, Difference, Interval
from specalign.acceptance.report import Measured, as_json, format_json, format_measured, write_html
from specalign.acceptance.report.html import BOTTOM, HEIGHT, LEFT, WIDTH, curve, render, x_of, y_of
from specalign.acceptance.table import LoopCheck, Row, Table

HOSTILE = "<b>\"&'</b>"


def figures(length: float, *rates: float) -> Acceptance:
    return Acceptance(80, 1000, 2000, 1001, 4000, Interval(length, length - 0.1, length + 0.2), rates, 1.95)


def row(name: str, length: float, told: bool | None, needed: int | None = None, *, fault: bool = True) -> Row:
    gap = 2.5 - length
    difference = None if told is None else Difference(Interval(gap, gap - 0.05, gap + 0.07), told, needed)
    teacher = (Interval(0.61, 0.6, 0.62), Interval(0.52, 0.5, 0.54))
    return Row(
        name,
        "[1, 4, 8]",
        fault,
        figures(length, 0.7, 0.5),
        difference,
        teacher,
        None if told is None else Interval(0.1, 0.0, 0.2),
    )


def measured(**changes: object) -> Measured:
    rows = (
        row("right", 2.5, None, fault=False), row("ids +1", 2.0, True), row("ids -1", 2.45, False, 321),
        row("order reversed", 2.6, False), row("random head", 1.0, True, fault=False),
    )  # fmt: skip
    loops = (LoopCheck("right", 8, ()), LoopCheck("ids +1", 9, ("p1", "p2", "p3", "p4")))
    return Measured(Table(rows, loops, 2, 64), "the target", "the draft", "prompts.jsonl", {"torch": "9.9"}, 61.4, **changes)  # type: ignore[arg-type]


def line_of(text: str, name: str) -> str:
    (found,) = [line for line in text.splitlines() if line.startswith(name + "  ")]
    return found


def test_the_text_says_each_row_with_its_verdict() -> None:
    text = format_measured(measured())
    assert line_of(text, "right").endswith("  0.61 0.52")
    assert re.search(
        r"\[1, 4, 8\] +2\.000 \[1\.900, 2\.200\] +0\.500 \[0\.450, 0\.570\] +0\.70 0\.50 +0\.61 0\.52 +told apart$",
        line_of(text, "ids +1"),
    )
    assert line_of(text, "ids -1").endswith("  not told apart (about 321 prompts would do)")
    assert line_of(text, "order reversed").endswith("  not told apart")
    assert line_of(text, "random head").endswith("0.61 0.52")  # a control has no verdict
    assert "80 prompts, 64 new tokens, greedy, chains of 2 drafts: a length lies between 1 and 3" in text
    assert text.count("torch 9.9") == 1
    assert "61 s" in text


def test_the_text_says_what_the_loop_found_and_every_problem() -> None:
    text = format_measured(measured())
    assert "real loop, 'right': 8 prompts, the same rounds as in the replay" in text
    assert "real loop, 'ids +1': 9 prompts, OTHER rounds on 4: p1, p2, p3\n" in text
    assert [line.split("'")[1] for line in text.splitlines() if line.startswith("PROBLEM: '")] == ["ids -1", "order reversed"]
    assert "PROBLEM: the real loop and the replay count different rounds for 'ids +1' on 4 of 9 prompts" in text


def test_the_json_has_each_figure_under_its_name() -> None:
    found = as_json(measured())
    assert (found["schema"], found["ok"], found["depth"], found["new_tokens"]) == ("specalign.acceptance/1", False, 2, 64)
    assert len(found["problems"]) == 3
    assert found["loops"][1] == {"row": "ids +1", "prompts": 9, "differing": ["p1", "p2", "p3", "p4"]}
    right, shifted, vague = found["rows"][0], found["rows"][1], found["rows"][2]
    counted = ("prompts", "rounds", "tokens", "accepted", "proposed", "tokens_per_target_step")
    assert [right[name] for name in counted] == [80, 1000, 2000, 1001, 4000, 1.95]
    assert (right["fault"], right["told_apart"], right["right_minus_row"], right["teacher_right_minus_row"]) == (
        False,
        None,
        None,
        None,
    )
    assert (shifted["fault"], shifted["told_apart"], shifted["prompts_needed"]) == (True, True, None)
    assert shifted["length"] == pytest.approx({"value": 2.0, "low": 1.9, "high": 2.2})
    assert shifted["right_minus_row"] == pytest.approx({"value": 0.5, "low": 0.45, "high": 0.57})
    assert (vague["told_apart"], vague["prompts_needed"]) == (False, 321)
    assert json.loads(format_json(measured())) == found


def test_a_table_without_a_problem_is_ok_in_json() -> None:
    clean = measured()
    clean = dataclasses.replace(
        clean, table=dataclasses.replace(clean.table, rows=clean.table.rows[:2], loops=clean.table.loops[:1])
    )
    assert as_json(clean)["ok"]
    assert as_json(clean)["problems"] == []


def test_a_figure_that_is_no_number_is_no_json() -> None:
    bad = measured()
    broken = dataclasses.replace(bad.table.rows[1], acceptance=figures(float("nan"), 0.5))
    with pytest.raises(ValueError, match="not JSON compliant"):
        format_json(dataclasses.replace(bad, table=dataclasses.replace(bad.table, rows=(bad.table.rows[0], broken))))


def test_the_curve_has_position_1_on_the_left_and_a_share_of_1_on_top() -> None:
    assert [x_of(step, 4) for step in (1, 2, 3, 4)] == [102.5, 227.5, 352.5, 477.5]  # eighths of 500 pixels right of 40
    assert LEFT < x_of(1, 4) < x_of(4, 4) < WIDTH
    assert (y_of(0.0), y_of(0.5), y_of(1.0)) == (HEIGHT - BOTTOM, 113.0, 12.0)
    found = curve(row("ids +1", 2.0, True), 2)
    assert found["dots"] == [(x_of(1, 2), y_of(0.7)), (x_of(2, 2), y_of(0.5))]
    assert found["points"] == " ".join(f"{x},{y}" for x, y in found["dots"])
    assert [curve(one, 2)["kind"] for one in measured().table.rows] == ["right", "fault", "fault", "fault", "control"]


def test_the_page_has_bars_from_1_to_the_longest_and_every_verdict(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    write_html(measured(), tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text("utf-8")
    # The longest bound is 2.8: a length of 2 is 1 / 1.8 of the way from 1, its interval 0.9 to 1.2 of it.
    bars = re.findall(
        r'class="fill" style="width: ([\d.-]+)%"></div><div class="range" style="left: ([\d.-]+)%; width: ([\d.-]+)%"', page
    )
    assert [tuple(map(float, bar)) for bar in bars][1] == pytest.approx((100 / 1.8, 90 / 1.8, 30 / 1.8), abs=0.02)
    assert re.findall(r'<tr class="(\w+)">', page) == ["right", "fault", "fault", "fault", "control"]
    assert page.count("<td>told apart</td>") == 1
    assert "<td>not told apart (about 321 prompts would do)</td>" in page
    assert page.count('class="problem"') == 3
    assert "OTHER rounds on 4" in page
    assert page.count("<polyline ") == 5
    assert "Every fault is told apart" not in page


def test_a_row_without_drafts_has_no_curve_and_a_lone_right_row_claims_nothing() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    found = measured()
    nothing = dataclasses.replace(row("no drafting", 1.0, True, fault=False), acceptance=figures(1.0))
    both = dataclasses.replace(found, table=dataclasses.replace(found.table, rows=(found.table.rows[0], nothing), loops=()))
    assert render(both).count("<polyline ") == 1
    assert "Every fault is told apart" in render(both)
    alone = render(dataclasses.replace(both, table=dataclasses.replace(both.table, rows=both.table.rows[:1])))
    assert "Every fault is told apart" not in alone
    assert "Only the right way was measured" in alone


def test_whatever_a_page_quotes_is_escaped() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    hostile = dataclasses.replace(row(HOSTILE, 2.45, False), states=HOSTILE)
    table = Table((hostile, hostile), (LoopCheck(HOSTILE, 2, (HOSTILE,)),), 2, 64)
    page = render(Measured(table, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, 1.0))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page

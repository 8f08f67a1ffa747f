"""The gate on an engine's figures, whose true rates are known: equal heads pass, drops are stopped, and what proves nothing is no pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round, Served, measure, read_served
from specalign.acceptance.golden_file import AcceptanceGolden, KnownRow, golden_of
from specalign.acceptance.metrics import Interval
from specalign.acceptance.served_gate import format_served_verdict, judge_served
from tests.unit.acceptance.made_runs import DEAD, PAIR, RIGHT, SHIFTED, UNNORMED, drawn, table


@pytest.fixture(scope="module")
def golden() -> AcceptanceGolden:
    return golden_of(table(), PAIR)


def served(run: Sequence[PromptRounds], **changes: object) -> Served:
    """What an engine tells of these rounds."""
    found = measure(run)
    length = found.length.value
    plain = Served(
        "vLLM", "counters", length, length, length, found.per_position, found.rounds, found.accepted, found.proposed, "as it is"
    )
    return dataclasses.replace(plain, **changes)


def test_equal_heads_pass_but_for_the_false_alarms_that_the_level_allows(golden: AcceptanceGolden) -> None:
    """2.5% for the length and 2.5% for all positions; both runs are on prompts drawn anew, which the golden's variance covers."""
    alarms, runs = 0, 120
    for seed in range(runs):
        mine = dataclasses.replace(golden, counts=tuple(drawn(2000 + seed, RIGHT, of=4000 + seed)))
        right = dataclasses.replace(golden.rows[0], length=measure(mine.counts).length)
        mine = dataclasses.replace(mine, rows=(right, *golden.rows[1:]))
        alarms += not judge_served(mine, served(drawn(6000 + seed, RIGHT, of=8000 + seed))).ok
    assert alarms / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_the_error_of_fewer_rounds_is_that_of_the_golden_scaled(golden: AcceptanceGolden) -> None:
    """A quarter of the rounds: the error of prompts drawn is twice as large, as the spread of such draws says by itself."""
    run, rng = golden.counts, np.random.default_rng(0)
    draws = [
        measure([dataclasses.replace(run[at], name=str(i)) for i, at in enumerate(rng.integers(0, 80, 20))]) for _ in range(300)
    ]
    spread = float(np.std([one.length.value for one in draws]))
    rounds = measure(run).rounds // 4
    verdict = judge_served(golden, served(run, rounds=rounds, proposed=4 * rounds))
    told = (verdict.length.high - verdict.length.value) / 1.96
    assert told == pytest.approx(spread, rel=0.15)
    full = judge_served(golden, served(run))
    assert told == pytest.approx(2 * (full.length.high - full.length.value) / 1.96, rel=0.01)
    assert verdict.visible == pytest.approx(1.96 * math.hypot(told, told / 2), rel=0.01)


@pytest.mark.parametrize(("name", "chances"), [("norm before fc ignored", UNNORMED), ("ids +1", SHIFTED)])
def test_a_drop_is_stopped_and_named(golden: AcceptanceGolden, name: str, chances: tuple[float, ...]) -> None:
    for seed in range(10):
        found = judge_served(golden, served(drawn(7000 + seed, chances, of=9000 + seed)))
        assert found.drop.low > 0
        assert found.looks_like[:1] == (name,), seed
    text = format_served_verdict(found)
    assert text.startswith("FAIL: vLLM's acceptance length ")
    assert "the acceptance length dropped by" in text
    assert "the rate of position 1 dropped by" in text
    assert f"looks like: {name}" in text


def test_a_pass_says_that_prompts_are_not_paired(golden: AcceptanceGolden) -> None:
    text = format_served_verdict(judge_served(golden, served(golden.counts)))
    assert text.startswith("PASS: ")
    assert "note: prompts are not paired" in text
    assert "by position +0.000 +0.000 +0.000 +0.000" in text
    assert "do not tell how many drafts" not in text


def test_a_drop_just_beyond_the_error_fails_and_one_just_within_passes(golden: AcceptanceGolden) -> None:
    right, visible = golden.rows[0].length.value, judge_served(golden, served(golden.counts)).visible
    for part, ok in ((0.99, True), (1.01, False)):
        length = right - part * visible
        found = judge_served(golden, served(golden.counts, length=length, low=length, high=length, per_position=()))
        assert found.ok is ok
        assert [problem.concern for problem in found.found] == ([] if ok else ["length"])


def test_a_rise_is_no_drop(golden: AcceptanceGolden) -> None:
    assert judge_served(golden, served(drawn(1, (0.8, 0.8, 0.8, 0.8)))).ok


def test_a_drop_at_one_late_position_is_seen_there(golden: AcceptanceGolden) -> None:
    rates = list(measure(golden.counts).per_position)
    rates[2] -= 0.1
    rates[3] = min(rates[3], rates[2])
    found = judge_served(golden, served(golden.counts, per_position=tuple(rates)))
    assert [problem.concern for problem in found.found] == ["position 3"]


def test_a_position_that_the_engine_does_not_tell_is_not_judged_and_that_is_said(golden: AcceptanceGolden) -> None:
    found = judge_served(golden, served(golden.counts, per_position=()))
    assert found.ok
    assert found.position_drops == ()
    assert "positions not told" in format_served_verdict(found)


def test_a_dead_head_does_not_clear_the_floor(golden: AcceptanceGolden) -> None:
    concerns = [problem.concern for problem in judge_served(golden, served(drawn(3, DEAD))).found]
    assert {"length", "position 1", "dead control"} <= set(concerns)


def test_too_few_rounds_prove_nothing_and_fail(golden: AcceptanceGolden) -> None:
    per_prompt = measure(golden.counts).rounds / 80
    few = judge_served(golden, served(golden.counts, rounds=int(5 * per_prompt), proposed=4 * int(5 * per_prompt)))
    assert any("fewer than 6 prompts of the golden have" in problem.text for problem in few.found)
    enough = math.ceil(6 * per_prompt)
    assert judge_served(golden, served(golden.counts, rounds=enough, proposed=4 * enough)).ok


def test_figures_that_would_pass_a_dead_head_have_no_teeth(golden: AcceptanceGolden) -> None:
    near = dataclasses.replace(golden.dead, length=dataclasses.replace(golden.dead.length, value=2.2))
    blunt = dataclasses.replace(golden, rows=(*golden.rows[:-1], near))
    assert [problem.concern for problem in judge_served(blunt, served(golden.counts)).found] == ["prompts"]


def test_without_a_number_of_rounds_nothing_is_concluded(golden: AcceptanceGolden) -> None:
    with pytest.raises(AcceptanceError, match="how many rounds these figures are of is not known"):
        judge_served(golden, served(golden.counts, rounds=None))
    recorded = Path(__file__).parent / "served" / "sglang.log"
    with pytest.raises(AcceptanceError, match="give counters or the figures of responses"):
        judge_served(golden, read_served(str(recorded)))


def test_bounds_that_hold_a_drop_and_none_are_refused_and_narrow_ones_are_not(golden: AcceptanceGolden) -> None:
    right = golden.rows[0].length.value
    wide = served(golden.counts, length=None, low=right - 0.6, high=right, per_position=())
    with pytest.raises(AcceptanceError, match="these figures tell neither"):
        judge_served(golden, wide)
    narrow = judge_served(golden, served(golden.counts, length=None, low=right - 0.05, high=right, per_position=()))
    assert narrow.ok
    assert narrow.length.value == pytest.approx(right - 0.025)
    dropped = judge_served(golden, served(golden.counts, length=None, low=right - 0.9, high=right - 0.5, per_position=()))
    assert [problem.concern for problem in dropped.found] == ["length"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proposed": 3}, "proposed 3.00 drafts a round, and the golden is of chains of 4"),
        ({"proposed": 5}, "5.00 drafts a round"),
        ({"proposed": None, "per_position": (0.6, 0.5, 0.4, 0.3, 0.2)}, "proposed 5 positions"),
    ],
)
def test_another_depth_is_refused(golden: AcceptanceGolden, changes: dict[str, object], message: str) -> None:
    figures = served(golden.counts, **changes)
    if figures.proposed and figures.rounds:
        figures = dataclasses.replace(figures, proposed=figures.proposed * figures.rounds)
    with pytest.raises(AcceptanceError, match=message):
        judge_served(golden, figures)


def test_rounds_that_were_cut_short_are_of_the_golden_depth_and_an_unknown_depth_is_told(golden: AcceptanceGolden) -> None:
    whole = served(golden.counts)
    assert whole.proposed is not None
    assert judge_served(golden, dataclasses.replace(whole, proposed=whole.proposed - 5)).ok
    unknown = judge_served(golden, dataclasses.replace(whole, proposed=None))
    assert unknown.ok
    assert "do not tell how many drafts a chain has: serve the pair with the golden's 4" in format_served_verdict(unknown)


def test_positions_share_one_level(golden: AcceptanceGolden) -> None:
    """Of four positions each has 2.5% / 4 on the side of a drop: 2.498 standard errors in place of 1.960."""
    rates = measure(golden.counts).per_position
    four, one = (judge_served(golden, served(golden.counts, per_position=rates[:told])) for told in (4, 1))
    wide, narrow = four.position_drops[0], one.position_drops[0]
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2.498 / 1.960, rel=1e-3)


def test_prompts_that_all_agree_still_have_the_error_of_their_rounds() -> None:
    """80 prompts with the same two rounds, 3 tokens and 1: their spread is 0, that of 160 rounds 1 / sqrt(160) = 0.0791."""
    counts = tuple(PromptRounds(f"p{i}", (Round(2, 2, 3), Round(2, 0, 1))) for i in range(80))
    figures = measure(counts)
    dead = KnownRow("random head", False, Interval(1.0, 1.0, 1.0), (0.0,))
    right = KnownRow("right", False, figures.length, figures.per_position)
    alike = AcceptanceGolden(PAIR, 2, 5, counts, (right, dead))
    assert figures.length.low == figures.length.high
    found = judge_served(alike, served(counts))
    assert found.visible == pytest.approx(1.96 * math.hypot(0.0791, 0.0791), rel=1e-3)
    half = found.position_drops[0]  # a rate of a half: 0.5 / sqrt(160) = 0.0395 on each side, at 2.241 of them for two positions
    assert (half.high - half.low) / 2 == pytest.approx(2.2414 * math.hypot(0.0395, 0.0395), rel=2e-3)


def test_the_length_is_the_one_that_the_engine_gives_though_its_bounds_are_wider(golden: AcceptanceGolden) -> None:
    right = golden.rows[0].length.value
    assert judge_served(golden, served(golden.counts, low=right - 0.04)).length.value == pytest.approx(right)

"""Each rule of the gate by itself, at the value where it turns."""

from __future__ import annotations

import dataclasses

import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round, measure
from specalign.acceptance.gate import Problem, check_settings, cleared, dropped, format_verdict, judge, toothless
from specalign.acceptance.golden_file import AcceptanceGolden, KnownRow, golden_of
from specalign.acceptance.likeness import error_of, looks_like, spread
from specalign.acceptance.metrics import Interval
from tests.unit.acceptance.made_runs import PAIR, RIGHT, UNNORMED, drawn, table

DEAD = Interval(0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def golden() -> AcceptanceGolden:
    return golden_of(table(), PAIR)


def by_hand(counts: dict[str, list[Round]], dead: Interval = DEAD) -> AcceptanceGolden:
    """A golden of these rounds."""
    made = tuple(PromptRounds(name, tuple(rounds)) for name, rounds in counts.items())
    figures = measure(made)
    rows = (KnownRow("right", False, figures.length, figures.per_position), KnownRow("random head", False, dead, (0.0,)))
    return AcceptanceGolden(PAIR, 2, 9, made, rows)


ALL, HALF, NONE = Round(2, 2, 3), Round(2, 1, 2), Round(2, 0, 1)


@pytest.mark.parametrize(("low", "high", "clears"), [(1.05, 1.04, True), (1.05, 1.05, False), (1.05, 1.06, False)])
def test_a_length_clears_the_dead_control_by_its_lower_bound_over_the_upper_one(low: float, high: float, clears: bool) -> None:
    assert (not list(cleared(Interval(1.3, low, 1.6), Interval(1.01, 1.0, high)))) is clears


def test_a_position_dropped_if_all_of_its_interval_lies_above_0_and_is_named_from_1() -> None:
    shown = [Interval(0.1, 0.01, 0.2), Interval(0.1, 0.0, 0.2), Interval(0.1, -0.01, 0.2)]
    assert [problem.concern for problem in dropped(Interval(0, 0, 0), shown, length=False)] == ["position 1"]
    assert [problem.concern for problem in dropped(Interval(0, 0, 0), shown[1:], length=True)] == ["length"]
    told = {concern: Problem(concern, "").is_drop for concern in ("length", "position 1", "dead control", "prompts")}
    assert told == {"length": True, "position 1": True, "dead control": False, "prompts": False}


def test_teeth_reach_to_half_of_what_separates_the_head_from_the_dead_control() -> None:
    golden = by_hand({f"p{i}": [ALL, NONE] for i in range(6)}, dead=Interval(1.2, 1.0, 1.4))
    assert toothless(golden, 0.4, "80 prompts") is None
    assert toothless(golden, 0.401, "80 prompts") == (
        "80 prompts show no drop below 0.401, more than half of what separates the head from a dead one (0.800): a pass would"
        " prove nothing"
    )


@pytest.mark.parametrize(("full", "empty", "enough"), [(6, 0, True), (5, 0, False), (5, 2, False), (6, 2, True)])
def test_six_prompts_with_rounds_are_enough_and_those_without_do_not_count(full: int, empty: int, enough: bool) -> None:
    golden = by_hand({f"p{i}": [ALL, HALF] if i < full else [] for i in range(full + empty)})
    problems = judge(golden, golden.counts).problems
    assert problems == (() if enough else (f"{full} prompts with rounds can show no drop, however large: give 6 at least",))


def test_what_shows_is_the_wider_of_the_golden_s_interval_and_the_paired_one(golden: AcceptanceGolden) -> None:
    right = golden.rows[0].length
    assert judge(golden, golden.counts).visible == pytest.approx(right.value - right.low)
    narrow = dataclasses.replace(golden.rows[0], length=Interval(right.value, right.value - 1e-3, right.value + 1e-3))
    found = judge(dataclasses.replace(golden, rows=(narrow, *golden.rows[1:])), drawn(7000, UNNORMED))
    assert found.visible == pytest.approx(found.drop.value - found.drop.low)


def test_positions_are_counted_from_1_each_with_the_share_of_rounds_that_accepted_so_far() -> None:
    before = by_hand({f"p{i}": [ALL, ALL, HALF, NONE] for i in range(8)})
    run = [PromptRounds(item.name, (ALL, HALF, HALF, NONE)) for item in before.counts]
    assert [item.value for item in judge(before, run).position_drops] == pytest.approx([0.0, 0.25])


def test_a_run_of_fewer_rounds_is_compared_by_share_and_a_prompt_without_any_counts_as_dropped() -> None:
    before = by_hand({f"p{i}": [ALL, ALL, HALF, NONE] for i in range(8)})
    half = [PromptRounds(item.name, (ALL, NONE)) for item in before.counts]
    assert [item.value for item in judge(before, half).position_drops] == pytest.approx([0.25, 0.0])
    gone = [*half[:7], PromptRounds("p7", ())]
    assert [item.value for item in judge(before, gone).position_drops] == pytest.approx([0.75 - 7 / 16, 0.5 - 7 / 16])


def test_positions_share_one_level() -> None:
    """With one position the interval is the 95% one of the length's shares; with four it is wider."""
    one = [
        PromptRounds(item.name, tuple(Round(1, min(r.accepted, 1), min(r.accepted, 1) + 1) for r in item.rounds))
        for item in drawn(0, RIGHT)
    ]
    alone = AcceptanceGolden(PAIR, 1, 64, tuple(one), by_hand({"p": [ALL]}).rows)
    four = AcceptanceGolden(PAIR, 4, 64, tuple(drawn(0, RIGHT)), alone.rows)
    other = drawn(1, RIGHT)
    narrow = judge(
        alone,
        [
            PromptRounds(item.name, tuple(Round(1, min(r.accepted, 1), min(r.accepted, 1) + 1) for r in item.rounds))
            for item in other
        ],
    )
    wide = judge(four, other)
    first = narrow.position_drops[0], wide.position_drops[0]
    assert first[0].value == pytest.approx(first[1].value)
    # 97.5% + 1.25% / 4 ... of a normal distribution: 2.498 standard errors in place of 1.960
    assert (first[1].high - first[1].low) / (first[0].high - first[0].low) == pytest.approx(2.498 / 1.960, rel=0.05)


def test_a_rise_is_one_whose_whole_interval_lies_below_0(golden: AcceptanceGolden) -> None:
    found = judge(golden, golden.counts)
    for low, high, rose in ((-0.3, -0.1, True), (-0.3, 0.1, False), (-0.3, 0.0, False)):
        assert dataclasses.replace(found, drop=Interval(-0.2, low, high)).rose is rose
    up = dataclasses.replace(found, drop=Interval(-0.2, -0.3, -0.1))
    assert "it rose by 0.200: write a new golden" in format_verdict(up)
    assert "it rose" not in format_verdict(dataclasses.replace(up, found=(Problem("prompts", "too few"),)))


def test_a_pass_looks_like_no_fault_and_says_nothing_of_any(golden: AcceptanceGolden) -> None:
    close = dataclasses.replace(
        golden, rows=(golden.rows[0], dataclasses.replace(golden.rows[0], name="twin", fault=True), *golden.rows[1:])
    )
    found = judge(close, close.counts)
    assert found.looks_like == ()
    assert "looks like" not in format_verdict(found)
    assert "twin" in format_verdict(dataclasses.replace(found, found=(Problem("prompts", "few"),), looks_like=("twin",)))


def test_settings_are_compared_in_both_directions(golden: AcceptanceGolden) -> None:
    with pytest.raises(AcceptanceError, match="dtype: float32 here, None there"):
        check_settings(golden, PAIR | {"dtype": "float32"}, 4, 64)
    with pytest.raises(AcceptanceError, match="weights: None here, abc there"):
        check_settings(golden, {key: value for key, value in PAIR.items() if key != "weights"}, 4, 64)
    with pytest.raises(AcceptanceError, match="new tokens: 65 here, 64 there"):
        check_settings(golden, PAIR, 4, 65)


def known(name: str, length: float, *rates: float, fault: bool = True) -> KnownRow:
    return KnownRow(name, fault, Interval(length, length - 0.098, length + 0.098), rates)  # a standard error of 0.05


def test_likeness_is_two_standard_errors_of_the_difference_and_the_nearest_is_first() -> None:
    length = Interval(2.0, 1.902, 2.098)
    near = 0.05 * 2**0.5  # of the difference of two such lengths
    rows = [
        known("far", 2 + 2.02 * near),
        known("second", 2 - 1.98 * near),
        known("first", 2 + 1.2 * near),
        known("right", 2.0, fault=False),
    ]
    assert looks_like(rows, length, (), 1000) == ("first", "second")
    assert error_of(length) == pytest.approx(0.05)


def test_likeness_looks_at_rates_too_with_errors_as_wide_as_the_length_s() -> None:
    """Of 1000 independent rounds a rate of a half differs from another by 0.0224 in one standard error."""
    rates = (0.5, 0.25)
    alone = spread(rates) / 1000**0.5
    assert spread(rates) == pytest.approx(0.829, abs=1e-3)  # 0, 1, 2 with 1/2, 1/4, 1/4
    length = Interval(1.75, 1.75 - 1.96 * alone, 1.75 + 1.96 * alone)
    for gap, like in ((1.98, True), (2.02, False)):
        row = known("fault", 1.75, 0.5 + gap * 0.02236, 0.25)
        assert looks_like([row], length, rates, 1000) == (("fault",) if like else ()), gap
    twice = Interval(1.75, 1.75 - 2 * 1.96 * alone, 1.75 + 2 * 1.96 * alone)  # prompts that differ widen both alike
    assert looks_like([known("fault", 1.75, 0.5 + 3.9 * 0.02236, 0.25)], twice, rates, 1000) == ("fault",)
    half = Interval(1.75, 1.75 - 0.98 * alone, 1.75 + 0.98 * alone)  # narrower than independent rounds is chance: no narrowing
    assert looks_like([known("fault", 1.75, 0.5 + 1.98 * 0.02236, 0.25)], half, rates, 1000) == ("fault",)

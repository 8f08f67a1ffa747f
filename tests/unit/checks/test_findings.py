"""Every finding code is raised by the pair that has the fault, with its figures, and not by the mended pair."""

from __future__ import annotations

import re

import pytest

from specalign.layer_ids.findings import CODES, CONCERNS, Finding, Severity, finding
from specalign.layer_ids.preflight import CheckReport
from tests.unit.checks.scenarios import Scenario
from tests.unit.checks.table import SCENARIOS
from tests.unit.test_example_heads import HEADS, report_of


def is_text(text: str, wanted: str) -> bool:
    """Equal; a wanted text that ends in … need only begin so."""
    return text.startswith(wanted[:-1]) if wanted.endswith("…") else text == wanted


def test_every_code_has_one_scenario() -> None:
    assert sorted(s.code for s in SCENARIOS) == sorted(CODES)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_the_fault_is_found_with_its_figures(scenario: Scenario) -> None:
    found = [f for f in scenario.report().findings if f.code == scenario.code and f.engine == scenario.engine]
    assert found, f"no {scenario.code}"
    assert found[0].severity.value == scenario.severity
    assert is_text(found[0].where, scenario.where), found[0].where
    assert is_text(found[0].how_much, scenario.how_much), found[0].how_much
    assert scenario.says in found[0].what
    assert scenario.advice in found[0].next


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_the_mended_pair_does_not_have_it(scenario: Scenario) -> None:
    assert scenario.code not in {
        f.code for f in scenario.mended_report().findings if f.engine in (None, *scenario.mended_engines, scenario.engine)
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_every_finding_of_a_scenario_is_whole(scenario: Scenario) -> None:
    assert [f.format() for f in scenario.report().findings if not is_whole(f, scenario.report())] == []


@pytest.mark.parametrize("head", HEADS)
def test_every_finding_about_a_published_head_is_whole(head: str) -> None:
    assert [f.format() for f in report_of(head).findings if not is_whole(f, report_of(head))] == []


def is_whole(f: Finding, report: CheckReport) -> bool:
    """What, where and what next are there, nothing is missing in their midst, and the engine is one that was asked for."""
    texts = (f.what, f.where, f.next, f.how_much)
    unasked = f.engine is not None and f.engine not in {view.label for view in report.views}
    holes = any(re.search(r"(?<!ids )\bNone\b|\(\)|  |^,|, ,", text) for text in texts)
    return bool(f.what and f.where and f.next) and not unasked and not holes and isinstance(f.severity, Severity)


def test_concerns_are_those_of_the_table() -> None:
    assert {concern for concern, _ in CODES.values()} == set(CONCERNS)


def test_a_finding_is_two_or_three_lines_and_has_its_figures_in_brackets() -> None:
    plain = finding("rope-conflict", Severity.ERROR, "what", where="where", next="next")
    figures = finding("rope-conflict", Severity.INFO, "what", where="where", next="next", how_much="1 against 2")
    assert plain.format() == "error rope-conflict: what\n    at where\n    next: next"
    assert figures.format() == "info rope-conflict: what (1 against 2)\n    at where\n    next: next"
    assert (plain.engine, plain.how_much, plain.concern) == (None, "", "settings")


def test_a_strangers_text_stays_on_one_line_and_keeps_what_can_be_printed() -> None:
    stranger = finding("rope-conflict", Severity.ERROR, "é\n", where="日\x1b", next="a\tb", how_much="\u2028")
    assert (stranger.what, stranger.where, stranger.next, stranger.how_much) == ("é\\n", "日\\x1b", "a\\tb", "\\u2028")


def test_a_code_outside_the_table_is_our_own_bug() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", Severity.ERROR, "x", where="y", next="z")

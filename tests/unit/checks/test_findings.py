"""Every finding code is raised by the pair that has the fault, with its figures, and not by the mended pair."""

from __future__ import annotations

import pytest

from specalign.layer_ids.findings import CODES, CONCERNS, Severity, finding
from tests.unit.checks.scenarios import SCENARIOS, Scenario


def test_every_code_has_a_scenario() -> None:
    assert {s.code for s in SCENARIOS} == set(CODES)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_the_fault_is_found_with_its_figures(scenario: Scenario) -> None:
    found = [f for f in scenario.report().findings if f.code == scenario.code and f.engine == scenario.engine]
    assert found, f"no {scenario.code}"
    assert found[0].severity.value == scenario.severity
    assert scenario.says in found[0].format()
    assert found[0].where
    assert found[0].next


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_the_mended_pair_does_not_have_it(scenario: Scenario) -> None:
    assert scenario.code not in {
        f.code for f in scenario.mended_report().findings if f.engine in (None, *scenario.mended_engines, scenario.engine)
    }


def test_concerns_are_those_of_the_table() -> None:
    assert {concern for concern, _ in CODES.values()} == set(CONCERNS)


def test_a_code_outside_the_table_is_our_own_bug() -> None:
    with pytest.raises(KeyError):
        finding("no-such-code", Severity.ERROR, "x", where="y", next="z")

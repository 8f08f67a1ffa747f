"""Each public fault of layer-id code is caught by its contract, under its right name; the right code passes."""

from __future__ import annotations

import pytest

from pytest_specalign.contracts.config_faults import KNOWN_CONFIG_FAULTS
from pytest_specalign.contracts.known_faults import KNOWN_FAULTS
from tests.faults import table
from tests.faults.mutant import UNKNOWN
from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.runner import run_broken, run_right

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
ALL_FAULTS = {fault.name: fault for fault in (*KNOWN_FAULTS, *KNOWN_CONFIG_FAULTS)}


@each_mutant
def test_the_contract_fails_and_names_the_fault(mutant: Mutant) -> None:
    result = run_broken(mutant)
    assert mutant.killed_by in result.failed, result.format()
    headline, *details = result.failed[mutant.killed_by].splitlines()
    assert any("next: " in line for line in details)
    if mutant.diagnosis == UNKNOWN:
        assert f"  looks like: {UNKNOWN}" in details
        return
    assert headline.endswith(f": {mutant.diagnosis}"), result.failed[mutant.killed_by]
    assert any("looks like: " + ALL_FAULTS[mutant.diagnosis].format() in line for line in details)


@each_mutant
def test_the_contract_passes_on_the_right_implementation(mutant: Mutant) -> None:
    result = run_right(mutant)
    assert result.ok, result.format()


def test_every_known_fault_has_a_mutant() -> None:
    assert set(ALL_FAULTS) == {mutant.diagnosis for mutant in MUTANTS} - {UNKNOWN}


def test_every_id_related_row_of_the_fault_list_has_a_mutant() -> None:
    rows = {mutant.row for mutant in MUTANTS}
    assert rows >= {"1", "2", "3", "4", "6", "8", "15", "16", "17", "19", "20", "28", "29", "31", "37", "40", *"afghil"}


def test_the_table_has_a_line_for_each_mutant_and_what_killed_it() -> None:
    lines = table.lines(MUTANTS[:2])
    assert "sglang issue #32226" in "\n".join(lines)
    assert "test_matches_the_rule" in "\n".join(lines)
    assert not any("SURVIVED" in line for line in lines)


def test_the_table_shows_a_mutant_that_survives() -> None:
    harmless = Mutant(**{**vars(MUTANTS[0]), "broken": {}})
    assert any("SURVIVED" in line for line in table.lines((harmless,)))

"""Each known fault of routing is caught by its contract, under its right name; routing written by hand passes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pytest_specalign.contracts.routing_faults import KNOWN_ROUTING_FAULTS, OTHER_ROUTING_FAULTS
from tests.faults import torch_runner
from tests.faults.mutant import Mutant
from tests.faults.routing_mutants import ROUTING_MUTANTS
from tests.faults.runner import run_right

FORMATS = {fault.format() for fault in (*KNOWN_ROUTING_FAULTS, *OTHER_ROUTING_FAULTS.values())}

each_mutant = pytest.mark.parametrize("mutant", ROUTING_MUTANTS, ids=lambda mutant: mutant.what.replace(" ", "-"))


@each_mutant
def test_the_contract_fails_and_names_the_fault(mutant: Mutant) -> None:
    message = torch_runner.killing_message(mutant)
    assert message is not None
    headline, *details = message.splitlines()
    assert headline.endswith(f": {mutant.diagnosis}"), message
    assert any("next: " in line for line in details)
    assert any(line.removeprefix("  looks like: ") in FORMATS for line in details), message


@each_mutant
def test_the_contract_passes_on_the_right_implementation(mutant: Mutant) -> None:
    result = run_right(mutant)
    assert result.ok, result.format()
    assert mutant.killed_by in result.passed, result.format()


def test_every_known_fault_has_a_mutant() -> None:
    names = {fault.name for fault in KNOWN_ROUTING_FAULTS} | set(OTHER_ROUTING_FAULTS)
    assert names == {mutant.diagnosis for mutant in ROUTING_MUTANTS}


def test_a_harmless_mutant_survives() -> None:
    harmless = Mutant(**{**vars(ROUTING_MUTANTS[0]), "broken": {}})
    assert torch_runner.killing_message(harmless) is None

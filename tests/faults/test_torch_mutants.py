"""Each public fault of capturing and of draft heads is caught by its contract, under its right name; the right code passes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pytest_specalign.contracts.capture import CaptureContract
from pytest_specalign.contracts.capture_faults import KNOWN_CAPTURE_FAULTS
from pytest_specalign.contracts.draft_faults import KNOWN_DRAFT_FAULTS, LOAD_FAULTS
from tests.faults import torch_runner
from tests.faults.capture_mutants import CAPTURE_MUTANTS
from tests.faults.draft_mutants import DRAFT_MUTANTS
from tests.faults.mutant import Mutant
from tests.faults.runner import run_right

ALL = (*CAPTURE_MUTANTS, *DRAFT_MUTANTS)
FAULTS = {fault.name: fault for fault in (*KNOWN_CAPTURE_FAULTS, *KNOWN_DRAFT_FAULTS, *LOAD_FAULTS.values())}
UNREPORTED = {"buffer-reused", "model-changed", "hooks-left-behind", "exception-swallowed"}
"""Named where they are seen: no function of a case can stand for them."""

each_mutant = pytest.mark.parametrize(
    "mutant", ALL, ids=lambda mutant: ("capture-" if mutant.contract is CaptureContract else "draft-") + mutant.id
)


@each_mutant
def test_the_contract_fails_and_names_the_fault(mutant: Mutant) -> None:
    message = torch_runner.killing_message(mutant)
    assert message is not None
    headline, *details = message.splitlines()
    assert headline.endswith(f": {mutant.diagnosis}"), message
    assert any("next: " in line for line in details)
    if mutant.diagnosis not in UNREPORTED:
        assert any("looks like: " + FAULTS[mutant.diagnosis].format() in line for line in details), message


@each_mutant
def test_the_contract_passes_on_the_right_implementation(mutant: Mutant) -> None:
    result = run_right(mutant)
    assert result.ok, result.format()


def test_every_known_fault_has_a_mutant() -> None:
    assert set(FAULTS) | UNREPORTED == {mutant.diagnosis for mutant in ALL}


def test_every_row_of_the_fault_list_about_capture_norms_heads_and_d2t_has_a_mutant() -> None:
    rows = {mutant.row for mutant in ALL}
    assert rows >= {
        "1",
        "2",
        "4",
        "6",
        "9",
        "10",
        "11",
        "12",
        "15",
        "17",
        "19",
        "21",
        "23",
        "24",
        "26",
        "31",
        "32",
        "37",
        "38",
        "40",
    }
    assert rows >= set("bdefijk")


def test_the_table_shows_what_killed_a_mutant_and_which_one_survives() -> None:
    harmless = Mutant(**{**vars(DRAFT_MUTANTS[0]), "broken": {}})
    lines = torch_runner.lines((DRAFT_MUTANTS[0], harmless))
    assert "killed by DraftNormContract.test_norm_before_fc_is_over_the_whole" in lines[1]
    assert "SURVIVED" in lines[-1]

"""Ids as the files alone state them: at one place or several, under a convention that is known or not."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.findings import Finding
from tests.unit.checks.made_up import engine, report
from tests.unit.checks.scenarios import DFLASH, HEAD, IDS, NESTED, eagle, ids

OUTPUTS, BOUNDARIES = [1, 17, 32], [2, 18, 33]


def of_files(head: dict[str, Any], code: str, **options: Any) -> list[Finding]:
    return [f for f in report(engine(), head, **options).of(None) if f.code == code]


@pytest.mark.parametrize(
    ("head", "conflicts"),
    [
        (HEAD | {"eagle_config": {IDS: [23, 29, 35]}, IDS: [24, 30, 36]}, False),
        (HEAD | {"eagle_config": {IDS: [23, 29, 35]}, IDS: [24, 30, 35]}, True),
        (HEAD, False),
        (DFLASH, False),
        (DFLASH | {"aux_hidden_state_layer_ids": BOUNDARIES}, False),
        (DFLASH | {"aux_hidden_state_layer_ids": OUTPUTS}, True),
        (DFLASH | {"text_config": {"target_layer_ids": OUTPUTS}}, False),
        (DFLASH | {"text_config": {"aux_hidden_state_layer_ids": BOUNDARIES}}, False),
        (DFLASH | {"text_config": {"aux_hidden_state_layer_ids": OUTPUTS}}, True),
        (DFLASH | {"aux_hidden_state_layer_ids": "x"}, True),
        (DFLASH | {"target_layer_ids": "x", "aux_hidden_state_layer_ids": "x"}, True),
        (DFLASH | {"target_layer_ids": [1, 17, 99]}, True),
    ],
)
def test_places_conflict_when_they_name_other_states(head: dict[str, Any], conflicts: bool) -> None:
    assert bool(of_files(head, "ids-conflict")) is conflicts


def test_ids_that_may_be_either_are_read_in_both_ways() -> None:
    says = "nothing in the config says whether the ids {} are boundaries or block outputs"
    (unknown,) = of_files(HEAD | ids([3, 19, 30]), "convention-undecidable")
    assert unknown.what == says.format([3, 19, 30])
    whole = report(engine(), HEAD | ids(OUTPUTS))
    (hint,) = of_files(HEAD | ids(OUTPUTS), "convention-undecidable")
    assert hint.what == f"{says.format(OUTPUTS)}; {whole.meaning.why}"
    assert (hint.where, hint.how_much) == (NESTED, "BOUNDARY: [1, 17, 32] or OUTPUT: [2, 18, 33]")


@pytest.mark.parametrize("head", [HEAD, DFLASH, HEAD | ids([24, -1])])
def test_ids_that_are_certain_or_invalid_are_not_undecided(head: dict[str, Any]) -> None:
    assert not of_files(head, "convention-undecidable")


def test_only_an_eagle3_head_takes_post_norm_instead() -> None:
    off = HEAD | eagle(use_aux_hidden_state=False)
    assert [f.where for f in of_files(off, "aux-state-off")] == ["use_aux_hidden_state"]
    assert not of_files(off, "aux-state-off", kind="dflash")
    assert not of_files(HEAD | eagle(use_aux_hidden_state=True), "aux-state-off")
    assert not of_files(HEAD, "aux-state-off")

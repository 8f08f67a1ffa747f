"""Whose advice a finding gives, and how bad it is for an engine that does not serve."""

from __future__ import annotations

import pytest

from specalign.layer_ids.findings import Severity
from tests.unit.checks.made_up import engine, report, the
from tests.unit.checks.scenarios import DFLASH, HEAD, NO_IDS, eagle

BARE = HEAD | NO_IDS


@pytest.mark.parametrize(
    ("remedy", "remedies", "advice"),
    [
        ("the row's", {"eagle3": "the engine's"}, "the row's"),
        ("the row's", {}, "the row's"),
        ("", {"eagle3": "the engine's", "dflash": "of another kind"}, "the engine's"),
        ("", {"dflash": "of another kind"}, "write the ids that the head was trained on into the config"),
    ],
)
def test_the_row_knows_best_then_the_engine_then_the_check(remedy: str, remedies: dict[str, str], advice: str) -> None:
    guessed = the("ids-guessed", engine({"remedy": remedy}, remedies=remedies), BARE)
    assert (guessed.next, guessed.how_much) == (advice, "")


def test_the_remedy_of_the_drafts_row_is_for_one_code() -> None:
    told = engine(draft={"supported": False, "note": "no class", "remedies": {"draft-unsupported": "R", "norm-ignored": "N"}})
    untold = engine(draft={"supported": False, "remedies": {"norm-ignored": "N"}})
    refused = the("draft-unsupported", told)
    assert (refused.next, refused.how_much, refused.where) == ("R", "no class", "architectures")
    assert the("draft-unsupported", untold).next == "convert the head to an architecture that the engine knows"


@pytest.mark.parametrize(("role", "severity"), [("server", Severity.ERROR), ("trainer", Severity.WARNING)])
def test_nothing_is_an_error_for_an_engine_that_does_not_serve(role: str, severity: Severity) -> None:
    table = engine({"captured": "the normed stream"}, role=role)
    corrupt = the("state-corrupt", table)
    assert (corrupt.severity, corrupt.engine) == (severity, "made-up==1")


@pytest.mark.parametrize("role", ["trainer", "reference"])
def test_an_engine_that_does_not_serve_is_not_asked_about_the_draft(role: str) -> None:
    draft = {"supported": False, "target_hidden_size_null": "error", "lm_head_missing": "error", "reads": {"fc_norm": ()}}
    asked = HEAD | eagle(fc_norm=True) | {"target_hidden_size": ...}
    codes = [f.code for f in report(engine(draft=draft, role=role), asked, tensors={"x": (1,)}, pp_size=2).of("made-up==1")]
    assert codes == []
    assert [f.code for f in report(engine(draft=None, role=role), DFLASH | NO_IDS).of("made-up==1")] == ["ids-not-read"]

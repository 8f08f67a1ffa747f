"""The check as a function: which engines, what they disagree on, what is ignored, what is refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.findings import CODES, Finding, Severity
from specalign.layer_ids.preflight import CheckReport, check
from tests.unit.checks.made_up import engine, report
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, NO_IDS, OLD, VLLM, draft_spec, ids, target_spec

DRAFT, TARGET = draft_spec(HEAD), target_spec(GPT_OSS)
UNDECIDED = draft_spec(HEAD | ids([3, 19, 30]))
NEW = "sglang==0.5.23"


def disagreements(draft: Any, *engines: str, **options: Any) -> list[Finding]:
    return [f for f in check(draft, TARGET, engines=engines, **options).findings if f.code == "engines-disagree"]


def test_engines_that_read_undecided_ids_alike_or_differently() -> None:
    (found,) = disagreements(UNDECIDED, NEW, VLLM, "speculators")
    assert (found.where, found.engine, found.severity) == (f"eagle_config.{IDS}", None, Severity.WARNING)
    assert found.how_much == f"[4, 20, 31]: {NEW}; [3, 19, 30]: {VLLM}, speculators==0.9.0"
    assert found.what.startswith("the same files name 2 different lists of states")
    assert disagreements(UNDECIDED, NEW) == []
    assert disagreements(UNDECIDED, VLLM, "speculators") == []


def test_a_certain_meaning_settles_the_disagreement() -> None:
    assert disagreements(UNDECIDED, NEW, VLLM, convention=Convention.BOUNDARY) == []
    assert disagreements(DRAFT, OLD, VLLM) == []


def test_defaults_that_differ_are_at_no_place_of_the_config() -> None:
    (found,) = two_defaults(draft_spec(HEAD | NO_IDS))
    assert found.where == "the engines' defaults"
    assert found.how_much == "[2, 18, 33]: made-up==1; [3, 19, 34]: made-up==2"


def two_defaults(draft: Any) -> list[Finding]:
    """Two versions of one engine, of which the second shifts its default."""
    one, two = engine({"versions": "==1"}), engine({"versions": "==2", "rule": "output_default_shifted"}, checked=("1", "2"))
    table = dataclasses.replace(two, captures=(*one.captures, *two.captures))
    found = check(draft, TARGET, engines=["made-up==1", "made-up==2"], table=table).findings
    return [f for f in found if f.code == "engines-disagree"]


@pytest.mark.parametrize("key", ["ids-shifted", "ids-shifted@sglang", f"ids-shifted@{OLD}"])
def test_a_finding_is_ignored_by_code_engine_and_version(key: str) -> None:
    kept = check(DRAFT, TARGET, engines=[OLD])
    less = check(DRAFT, TARGET, engines=[OLD], ignore={key: "known"})
    assert [(f.code, f.engine, reason) for f, reason in less.ignored] == [("ids-shifted", OLD, "known")]
    assert [f.code for f in less.findings] == [f.code for f in kept.findings if f.code != "ids-shifted"]


@pytest.mark.parametrize("key", ["ids-shifted@vllm", "ids-shifted@sglang==0.5.17", "ids-refused", "weights-not-read@sglang"])
def test_what_another_key_names_is_kept(key: str) -> None:
    assert check(DRAFT, TARGET, engines=[OLD], ignore={key: "known"}).ignored == ()


def test_a_finding_about_the_files_is_ignored_by_its_code() -> None:
    less = check(DRAFT, TARGET, engines=[NEW], ignore={"weights-not-read": "known"})
    assert [(f.code, f.engine) for f, _ in less.ignored] == [("weights-not-read", None)]
    assert less.findings == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pp_size": 0}, "pp_size must be at least 1, not 0"),
        ({"pp_size": -1}, "pp_size must be at least 1, not -1"),
        ({"ignore": {"no-such": "x"}}, f"no finding has the code 'no-such': there are {', '.join(CODES)}"),
        ({"ignore": {"no-such@sglang": "x"}}, f"no finding has the code 'no-such': there are {', '.join(CODES)}"),
        ({"ignore": {"ids-shifted": "x", "ids-refused@nosuch": "x"}}, "no engine is called 'nosuch'"),
        ({"engines": ["nosuch"]}, "no engine is called 'nosuch'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        check(DRAFT, TARGET, **options)


def test_one_stage_is_the_least_and_the_default() -> None:
    table = engine({"pipeline": "refused"})
    assert report(table, pp_size=1).findings == report(table).findings
    assert len(report(table, pp_size=2).findings) == len(report(table).findings) + 1


def test_ids_by_flag_may_be_negative_and_must_be_integers() -> None:
    flagged = check(DRAFT, TARGET, engines=["tensorrt-llm==1.3.0rc0"], flag_ids=[23, 29, -1])
    assert flagged.views[0].ids == (23, 29, -1)
    with pytest.raises(LayerIdError, match="36-layer target"):
        check(DRAFT, TARGET, engines=["tensorrt-llm"], flag_ids=[23, "x"])  # type: ignore[list-item]


def test_an_engine_that_is_named_twice_is_checked_once() -> None:
    twice = check(DRAFT, TARGET, engines=[NEW, "sglang", "SGLang==0.5.23", OLD])
    assert [view.label for view in twice.views] == [NEW, OLD]
    assert twice.findings == check(DRAFT, TARGET, engines=[NEW, OLD]).findings


def test_the_report_knows_the_family_and_sorts_findings_by_engine() -> None:
    both = check(DRAFT, TARGET, engines=[NEW, OLD])
    assert both.family == "gpt_oss"
    assert {f.engine for f in both.findings} == {None, OLD}
    assert (both.of(NEW), len(both.of(OLD)) + len(both.of(None))) == ((), len(both.findings))


@pytest.mark.parametrize(("severity", "ok"), [(Severity.ERROR, False), (Severity.WARNING, True), (Severity.INFO, True)])
def test_only_an_error_makes_the_exit_code_1(severity: Severity, ok: bool) -> None:
    one = Finding("rope-conflict", severity, "what", "where", "next")
    whole = CheckReport(DRAFT, TARGET, check(DRAFT, TARGET, engines=[NEW]).meaning, None, (), (one,))
    assert (whole.ok, whole.exit_code) == (ok, 0 if ok else 1)

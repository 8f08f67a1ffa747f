"""The three forms of a report, line by line, on engines of which each fact is made up."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.preflight import CheckReport, check
from specalign.layer_ids.report import as_json, format_github, format_text
from tests.unit.checks.made_up import engine, report
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, NESTED, NO_IDS, TENSORS, H, draft_spec, eagle, ids, target_spec

READS_IDS = {"ids_width": (IDS,)}
NORMS = {"norm_before_fc": ("eagle_config.norm_before_fc",), "fc_norm": ("eagle_config.fc_norm",)}
KIND_WHY = "LlamaForCausalLMEagle3"


def lines(whole: CheckReport) -> list[str]:
    return format_text(whole).split("\n")


def row(whole: CheckReport) -> list[str]:
    """The cells of the one row of the engine table."""
    head, cells = lines(whole)[5:7]
    starts = [head.index(name) for name in ("engine", "ids it reads", "states it captures", "fc takes/gets", "norms", "verdict")]
    return [cells[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


# -- the heading -----------------------------------------------------------------------------------------------------------


def test_the_heading_says_what_was_compared_and_what_the_ids_mean() -> None:
    whole = report(engine(), tensors=TENSORS)
    assert lines(whole)[:6] == [
        f"draft   draft  (eagle3: {KIND_WHY}; 8 tensors)",
        "target  target  (gpt_oss, 36 layers, hidden 2880, vocabulary 201088)",
        f"ids     {NESTED} = [24, 30, 36]",
        f"meant   [24, 30, 36], BOUNDARY proven: {whole.meaning.why}",
        "",
        "engine      ids it reads  states it captures  fc takes/gets  norms  verdict",
    ]


def test_the_heading_of_a_pair_of_which_little_is_known() -> None:
    target = {k: v for k, v in GPT_OSS.items() if k not in ("vocab_size", "architectures", "model_type")}
    whole = report(engine(), HEAD | NO_IDS, target)
    assert lines(whole)[:4] == [
        f"draft   draft  (eagle3: {KIND_WHY}; weights not read)",
        "target  target  (family unknown, 36 layers, hidden 2880, vocabulary unknown)",
        "ids     none in the config",
        f"meant   unknown: {whole.meaning.why}",
    ]


def test_a_declared_convention_and_invalid_ids_in_the_heading() -> None:
    declared = report(engine(), HEAD | ids([3, 19, 30]), convention=Convention.OUTPUT)
    assert lines(declared)[3].startswith("meant   [4, 20, 31], OUTPUT declared: ")
    invalid = report(engine(), HEAD | ids([24, -1]))
    assert lines(invalid)[2:4] == [f"ids     {NESTED}", "meant   unknown: the ids are invalid"]


def test_a_name_cannot_start_a_line_of_ours() -> None:
    from specalign.layer_ids.draft_config import parse_draft

    draft = parse_draft(draft_spec(HEAD).config, name="x\nok")
    whole = check(draft, target_spec(GPT_OSS), engines=["made-up"], table=engine())
    assert lines(whole)[0].startswith("draft   x\\nok  (eagle3: ")


# -- the table -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "draft", "head", "tensors", "cells"),
    [
        ({}, {}, HEAD, TENSORS, ["[24, 30, 36]", "[24, 30, 36]", "8640/8640", "-", "ok"]),
        ({}, READS_IDS, HEAD, None, ["[24, 30, 36]", "[24, 30, 36]", "8640/8640", "-", "ok"]),
        ({}, {}, HEAD, None, ["[24, 30, 36]", "[24, 30, 36]", "?/8640", "-", "ok"]),
        ({}, {}, HEAD, TENSORS | {"fc.weight": (H,)}, ["[24, 30, 36]", "[24, 30, 36]", "?/8640", "-", "ok"]),
        ({}, {}, HEAD | NO_IDS, None, ["default", "[2, 18, 33]", "?/8640", "-", "1 warning"]),
        ({}, {}, HEAD | ids("x"), None, ["unreadable", "none: ids that are no list of integers: x", "?/?", "-", "1 error"]),
        (
            {"rule": "output"},
            READS_IDS,
            HEAD,
            None,
            ["[24, 30, 36]", "[25, 31] (lost [37])", "8640/5760", "-", "3 errors"],
        ),
        (
            {"rule": "output", "unreachable": "IndexError"},
            READS_IDS,
            HEAD,
            None,
            ["[24, 30, 36]", "none: IndexError", "8640/?", "-", "1 error"],
        ),
        ({"supported": False}, {}, HEAD, None, ["default", "?", "?/?", "-", "1 error"]),
        (
            {},
            {"reads": NORMS, "both_norms": "both-applied"},
            HEAD | eagle(norm_before_fc=True, fc_norm=True),
            None,
            ["[24, 30, 36]", "[24, 30, 36]", "?/8640", "norm_before_fc + fc_norm", "1 error"],
        ),
        ({}, {}, HEAD | {"target_hidden_size": 4096}, None, ["[24, 30, 36]", "[24, 30, 36]", "?/8640", "-", "see the files"]),
    ],
)
def test_the_row_of_an_engine(capture: Any, draft: Any, head: Any, tensors: Any, cells: list[str]) -> None:
    assert row(report(engine(capture, draft), head, tensors=tensors)) == ["made-up==1", *cells]


def test_errors_and_warnings_are_counted_apart() -> None:
    table = engine({"captured": "x"}, {"weights": ("fc.*",), "reads": {"rope_theta": ()}})
    whole = report(table, HEAD | NO_IDS | {"rope_theta": 5.0}, tensors=TENSORS)
    assert row(whole)[-1] == "2 errors, 2 warnings"


# -- findings and summary --------------------------------------------------------------------------------------------------


def test_findings_stand_under_the_files_or_their_engine() -> None:
    whole = report(engine({"captured": "x", "source": "s.py"}))
    assert lines(whole)[7:] == [
        "",
        "the files:",
        "  info weights-not-read: no weight headers: nothing about tensors, fc width or d2t was checked",
        "      at draft",
        "      next: put model.safetensors beside the config, or just its first megabyte as model.safetensors.header",
        "",
        "made-up==1:",
        "  error state-corrupt: what this engine captures here is not the residual stream: x (states [24, 30, 36])",
        "      at s.py",
        "      next: use a version without the fault; no list of ids avoids it",
        "",
        "1 error, 1 info; without errors: none",
    ]


def test_ignored_findings_are_listed_with_their_reason() -> None:
    whole = report(engine({"captured": "x"}), ignore={"state-corrupt": "known", "weights-not-read": "later"})
    assert lines(whole)[7:] == [
        "",
        "ignored weights-not-read: later",
        "ignored state-corrupt (made-up==1): known",
        "no findings; without errors: made-up==1",
    ]


def summary(table: Any, head: Any = HEAD, **options: Any) -> str:
    return lines(report(table, head, **options))[-1]


def test_the_summary_counts_and_names_the_engines_without_errors() -> None:
    assert summary(engine(), tensors=TENSORS) == "no findings; without errors: made-up==1"
    assert summary(engine(), HEAD | NO_IDS) == "1 warning, 1 info; without errors: made-up==1"
    assert summary(engine({"rule": "output"}, READS_IDS)) == "3 errors, 1 info; without errors: none"
    assert summary(engine(None), tensors=TENSORS) == "1 warning; without errors: none"


def test_several_engines_without_errors_are_joined() -> None:
    three = ["sglang==0.5.23", "sglang==0.5.17", "sglang==0.5.16"]
    whole = check(draft_spec(HEAD, TENSORS), target_spec(GPT_OSS), engines=three)
    assert lines(whole)[-1].endswith("; without errors: sglang==0.5.23, sglang==0.5.17")


def test_errors_of_the_files_speak_for_every_engine() -> None:
    said = "1 error, 1 info; the files themselves have errors, whatever the engine"
    assert summary(engine(), HEAD | {"target_hidden_size": 4096}) == said


# -- JSON ------------------------------------------------------------------------------------------------------------------


def test_json_holds_the_pair() -> None:
    shown = as_json(report(engine(), tensors=TENSORS))
    assert (shown["schema"], shown["ok"], shown["exit_code"]) == ("specalign.check/1", True, 0)
    assert shown["draft"] == {
        "name": "draft",
        "kind": "eagle3",
        "kind_why": KIND_WHY,
        "architecture": KIND_WHY,
        "hidden_size": 2880,
        "vocab_size": 201088,
        "draft_vocab_size": 201088,
        "tensors": 8,
        "ids": {NESTED: [24, 30, 36], IDS: [24, 30, 36]},
    }
    assert shown["target"] == {
        "name": "target",
        "family": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "model_types": ["gpt_oss"],
        "num_layers": 36,
        "hidden_size": 2880,
        "vocab_size": 201088,
    }
    why = shown["meaning"].pop("why")
    assert shown["meaning"] == {
        "place": NESTED,
        "ids": [24, 30, 36],
        "convention": "BOUNDARY",
        "certainty": "proven",
        "states": [24, 30, 36],
        "error": None,
    }
    assert "36" in why


def test_json_holds_what_an_engine_makes_of_it() -> None:
    (shown,) = as_json(report(engine({"rule": "output", "source": "c.py"}, {"ids_width": (IDS,), "source": "d.py"})))["engines"]
    assert shown == {
        "engine": "made-up",
        "version": "1",
        "profiled": "1",
        "place": IDS,
        "ids": [24, 30, 36],
        "named": [25, 31, 37],
        "states": [25, 31],
        "lost": [37],
        "error": None,
        "fc": {"chunks": 3, "chunks_place": IDS, "width": 2880, "inputs": 8640},
        "norms": [],
        "sources": [{"source": "c.py", "grade": "I"}, {"source": "d.py", "grade": "I"}],
    }


def test_json_says_null_for_what_is_not_there() -> None:
    shown = as_json(
        report(engine(None, None, checked=("",)), HEAD | NO_IDS | {"architectures": None, "fc_norm": False}, engines=["made-up"])
    )
    assert (shown["draft"]["architecture"], shown["draft"]["tensors"], shown["draft"]["ids"]) == (None, None, {})
    assert {shown["meaning"][key] for key in ("place", "ids", "convention", "states", "error")} == {None}
    (only,) = shown["engines"]
    assert (only["version"], only["profiled"], only["ids"], only["place"], only["sources"]) == (None, None, None, None, [])


def test_json_writes_post_norm_errors_and_findings() -> None:
    off = as_json(report(engine({"rule": "hf"}), HEAD | ids([36]), convention=Convention.HF))
    assert (off["meaning"]["states"], off["engines"][0]["states"]) == (["POST_NORM"], ["POST_NORM"])
    refused = as_json(report(engine(), HEAD | ids([24, "x"]), ignore={"weights-not-read": "later"}))
    assert refused["engines"][0]["error"] == "ids that are no list of integers: [24, 'x']"
    assert "layer id 'x'" in refused["meaning"]["error"]
    (ignored,) = refused["ignored"]
    assert ignored == {
        "finding": {
            "code": "weights-not-read",
            "concern": "weights",
            "severity": "info",
            "engine": None,
            "what": "no weight headers: nothing about tensors, fc width or d2t was checked",
            "where": "draft",
            "how_much": None,
            "next": "put model.safetensors beside the config, or just its first megabyte as model.safetensors.header",
        },
        "reason": "later",
    }
    last = as_json(report(engine({"captured": "x", "source": "s.py"})))["findings"][-1]
    assert (last["engine"], last["how_much"], last["severity"]) == ("made-up==1", "states [24, 30, 36]", "error")


def test_raw_ids_are_shown_as_json_can() -> None:
    raw = [24, math.inf, -math.inf, 2.5, {"a": [math.inf], "b": 1}, "x", None]
    shown = as_json(report(engine(), HEAD | ids(raw)))["draft"]["ids"]
    assert shown[NESTED] == [24, "inf", "-inf", 2.5, {"a": ["inf"], "b": 1}, "x", None]
    assert as_json(report(engine(), HEAD | ids(math.nan)))["draft"]["ids"][IDS] == "nan"
    json.dumps(shown, allow_nan=False)


# -- GitHub ----------------------------------------------------------------------------------------------------------------


def test_annotations_have_a_level_a_file_a_title_and_an_escaped_message() -> None:
    table = engine({"captured": "100%", "source": "a.py:1,2"})
    assert format_github(report(table, HEAD), file="a:b,c%.json").split("\n") == [
        "::notice file=a%3Ab%2Cc%25.json,title=specalign weights-not-read::no weight headers: nothing about tensors, fc width or"
        " d2t was checked%0Aat draft%0Anext: put model.safetensors beside the config, or just its first megabyte as"
        " model.safetensors.header",
        "::error file=a%3Ab%2Cc%25.json,title=specalign state-corrupt (made-up==1)::what this engine captures here is not the"
        " residual stream: 100%25 (states [24, 30, 36])%0Aat a.py:1,2%0Anext: use a version without the fault; no list of ids"
        " avoids it",
    ]
    (_, warning) = format_github(report(engine(), HEAD | NO_IDS), file="a\r\nb").split("\n")
    assert warning.startswith("::warning file=a%0D%0Ab,title=specalign ids-guessed (made-up==1)::")

"""The engine table: its rows against SGLang's executed setters, and a loader that names what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specalign.integrations.sglang_drift import Outcome, expected_outcome, row_for
from specalign.layer_ids.engine_tables import EngineDataError
from specalign.layer_ids.engines import SCHEMA, dflash_even, load_engines, parse_engines
from specalign.layer_ids.target_config import TargetSpec

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "sglang_0.5.23_setters.json").read_text())["cases"]


def test_all_229_executed_setter_cases_are_what_the_profiles_say() -> None:
    assert len(CASES) == 229
    table, wrong = load_engines(), []
    for case in CASES:
        row = row_for(table, "0.5.23", case["module"], case["class"], case["kind"])
        wanted = Outcome(tuple(case["boundaries_set"]) if "boundaries_set" in case else None, case.get("error"))
        ids = None if case["ids"] is None else tuple(case["ids"])
        found = expected_outcome(row, ids, case["num_layers"]) if row is not None else "no row"
        if found != wanted:
            wrong.append(f"{case['module']}:{case['class']} {case['kind']} {ids}: {found}, executed {wanted}")
    assert wrong == []


def test_a_wrong_rule_would_be_seen() -> None:
    """The comparison can fail: GPT-OSS under plain +1 differs from its executed cases."""
    import dataclasses

    table = load_engines()
    row = row_for(table, "0.5.23", "gpt_oss", "GptOssForCausalLM", "eagle3")
    assert row is not None
    assert expected_outcome(dataclasses.replace(row, rule="output"), (24, 30, 36), 36).stored == (25, 31, 37)
    assert expected_outcome(row, (24, 30, 36), 36).stored == (24, 30, 36)


@pytest.mark.parametrize(
    ("architecture", "model_type", "family"),
    [
        ("GptOssForCausalLM", "gpt_oss", "gpt_oss"),
        ("LlamaForCausalLM", "llama", "llama"),
        ("Llama4ForConditionalGeneration", "llama4", "mllama4"),
        ("KimiK25ForConditionalGeneration", "kimi_k25", "kimi_k25"),
        ("NoSuchModel", "gpt_oss", "gpt_oss"),
        ("NoSuchModel", "no_such_type", None),
    ],
)
def test_a_target_is_recognized_by_architecture_then_by_model_type(
    architecture: str, model_type: str, family: str | None
) -> None:
    target = TargetSpec("t", (architecture,), (model_type,), 36, 64, None)
    assert load_engines().family_of(target) == family


def test_no_architecture_and_no_model_type_is_in_two_families() -> None:
    families = load_engines().families.values()
    for attribute in ("architectures", "model_types"):
        names = [name for family in families for name in getattr(family, attribute)]
        assert sorted(names) == sorted(set(names))


def test_every_checked_version_has_rows_for_a_common_pair() -> None:
    table = load_engines()
    for label in table.default_labels():
        profile = table.profile(label, kind="eagle3", family="llama", architecture="LlamaForCausalLMEagle3")
        if profile.capture is None:
            profile = table.profile(label, kind="dflash", family="llama", architecture="DFlashDraftModel")
        assert profile.capture is not None, label
        assert profile.profiled == profile.version, label


def test_every_row_has_a_source_and_none_names_a_file_outside_its_project() -> None:
    table = load_engines()
    for row in (*table.captures, *table.drafts):
        assert row.source
        assert not re.search(r"/(tmp|work|home|root)/", str(row)), row


@pytest.mark.parametrize(
    ("asked", "profiled"),
    [("sglang==0.5.23", "0.5.23"), ("sglang==0.5.15", "0.5.15"), ("sglang==0.5.20", "0.5.17"), ("sglang==0.9", "0.5.23"),
     ("sglang==0.4", "0.5.16"), ("sglang", "0.5.23"), ("SGLang==v0.5.17", "0.5.17"), ("eagle", ""), ("vllm==0.30.0", "0.24.0")],
)  # fmt: skip
def test_a_version_without_a_row_takes_the_nearest_below(asked: str, profiled: str) -> None:
    profile = load_engines().profile(asked, kind="eagle3", family="gpt_oss", architecture="LlamaForCausalLMEagle3")
    assert profile.profiled == profiled


@pytest.mark.parametrize("label", ["nosuch", "sglang==", "sglang==x.y", ""])
def test_an_engine_or_version_that_is_none_is_refused(label: str) -> None:
    with pytest.raises(EngineDataError):
        load_engines().profile(label, kind="eagle3", family=None, architecture="")


def test_the_dflash_default_is_the_published_one() -> None:
    """z-lab's Qwen3-8B-DFlash-b16 names [1, 9, 17, 25, 33] on 36 layers with 5 draft layers: the even spread."""
    assert dflash_even(36, 5) == (1, 9, 17, 25, 33)
    assert dflash_even(36, 1) == (18,)


ENGINE = '[[engine]]\nname = "e"\ntitle = "E"\nrole = "server"\nchecked = ["1"]\n'
ROW = '[[capture]]\nengine = "e"\nversions = "*"\nkinds = ["eagle3"]\nfamilies = ["*"]\nrule = "output"\nsource = "s"\ngrade = "R"\n'


def toml(*parts: str) -> dict[str, str]:
    return {"e.toml": f'schema = "{SCHEMA}"\n' + "".join(parts)}


def test_a_small_table_loads() -> None:
    assert parse_engines(toml(ENGINE, ROW)).captures[0].rule == "output"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml", "not TOML"),
        ('schema = "specalign.engines/9"', "schema"),
        (f'schema = "{SCHEMA}"\n[[surprise]]\na = 1', "surprise"),
        (toml(ENGINE, ROW, 'colour = "red"')["e.toml"], "colour"),
        (toml(ENGINE, ROW.replace('rule = "output"\n', ""))["e.toml"], "'rule' is missing"),
        (toml(ENGINE, ROW.replace('"output"', '"sideways"'))["e.toml"], "sideways"),
        (toml(ENGINE, ROW, 'reach = "m"')["e.toml"], "one of 'n'"),
        (toml(ENGINE, ROW, "stored = true")["e.toml"], "must be of type int"),
        (toml(ENGINE, ROW, 'ids_from = "top"')["e.toml"], "list of strings"),
        (toml(ENGINE, ROW, "setter = 3")["e.toml"], "must be a table"),
        (toml(ENGINE, ROW, 'place_rules = { "a" = "sideways" }')["e.toml"], "sideways"),
        (toml(ROW)["e.toml"], "no [[engine]]"),
        (toml(ENGINE, ROW.replace('"*"\nk', '"=>1"\nk'))["e.toml"], "no version range"),
        (toml(ENGINE, ROW.replace('families = ["*"]', 'families = ["gone"]'))["e.toml"], "gone"),
        (f'schema = "{SCHEMA}"\n[engine]\nname = "e"', "array of tables"),
    ],
)
def test_the_loader_names_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(EngineDataError, match=re.escape(says)):
        parse_engines({"e.toml": text})

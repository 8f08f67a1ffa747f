"""Whether an engine takes the pair at all, its norms, and its pipeline stages, on engines of which each fact is made up."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.checks.pipeline import last_stage_start
from specalign.layer_ids.findings import Severity
from tests.unit.checks.made_up import engine, found, report, the
from tests.unit.checks.scenarios import GPT_OSS, HEAD, TENSORS, H, eagle, ids

TEXT = {"model_type": "t", "num_hidden_layers": 36, "hidden_size": H}


# -- support ---------------------------------------------------------------------------------------------------------------


def test_a_version_between_two_profiled_ones_is_judged_by_the_older() -> None:
    table = engine(None, None, checked=("1", "3"))
    between = [f for f in report(table, engines=["made-up==2"]).of("made-up==2") if f.code == "version-unprofiled"]
    assert [f.where for f in between] == ["the profiles of made-up"]
    assert between[0].what == "nobody profiled made-up 2; the facts of 1 are used"
    assert between[0].next == "run `specalign engines verify --wheel` on the wheel of 2, or check against 1"
    assert not found("version-unprofiled", table)


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({}, "GptOssForCausalLM"),
        ({"architectures": ["A", "B"]}, "A"),
        ({"architectures": [], "model_type": "m", "num_hidden_layers": None, "text_config": TEXT}, "m, t"),
        ({"architectures": [], "model_type": None}, "unknown"),
    ],
)
def test_the_target_is_named_by_what_its_config_says(target: dict[str, Any], named: str) -> None:
    none = the("target-unprofiled", engine(None), HEAD, GPT_OSS | target)
    assert none.what == f"no profile says what this engine does with eagle3 ids on {named}"
    assert none.severity is Severity.WARNING
    some = the("target-unsupported", engine({"supported": False, "source": "x.py"}), HEAD, GPT_OSS | target)
    assert some.what == f"this engine has no eagle3 capture for {named}: the model lacks the interface"
    assert (some.where, some.next) == ("x.py", "serve this pair with an engine or version that supports it")


def test_the_reason_and_the_remedy_of_the_row_are_given() -> None:
    some = the("target-unsupported", engine({"supported": False, "note": "no setter", "remedy": "R"}))
    assert some.what.endswith(": no setter")
    assert some.next == "R"


@pytest.mark.parametrize(("architectures", "named"), [(["OtherEagle3"], "OtherEagle3"), (None, "none stated")])
def test_the_draft_is_named_by_its_architecture(architectures: list[str] | None, named: str) -> None:
    head = HEAD | {"architectures": architectures}
    unknown = the("draft-unprofiled", engine(draft=None), head)
    refused = the("draft-unsupported", engine(draft={"supported": False, "note": "no class"}), head)
    assert f"eagle3 heads of the architecture {named}: norms" in unknown.what
    assert refused.what == f"the engine cannot load eagle3 heads of the architecture {named}"
    assert (unknown.where, refused.where, refused.how_much) == ("architectures", "architectures", "no class")


def test_a_head_served_as_eagle_hears_what_happens() -> None:
    effect = engine(draft={"served_as_eagle": "fc is skipped", "remedies": {"eagle3-served-as-eagle": "R"}})
    told = the("eagle3-served-as-eagle", effect, kind="eagle")
    assert told.what == "a head of kind eagle3 served with the algorithm EAGLE: fc is skipped"
    assert (told.where, told.next) == ("the speculative algorithm", "R")
    for table in (engine(), engine(draft=None)):
        untold = the("eagle3-served-as-eagle", table, kind="eagle")
        assert untold.what == "a head of kind eagle3 served with the algorithm EAGLE"
        assert untold.next == "serve it with the algorithm EAGLE3"


def test_a_real_eagle_head_and_a_trainer_are_left_alone() -> None:
    eagle_1 = {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": H, "vocab_size": 201088}
    other = {"architectures": ["Other"], "hidden_size": H, "vocab_size": 201088}
    for head in (eagle_1, other):
        assert report(engine(), head, kind="eagle").of("made-up==1") == ()
    assert report(engine(role="trainer"), kind="eagle").of("made-up==1") == ()


# -- norms -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["norm_before_fc", "fc_norm", "norm_output", "norm_before_residual"])
@pytest.mark.parametrize(
    ("wanted", "draft", "how_much"),
    [
        (True, {"reads": ()}, "true against false"),
        (False, {"reads": (), "default": True}, "false against true"),
        (True, {"reads": (), "default": True}, None),
        (False, {"reads": ()}, None),
        (True, {"reads": ("eagle_config.{}",)}, None),
        (True, {"reads": ("{}",)}, "true against false"),
        (None, {"reads": (), "default": True}, None),
        (True, {}, None),
    ],
)
def test_a_norm_flag_against_what_the_engine_does(name: str, wanted: bool | None, draft: Any, how_much: str | None) -> None:
    reads = {name: tuple(place.format(name) for place in draft["reads"])} if "reads" in draft else {}
    table = engine(draft={"reads": reads, "defaults": {name: True} if "default" in draft else {}})
    ignored = found("norm-ignored", table, HEAD | eagle(**({} if wanted is None else {name: wanted})))
    assert [(f.where, f.how_much) for f in ignored] == ([] if how_much is None else [(name, how_much)])
    assert all(
        f"{name}: {str(wanted).lower()} and the engine acts as if it were {str(not wanted).lower()};" in f.what for f in ignored
    )


def test_an_ignored_norm_flag_says_where_the_engine_would_read_it() -> None:
    head = HEAD | eagle(norm_before_fc=True)
    elsewhere = the("norm-ignored", engine(draft={"reads": {"norm_before_fc": ("a", "b.c")}}), head)
    assert elsewhere.what.endswith(
        "norm_before_fc: true and the engine acts as if it were false; the engine reads a and b.c only"
    )
    assert elsewhere.next == "write norm_before_fc at a"
    nowhere = the("norm-ignored", engine(draft={"reads": {"norm_before_fc": ()}}), head)
    assert nowhere.what.endswith("acts as if it were false; the engine has no such setting")
    assert nowhere.next == "use a version of the engine that applies norm_before_fc"
    told = engine(draft={"reads": {"norm_before_fc": ()}, "remedies": {"norm-ignored": "R"}})
    assert the("norm-ignored", told, head).next == "R"


def test_the_first_flag_that_nobody_set_does_not_hide_the_second() -> None:
    reads: dict[str, tuple[str, ...]] = {"norm_before_fc": (), "fc_norm": (), "norm_before_residual": ()}
    ignored = found("norm-ignored", engine(draft={"reads": reads}), HEAD | eagle(fc_norm=True, norm_before_residual=True))
    assert [f.where for f in ignored] == ["fc_norm", "norm_before_residual"]


def test_norms_are_a_matter_of_eagle3_heads() -> None:
    table = engine(draft={"reads": {"norm_before_fc": ()}})
    assert not found("norm-ignored", table, HEAD | eagle(norm_before_fc=True), kind="dflash")


@pytest.mark.parametrize(
    ("flags", "both", "applied"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "both-applied", True),
        ({"norm_before_fc": True, "fc_norm": True}, "fc_norm-only", False),
        ({"norm_before_fc": True}, "both-applied", False),
    ],
)
def test_both_norms_on_an_engine_that_applies_both(flags: dict[str, bool], both: str, applied: bool) -> None:
    reads = {name: (f"eagle_config.{name}",) for name in ("norm_before_fc", "fc_norm")}
    set_twice = found("norms-both-set", engine(draft={"reads": reads, "both_norms": both}), HEAD | eagle(**flags))
    assert [f.where for f in set_twice] == (["norm_before_fc, fc_norm"] if applied else [])


@pytest.mark.parametrize(
    ("flag", "weight", "other"),
    [
        ("norm_before_fc", "input_norm.weight", "input_norm.weight"),
        ("fc_norm", "fc_norm.0.weight", "aux_norm_low.weight"),
        ("fc_norm", "fc_norm.0.weight", "fc_norm.weight"),
    ],
)
def test_a_norm_weight_needs_its_flag_and_a_flag_its_weight(flag: str, weight: str, other: str) -> None:
    def of_files(tensors: Any, **flags: bool) -> list[str]:
        found = report(engine(), HEAD | eagle(**flags), tensors=tensors).of(None)
        return [f"{f.what} at {f.where}" for f in found if f.code.startswith("norm")]

    shape = (3 * H,)
    skip = ": engines skip the norm"
    assert of_files(TENSORS | {other: shape}) == [f"the weights hold {weight}, but {flag} is not set{skip} at {weight} [8640]"]
    assert of_files(TENSORS | {other: shape}, **{flag: False}) == [
        f"the weights hold {weight}, but {flag} is false{skip} at {weight} [8640]"
    ]
    assert of_files(TENSORS | {other: shape}, **{flag: True}) == []
    assert of_files(TENSORS, **{flag: False}) == []
    (missing,) = of_files(TENSORS, **{flag: True})
    assert missing.startswith(f"{flag} is true, but the weights hold no {weight}:")
    assert missing.endswith(f" at {flag}")


# -- pipeline --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "stages", "start"), [(36, 1, 0), (36, 2, 18), (36, 4, 27), (37, 2, 19), (35, 4, 27), (36, 36, 35)]
)
def test_the_last_stage_is_the_smallest(layers: int, stages: int, start: int) -> None:
    assert last_stage_start(layers, stages) == start


@pytest.mark.parametrize(
    ("pipeline", "listed", "stages", "code", "how_much"),
    [
        ("last-stage-only", [17, 18, 36], 2, "pipeline-drops-ids", "1 of 3 states: [17]"),
        ("last-stage-only", [2, 17, 36], 2, "pipeline-drops-ids", "2 of 3 states: [2, 17]"),
        ("last-stage-only", [18, 30, 36], 2, None, ""),
        ("last-stage-only", [17, 18, 36], 1, None, ""),
        ("last-stage-only", [18, 30, 36], 4, "pipeline-drops-ids", "1 of 3 states: [18]"),
        ("refused", [18, 30, 36], 2, "pipeline-drops-ids", ""),
        ("refused", [17, 30, 36], 2, "pipeline-drops-ids", "1 of 3 states: [17]"),
        ("refused", [17, 30, 36], 1, None, ""),
        ("forwarded", [2, 17, 36], 2, None, ""),
        ("unchecked", [17, 30, 36], 2, "pipeline-unchecked", "1 of 3 states: [17]"),
        ("unchecked", [18, 30, 36], 2, None, ""),
    ],
)
def test_states_before_the_last_stage(pipeline: str, listed: list[int], stages: int, code: str | None, how_much: str) -> None:
    findings = report(engine({"pipeline": pipeline}), HEAD | ids(listed), pp_size=stages).of("made-up==1")
    found = [f for f in findings if f.code.startswith("pipeline")]
    assert [(f.code, f.how_much) for f in found] == ([] if code is None else [(code, how_much)])
    assert all(f.where == f"pipeline stages before block {36 - 36 // stages}" for f in found)
    assert all((f.severity is Severity.ERROR) == (code == "pipeline-drops-ids") for f in found)


def test_what_the_engine_does_with_stages_is_said() -> None:
    said = {
        behaviour: report(engine({"pipeline": behaviour}), pp_size=4).of("made-up==1")[-1]
        for behaviour in ("last-stage-only", "refused", "unchecked")
    }
    assert {behaviour: f.what for behaviour, f in said.items()} == {
        "last-stage-only": "the engine sets the ids on the last stage only: states of earlier stages are never captured",
        "refused": "the engine refuses to start with pipeline parallelism and such a head",
        "unchecked": "the engine was not profiled for capture across stages",
    }
    assert said["unchecked"].next == "compare acceptance length with pipeline size 1"
    assert said["refused"].next == said["last-stage-only"].next == "serve with pipeline size 1"


def test_post_norm_is_on_the_last_stage() -> None:
    post_norm = engine({"pipeline": "last-stage-only", "rule": "hf"})
    assert [f.how_much for f in found("pipeline-drops-ids", post_norm, HEAD | ids([2, 36]), pp_size=2)] == ["1 of 2 states: [2]"]


@pytest.mark.parametrize("table", [engine(None), engine({"supported": False, "pipeline": "refused"})])
def test_stages_of_an_engine_that_captures_nothing_do_not_matter(table: Any) -> None:
    codes = {f.code for f in report(table, pp_size=2).of("made-up==1")}
    assert codes in ({"target-unprofiled"}, {"target-unsupported"})

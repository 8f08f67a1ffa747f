"""Tensors of the file: which are needed, which are dropped, lm_head and d2t."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.draft_config import parse_draft
from specalign.layer_ids.findings import Severity
from specalign.layer_ids.preflight import check
from specalign.layer_ids.tensor_files import TensorFacts
from tests.unit.checks.made_up import engine, found, report, the
from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, TENSORS, H, draft_spec, eagle, target_spec

LM_HEAD = "lm_head.weight"
SMALL = {"draft_vocab_size": 32000}
SMALL_TENSORS = TENSORS | {LM_HEAD: (32000, H)}


def without(*names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in TENSORS.items() if name not in names}


def of_files(config: Any, tensors: Any, d2t: Any = None, target: Any = GPT_OSS, kind: Any = None) -> list[tuple[str, str, str]]:
    found = report(engine(), config, target, tensors=tensors, d2t=d2t, kind=kind).of(None)
    return [(f.code, f.where, f.how_much) for f in found if f.code.startswith(("weight", "d2t"))]


def incomplete(config: Any, tensors: Any) -> list[str]:
    """The codes of the check of a pair of which only some weight files are at hand."""
    whole = draft_spec(config, tensors).tensors
    assert whole is not None
    facts = TensorFacts(whole.tensors, whole.files, complete=False)
    draft = parse_draft(draft_spec(config).config, name="draft", tensors=facts)
    table = engine(draft={"lm_head_missing": "error"})
    return [f.code for f in check(draft, target_spec(GPT_OSS), engines=["made-up"], table=table).findings]


# -- what was read, and what is missing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pickles", "says"),
    [
        ((), "no weight headers: nothing"),
        (("a.bin",), "only pickles (a.bin), which are never opened: nothing"),
        (("a.bin", "b.bin", "c.bin", "d.bin"), "only pickles (a.bin, b.bin, c.bin), which are never opened: nothing"),
    ],
)
def test_weights_that_were_not_read_are_said_to_be(pickles: tuple[str, ...], says: str) -> None:
    draft = parse_draft(draft_spec(HEAD).config, name="the/draft", pickles=pickles)
    (only,) = check(draft, target_spec(GPT_OSS), engines=["made-up"], table=engine()).findings
    assert (only.code, only.severity, only.where) == ("weights-not-read", Severity.INFO, "the/draft")
    assert only.what.startswith(says)


def test_a_whole_head_misses_nothing() -> None:
    assert of_files(HEAD, TENSORS) == []
    assert of_files(HEAD, {f"model.{name}": shape for name, shape in TENSORS.items()}) == []
    layers = {name.replace("midlayer", "layers.0"): shape for name, shape in TENSORS.items()}
    assert of_files(HEAD, layers) == []


@pytest.mark.parametrize(
    ("gone", "patterns"),
    [
        ("fc.weight", "fc.weight or fc.*"),
        ("norm.weight", "norm.weight"),
        ("midlayer.self_attn", "midlayer.self_attn.* or layers.*.self_attn.*"),
        ("midlayer.mlp", "midlayer.mlp.* or layers.*.mlp.*"),
    ],
)
def test_each_part_that_an_eagle3_head_needs(gone: str, patterns: str) -> None:
    left = {name: shape for name, shape in TENSORS.items() if not name.startswith(gone)}
    assert of_files(HEAD, left) == [("weight-missing", "draft", f"{len(left)} tensors, none called {patterns}")]
    (missing,) = [f for f in report(engine(), HEAD, tensors=left).of(None) if f.code == "weight-missing"]
    assert missing.what.startswith(f"the file has no {patterns.split(' or ')[0]}: ")
    assert incomplete(HEAD, left) == []


def test_each_part_that_a_dflash_head_needs() -> None:
    part = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "hidden_norm.weight": (H,)}
    layer = {"layers.0.self_attn.q_proj.weight": (H, H), "layers.0.mlp.up_proj.weight": (H, H)}
    assert of_files(DFLASH, part | layer) == []
    for name, pattern in [(n, n) for n in part] + [(n, f"layers.*.{n.split('.')[2]}.*") for n in layer]:
        left = {k: v for k, v in (part | layer).items() if k != name}
        wanted = "fc.weight or fc.*" if name == "fc.weight" else pattern
        assert of_files(DFLASH, left) == [("weight-missing", "draft", f"4 tensors, none called {wanted}")]


def test_nobody_says_what_a_dspark_head_needs() -> None:
    assert of_files(HEAD, {"x": (1,)}, kind="dspark") == []


def test_a_head_on_post_norm_needs_no_fc_but_the_rest() -> None:
    off = HEAD | eagle(use_aux_hidden_state=False)
    assert of_files(off, without("fc.weight")) == []
    assert of_files(off, without("fc.weight", "norm.weight")) == [
        ("weight-missing", "draft", "6 tensors, none called norm.weight")
    ]
    on = HEAD | eagle(use_aux_hidden_state=True)
    assert of_files(on, without("fc.weight"))[0][0] == "weight-missing"
    assert of_files(on, without("norm.weight"))[0][0] == "weight-missing"


def test_fc_in_parts_is_an_fc() -> None:
    assert of_files(HEAD, without("fc.weight") | {"fc.0.weight": (H, H)}) == []


# -- d2t -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("small", "full", "missing"),
    [(32000, 201088, True), (201087, 201088, True), (201088, 201088, False), (None, 201088, False), (32000, None, True)],
)
def test_a_small_vocabulary_needs_d2t(small: int | None, full: int | None, missing: bool) -> None:
    target = {k: v for k, v in GPT_OSS.items() if k != "vocab_size"} | ({"vocab_size": full} if full else {})
    head = HEAD | {"draft_vocab_size": small}
    found = [f for f in of_files(head, SMALL_TENSORS, target=target) if f[0] == "d2t-missing"]
    assert found == ([("d2t-missing", "d2t", f"{small} of 201088 tokens")] if missing else [])


def test_d2t_may_be_in_a_file_that_is_not_at_hand() -> None:
    assert incomplete(HEAD | SMALL, SMALL_TENSORS) == []
    assert "d2t-missing" in {f[0] for f in of_files(HEAD | SMALL, SMALL_TENSORS)}


def test_a_vocabulary_that_nobody_states_needs_no_d2t() -> None:
    silent = {k: v for k, v in GPT_OSS.items() if k != "vocab_size"}
    assert of_files(HEAD | {"vocab_size": None, "draft_vocab_size": 32000}, SMALL_TENSORS, target=silent) == []
    with_d2t = SMALL_TENSORS | {"d2t": (32000,)}
    assert of_files(HEAD | {"vocab_size": None} | SMALL, with_d2t, d2t=[0] * 31999 + [1 << 40], target=silent) == []


def test_only_eagle3_heads_have_d2t() -> None:
    assert "d2t-missing" not in {f[0] for f in of_files(DFLASH | SMALL, TENSORS)}


def d2t(values: list[int], vocab: int) -> tuple[str, str, str, str]:
    """The one finding about a d2t with these values."""
    config = HEAD | {"draft_vocab_size": len(values), "vocab_size": vocab}
    tensors = TENSORS | {"d2t": (len(values),), LM_HEAD: (len(values), H)}
    target = GPT_OSS | {"vocab_size": vocab}
    (only,) = [f for f in report(engine(), config, target, tensors=tensors, d2t=values).of(None) if f.code.startswith("d2t")]
    return only.code, only.where, only.how_much, only.what


@pytest.mark.parametrize(
    ("values", "called"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "arange"),
        ([0, 1, 2, 3, 4, 5, 6, 95], "token ids"),
        ([1, 2, 3, 4, 5, 6, 93, 94], "token ids"),
        ([0, 2, 3, 4, 5, 6, 7, 97], "token ids"),
    ],
)
def test_token_ids_in_place_of_offsets(values: list[int], called: str) -> None:
    last = 7 + values[-1]
    code, where, how_much, what = d2t(values, 100)
    assert (code, where) == ("d2t-absolute", "d2t")
    assert how_much == f"as offsets the last draft token would be target token {last} of 100"
    assert what.startswith(f"d2t holds {called}, but engines read it as offsets")


@pytest.mark.parametrize(
    ("values", "where", "how_much", "count"),
    [
        ([0, 0, 0, 97], "d2t[3]", "3 + 97 = 100, vocabulary 100", 1),
        ([-1, 0, 0, 0], "d2t[0]", "0 + -1 = -1, vocabulary 100", 1),
        ([0, 99, -3, 200], "d2t[1]", "1 + 99 = 100, vocabulary 100", 3),
        ([0, 0, 99, 98], "d2t[2]", "2 + 99 = 101, vocabulary 100", 2),
    ],
)
def test_offsets_that_leave_the_vocabulary(values: list[int], where: str, how_much: str, count: int) -> None:
    code, place, figures, what = d2t(values, 100)
    assert (code, place, figures) == ("d2t-out-of-range", where, how_much)
    assert what.startswith(f"{count} entries")


def test_offsets_at_the_edges_of_the_vocabulary_are_right() -> None:
    config = HEAD | {"draft_vocab_size": 4, "vocab_size": 100}
    tensors = TENSORS | {"d2t": (4,), LM_HEAD: (4, H)}
    assert of_files(config, tensors, d2t=[0, 0, 0, 96], target=GPT_OSS | {"vocab_size": 100}) == []


# -- what an engine loads --------------------------------------------------------------------------------------------------


def unread(tensors: Any, head: Any = HEAD, **draft: Any) -> list[tuple[str, str, str]]:
    found_ = found("weight-unread", engine(draft=draft), head, tensors=tensors)
    return [(f.severity.value, f.where, f.what) for f in found_]


@pytest.mark.parametrize(
    ("fate", "severity", "says"),
    [
        ("error", "error", "the engine drops 1 of 2 tensors and refuses the file"),
        ("warned", "warning", "the engine drops 1 of 2 tensors with a warning"),
        ("dropped", "warning", "the engine drops 1 of 2 tensors without a word"),
        ("", "warning", "the engine drops 1 of 2 tensors without a word"),
    ],
)
def test_what_becomes_of_a_tensor_that_the_engine_does_not_know(fate: str, severity: str, says: str) -> None:
    tensors = {"fc.weight": (H, 3 * H), "x": (1,)}
    assert unread(tensors, weights=("fc.*",), unknown_weights=fate) == [(severity, "x", says)]


def test_the_first_four_dropped_tensors_are_named() -> None:
    letters = dict.fromkeys("edcba", (1,))
    four = dict.fromkeys("dcba", (1,))
    assert unread(letters, weights=("fc.*",)) == [("warning", "a, b, c, d, …", "the engine drops 5 of 5 tensors without a word")]
    assert unread(four, weights=("fc.*",)) == [("warning", "a, b, c, d", "the engine drops 4 of 4 tensors without a word")]


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("fc.weight", False),
        ("model.fc.weight", False),
        ("model.norm.weight", False),
        ("norm.weight", True),
        ("t2d", False),
        ("x.t2d", False),
        ("rotary_emb.inv_freq", False),
        ("model.layers.0.rotary_emb.inv_freq", False),
        ("FC.weight", True),
        ("model.x", True),
    ],
)
def test_names_are_matched_with_and_without_model(name: str, dropped: bool) -> None:
    assert [where for _, where, _ in unread({name: (1,)}, weights=("fc.*", "model.norm.*"))] == ([name] if dropped else [])


@pytest.mark.parametrize(("flag", "dropped"), [(True, []), (False, ["input_norm.weight"]), (None, ["input_norm.weight"])])
def test_a_weight_that_a_setting_turns_on(flag: bool | None, dropped: list[str]) -> None:
    draft = {
        "weights": ("fc.*", "input_norm.*"),
        "weights_when": {"input_norm.*": "norm_before_fc"},
        "reads": {"norm_before_fc": ("eagle_config.norm_before_fc",)},
    }
    head = HEAD | eagle(**({} if flag is None else {"norm_before_fc": flag}))
    tensors = {"fc.weight": (H, 3 * H), "input_norm.weight": (3 * H,)}
    assert [where for _, where, _ in unread(tensors, head, **draft)] == dropped


def test_an_engine_whose_weights_nobody_listed_drops_nothing_that_we_know_of() -> None:
    assert unread({"x": (1,)}) == []
    assert not found("weight-unread", engine(draft={"weights": ("fc.*",)}), HEAD, tensors=None)


RANDOM = "keeps random values there: acceptance length 1.0"


@pytest.mark.parametrize(
    ("missing", "small", "says"),
    [
        ("random", 32000, RANDOM),
        ("random", None, RANDOM),
        ("random-if-draft-vocab", 32000, RANDOM),
        ("random-if-draft-vocab", 201088, RANDOM),
        ("random-if-draft-vocab", None, None),
        ("target-cut", 32000, "takes the first 32000 rows of the target's, which are other tokens"),
        ("target-cut", 201088, None),
        ("target-cut", None, None),
        ("error", 32000, "refuses to load it"),
        ("error", None, "refuses to load it"),
        ("target", 32000, None),
        ("", 32000, None),
    ],
)
def test_a_file_without_lm_head(missing: str, small: int | None, says: str | None) -> None:
    head = HEAD | {"draft_vocab_size": small}
    lost = found("lm-head-missing", engine(draft={"lm_head_missing": missing}), head, tensors=without(LM_HEAD))
    assert [(f.what, f.where, f.how_much) for f in lost] == (
        [(f"the file has no lm_head.weight and the engine {says}", LM_HEAD, f"draft_vocab_size {small}, vocab_size 201088")]
        if says
        else []
    )
    compressed = small == 32000
    assert all(f.next.startswith("export the checkpoint" if compressed else "remove draft_vocab_size") for f in lost)
    assert not found("lm-head-missing", engine(draft={"lm_head_missing": missing}), head, tensors=TENSORS)
    assert "lm-head-missing" not in incomplete(head, without(LM_HEAD))


def test_a_vocabulary_that_the_draft_does_not_state_is_not_called_smaller() -> None:
    head = HEAD | {"vocab_size": None, "draft_vocab_size": 32000}
    lost = the("lm-head-missing", engine(draft={"lm_head_missing": "error"}), head, tensors=without(LM_HEAD))
    assert lost.next.startswith("remove draft_vocab_size")
    assert not found("lm-head-missing", engine(draft={"lm_head_missing": "target-cut"}), head, tensors=without(LM_HEAD))


def test_weights_of_an_unknown_architecture_and_of_eagle_heads_are_not_judged() -> None:
    table = engine(draft={"weights": ("fc.*",), "lm_head_missing": "error"})
    assert [f.code for f in report(engine(draft=None), tensors={"x": (1,)}).of("made-up==1")] == ["draft-unprofiled"]
    assert not found("weight-unread", table, tensors={"midlayer.x": (1,)}, kind="eagle")
    assert list(found("weight-unread", table, tensors={"midlayer.x": (1,)}))

"""How one engine reads a pair: where it looks for ids, widths and norms, and how its profile is found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specalign.layer_ids import POST_NORM
from specalign.layer_ids.draft_config import Kind
from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, Engine, EngineProfile
from specalign.layer_ids.engine_tables import EngineDataError
from specalign.layer_ids.engines import EngineTable, dflash_even, load_engines, parse_engines
from specalign.layer_ids.places import MISSING
from specalign.layer_ids.speculators import converted
from specalign.layer_ids.view import EngineView, aux_state_off, setting, view_of
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, H, draft_spec, target_spec

TARGET = target_spec(GPT_OSS)
OFF = {"eagle_config": {"use_aux_hidden_state": False}}
READS_AUX = {"reads": {"use_aux_hidden_state": ("eagle_config.use_aux_hidden_state",)}}


def capture_of(*places: str, **settings: Any) -> CaptureProfile:
    return CaptureProfile("made-up", "*", ("eagle3",), ("*",), "boundary", "none", "I", ids_from=places, **settings)


def draft_of(**settings: Any) -> DraftProfile:
    return DraftProfile("made-up", "*", ("eagle3",), ("*",), "none", "I", **settings)


def view(
    config: dict[str, Any],
    capture: CaptureProfile | None = None,
    draft: DraftProfile | None = None,
    flag: tuple[int, ...] | None = None,
    kind: Kind | None = "eagle3",
) -> EngineView:
    return view_of(EngineProfile("made-up", "1", "1", capture, draft), draft_spec(config, kind=kind), TARGET, flag_ids=flag)


@pytest.mark.parametrize(
    ("places", "config", "flag", "place", "ids"),
    [
        (("cli:--ids", "a"), {"a": [1, 2]}, (3, 4), "cli:--ids", (3, 4)),
        (("cli:--ids", "a"), {"a": [1, 2]}, None, "a", (1, 2)),
        (("a", "b"), {"b": [1, 2]}, (3, 4), "b", (1, 2)),
        (("a", "b"), {"a": ..., "b": [1, 2]}, None, "b", (1, 2)),
        (("a.c", "b"), {"a": {"c": [5]}, "b": [1, 2]}, None, "a.c", (5,)),
    ],
)
def test_ids_come_from_the_first_place_that_holds_some(
    places: tuple[str, ...], config: dict[str, Any], flag: tuple[int, ...] | None, place: str, ids: tuple[int, ...]
) -> None:
    seen = view(config, capture_of(*places), flag=flag)
    assert (seen.place, seen.ids, seen.named, seen.states, seen.error) == (place, ids, ids, ids, "")


@pytest.mark.parametrize("bad", ["24,30", [1, "2"], [True], [], {"x": 1}, 7])
def test_what_is_no_list_of_integers_is_an_error_of_the_engine(bad: object) -> None:
    seen = view({"a": bad, "b": [1]}, capture_of("a", "b"))
    assert (seen.place, seen.ids, seen.states) == ("a", None, ())
    assert seen.error == f"ids that are no list of integers: {bad}"


def test_a_long_wrong_value_is_cut_after_60_characters() -> None:
    assert view({"a": "x" * 99}, capture_of("a")).error == "ids that are no list of integers: " + "x" * 60


def test_an_empty_list_is_unset_for_the_engines_that_take_it_so() -> None:
    assert view({"a": [], "b": [1]}, capture_of("a", "b", empty_is_unset=True)).ids == (1,)


def test_the_place_decides_the_rule_and_the_draft_the_default() -> None:
    by_place = capture_of("a", "b", place_rules={"b": "output"})
    assert view({"b": [1]}, by_place).states == (2,)
    even = capture_of("a", default="dflash-even")
    assert view({"num_hidden_layers": 3}, even).states == (1, 17, 33)
    assert view({"num_hidden_layers": 1}, even).states == (18,)


def test_without_the_aux_state_the_head_gets_one_chunk_after_the_norm() -> None:
    seen = view(HEAD | OFF, capture_of(IDS), draft_of(**READS_AUX, width_default=3))
    assert (seen.place, seen.ids, seen.named, seen.states, seen.chunks) == (None, None, (POST_NORM,), (POST_NORM,), 1)
    blind = view(HEAD | OFF, capture_of(IDS), draft_of(width_default=3))
    assert (blind.place, blind.states, blind.chunks) == (IDS, (24, 30, 36), 3)


@pytest.mark.parametrize(
    ("profile", "off"),
    [
        (None, False),
        (draft_of(), False),
        (draft_of(**READS_AUX), True),
        (draft_of(reads={"use_aux_hidden_state": ()}), False),
        (draft_of(reads={"use_aux_hidden_state": ()}, defaults={"use_aux_hidden_state": False}), True),
    ],
)
def test_the_aux_state_is_off_where_the_engine_reads_that_it_is(profile: DraftProfile | None, off: bool) -> None:
    assert aux_state_off(profile, draft_spec(HEAD | OFF)) is off


def test_a_setting_is_read_defaulted_or_missing() -> None:
    profile = draft_of(reads={"head_dim": ("a", "b"), "fc_norm": ()}, defaults={"head_dim": 64, "fc_norm": False})
    assert setting(profile, draft_spec(HEAD | {"b": 128}), "head_dim") == 128
    assert setting(profile, draft_spec(HEAD), "head_dim") == 64
    assert setting(profile, draft_spec(HEAD | {"fc_norm": True}), "fc_norm") is False
    assert setting(profile, draft_spec(HEAD), "rope_theta") is MISSING


def test_nothing_is_captured_for_eagle_or_where_it_is_unsupported() -> None:
    unsupported, eagle = view(HEAD, capture_of(IDS, supported=False)), view(HEAD, capture_of(IDS), kind="eagle")
    for seen in (unsupported, eagle, view(HEAD)):
        assert (seen.place, seen.ids, seen.named, seen.states, seen.lost, seen.error) == (None, None, (), (), (), "")


def test_the_widths_come_from_their_own_places() -> None:
    profile = draft_of(ids_width=("n", "ids"), buffer_width=("ids", "n"), width_default=3)
    seen = view({"ids": [1, 2], "n": 5, "hidden_size": 8}, None, profile)
    assert (seen.chunks, seen.chunks_place, seen.buffered, seen.width, seen.fc_inputs) == (5, "n", 2, 8, 40)
    seen = view({"ids": [], "n": 0, "hidden_size": 8}, None, profile)
    assert (seen.chunks, seen.chunks_place, seen.buffered) == (3, None, None)
    seen = view({"ids": [1]}, None, draft_of())
    assert (seen.chunks, seen.chunks_place, seen.buffered, seen.fc_inputs) == (None, None, None, None)
    seen = view({"ids": [1]}, None, None)
    assert (seen.chunks, seen.chunks_place, seen.buffered, seen.norms) == (None, None, None, ())


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"hidden_size": 8}, 8),
        ({"hidden_size": 8, "target_hidden_size": 16}, 16),
        ({"hidden_size": 8, "eagle_config": {"target_hidden_size": 32}}, 32),
        ({"hidden_size": 8, "target_hidden_size": 16, "eagle_config": {"target_hidden_size": 32}}, 16),
        ({}, None),
    ],
)
def test_a_chunk_is_as_wide_as_the_target(config: dict[str, Any], width: int | None) -> None:
    assert view(config).width == width


def test_the_norms_are_those_that_the_engine_reads() -> None:
    profile = draft_of(reads={"norm_before_fc": ("nbf",), "fc_norm": ("fcn",)}, defaults={"fc_norm": False})
    both = {"nbf": True, "fcn": True}
    assert view(both, None, profile).norms == ("norm_before_fc", "fc_norm")
    assert view({"nbf": True}, None, profile).norms == ("norm_before_fc",)
    assert view({"fcn": True}, None, profile).norms == ("fc_norm",)
    assert view({"nbf": False, "fcn": 1}, None, profile).norms == ()


@pytest.mark.parametrize(("layers", "ids"), [(1, (18,)), (2, (1, 33)), (3, (1, 17, 33)), (5, (1, 9, 17, 25, 33))])
def test_a_dflash_head_without_ids_gets_them_evenly(layers: int, ids: tuple[int, ...]) -> None:
    found = dflash_even(36, layers)
    assert found == ids
    assert all(type(k) is int for k in found)


def small_table(*versions: str, rows: tuple[tuple[str, str], ...] = (), drafts: bool = True) -> EngineTable:
    """An engine `e` with capture rows for (version range, family), and draft rows from version 2 on."""
    captures = tuple(dataclasses.replace(capture_of(), engine="e", versions=spec, families=(family,)) for spec, family in rows)
    own = (dataclasses.replace(draft_of(), engine="e", versions=">=2"),) if drafts else ()
    return EngineTable({"e": Engine("e", "an engine", "server", versions)}, {}, captures, own)


def test_an_unchecked_version_falls_back_on_the_nearest_one_below() -> None:
    table = small_table("1", "2", "3", rows=(("==2", "*"), ("==3", "*")))

    def at(version: str) -> str:
        return table.profile(f"e=={version}", kind="eagle3", family=None, architecture="A").profiled

    assert [at(v) for v in ("1", "2", "2.5", "3", "4")] == ["1", "2", "2", "3", "3"]
    assert at("0.5") == "1"
    assert small_table("1", "2").profile("e==2.0", kind="eagle3", family=None, architecture="A").profiled == "2"


def test_a_row_that_has_a_capture_and_no_draft_is_whole_only_where_the_engine_has_no_drafts() -> None:
    rows = (("<2.6", "*"),)
    with_drafts, without = small_table("1", "2", rows=rows), small_table("1", "2", rows=rows, drafts=False)
    for table, profiled in ((with_drafts, "1"), (without, "1.5")):
        assert table.profile("e==1.5", kind="eagle3", family=None, architecture="A").profiled == profiled
    assert with_drafts.profile("e==2.7", kind="eagle3", family=None, architecture="A").profiled == "2"


def test_the_row_of_the_family_comes_before_the_row_for_all() -> None:
    table = small_table("2", rows=((">=1", "*"), (">=1", "llama")))
    for family, found in (("llama", ("llama",)), ("other", ("*",)), (None, ("*",))):
        capture = table.profile("e", kind="eagle3", family=family, architecture="A").capture
        assert capture is not None
        assert capture.families == found


def test_a_wrong_engine_or_version_is_named_with_what_would_do() -> None:
    table = small_table("1", "2")
    with pytest.raises(EngineDataError, match=r"^no engine is called 'x': there are e$"):
        table.engine_of("x==1")
    with pytest.raises(EngineDataError, match=r"^'e==new': 'new' is no version number; write e==2$"):
        table.engine_of("e==new")
    with pytest.raises(EngineDataError, match=r"write e==1\.0$"):
        small_table("").engine_of("e==new")
    assert table.default_labels() == ("e==1", "e==2")
    assert small_table("").default_labels() == ("e",)
    assert table.covers(dataclasses.replace(capture_of(), versions=">=2"), "2")
    assert not table.covers(dataclasses.replace(capture_of(), versions=">=2"), "1")


def test_a_table_is_loaded_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no table")
    row = 'name = "e"\ntitle = "é"\nrole = "server"\nchecked = ["1"]'
    (tmp_path / "e.toml").write_text(f'schema = "specalign.engines/1"\n[[engine]]\n{row}\n', "utf-8")
    assert {name: engine.title for name, engine in load_engines(tmp_path).engines.items()} == {"e": "é"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no toml", "e.toml"),
        ('schema = "specalign.engines/1"\n[[engine]]\nodd = 1\n', "e.toml"),
        (
            'schema = "specalign.engines/1"\n[[capture]]\nengine = "x"\nversions = ">=1"\nkinds = ["eagle3", "dflash"]\n'
            'families = ["*"]\nrule = "output"\nsource = "s"\ngrade = "R"\nids_from = ["a"]\n',
            "x >=1 eagle3/dflash: no [[engine]]",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_its_file_or_row(text: str, says: str) -> None:
    with pytest.raises(EngineDataError) as caught:
        parse_engines({"e.toml": text})
    assert says in str(caught.value)


def test_a_profile_is_of_the_engine_and_kind_that_were_asked_for() -> None:
    table = small_table("1", "2", rows=(("*", "*"),))
    more = dataclasses.replace(table, engines={**table.engines, "f": Engine("f", "another", "server", ("7",))})
    assert more.engine_of("e==1").name == "e"
    assert more.profile("e", kind="eagle3", family=None, architecture="A").label == "e==2"
    assert more.profile("f", kind="eagle3", family=None, architecture="A").draft is None
    assert more.profile("e", kind="dflash", family=None, architecture="A").draft is None
    with pytest.raises(EngineDataError, match=r"there are e, f$"):
        more.engine_of("x")
    assert view({}).label == "made-up==1"


LAYER = {"transformer_layer_config": {"hidden_size": 8, "model_type": "qwen3", "head_dim": None}}


@pytest.mark.parametrize(
    ("kind", "inner", "architecture"),
    [
        ("eagle3", "llama", "Eagle3LlamaForCausalLM"),
        ("eagle3", "qwen3", "Eagle3Qwen3ForCausalLM"),
        ("eagle3", None, "Eagle3LlamaForCausalLM"),
        ("eagle3", "gemma", "Speculator"),
        ("dflash", "llama", "DFlashDraftModel"),
        ("dspark", "qwen3", "Qwen3DSparkModel"),
    ],
)
def test_a_speculators_config_gets_the_class_that_its_engine_takes(kind: str, inner: str | None, architecture: str) -> None:
    layer = {"model_type": inner} if inner else {}
    config = {"architectures": ["Speculator"], "speculators_model_type": kind, "transformer_layer_config": layer}
    draft = converted(draft_spec(config))
    assert (draft.architecture, draft.converted) == (architecture, True)


def test_the_layer_config_moves_up_and_the_top_level_wins() -> None:
    config = LAYER | {"speculators_model_type": "eagle3", "head_dim": 64, "hidden_size": ..., IDS: [1, 2]}
    read = converted(draft_spec(config)).config
    assert read == {
        "hidden_size": 8,
        "model_type": "qwen3",
        "head_dim": 64,
        "speculators_model_type": "eagle3",
        IDS: [1, 2],
        "norm_before_residual": True,
    }
    assert converted(draft_spec(config | {"norm_before_residual": False})).config["norm_before_residual"] is False


@pytest.mark.parametrize(("nested", "kept"), [({"mask_token_id": 7}, {"mask_token_id": 7}), ("odd", {})])
def test_dflash_ids_stand_at_both_places_that_engines_read(nested: object, kept: dict[str, int]) -> None:
    config = {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [2, 18], "dflash_config": nested}
    read = converted(draft_spec(config)).config
    assert (read[IDS], read["dflash_config"]) == ([2, 18], {**kept, "target_layer_ids": [1, 17]})
    assert "norm_before_residual" not in read


@pytest.mark.parametrize("ids", [None, "2,18", [2, True], [2, "18"]])
def test_ids_that_are_no_integers_are_left_where_they_are(ids: object) -> None:
    read = converted(draft_spec({"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": ids})).config
    assert IDS not in read
    assert "dflash_config" not in read


def test_an_eagle3_head_has_no_ids_to_lower() -> None:
    read = converted(draft_spec({"speculators_model_type": "eagle3", "aux_hidden_state_layer_ids": [2, 18]})).config
    assert IDS not in read
    assert "dflash_config" not in read


def test_other_formats_come_back_as_they_are() -> None:
    draft = draft_spec(HEAD)
    assert converted(draft) is draft
    assert draft.hidden_size == H

"""What a draft head's config and weight headers say: its kind, its ids, its sizes."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.draft_config import MOST_DRAFT_LAYERS, DraftSpec, Kind, looks_like, parse_draft
from specalign.layer_ids.files import InputError
from tests.unit.checks.scenarios import IDS, draft_spec

LLAMA = {"architectures": ["LlamaForCausalLM"]}


def spec(config: dict[str, Any], *tensors: str, kind: Kind | None = None) -> DraftSpec:
    return draft_spec(config, dict.fromkeys(tensors, (1,)) if tensors else None, kind=kind)


# The kind


@pytest.mark.parametrize(
    ("config", "kind", "why"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3", "LlamaForCausalLMEagle3"),
        ({"architectures": ["Some_EAGLE_3_Head"]}, "eagle3", "Some_EAGLE_3_Head"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle", "LlamaForCausalLMEagle"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash", "DFlashDraftModel"),
        ({"architectures": ["Qwen3DSparkModel"]}, "dspark", "Qwen3DSparkModel"),
        ({"architectures": ["DSparkOnDFlash"]}, "dspark", "DSparkOnDFlash"),
        ({"architectures": ["DFlashOnEagle3"]}, "dflash", "DFlashOnEagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3", "eagle3"),
        ({"architectures": ["X"], "speculators_model_type": "dflash"}, "dflash", "X"),
        ({"architectures": ["X"], "speculators_model_type": 3, "fc_norm": True}, "eagle3", "the config has fc_norm"),
        # An architecture says more than a key does.
        ({"architectures": ["LlamaForCausalLMEagle3"], "dflash_config": {}}, "eagle3", "LlamaForCausalLMEagle3"),
        # Keys, in the order dspark, dflash, eagle3.
        (LLAMA | {"dspark_config": {}, "dflash_config": {}}, "dspark", "the config has dspark_config"),
        (LLAMA | {"dspark_target_layer_ids": [1]}, "dspark", "the config has dspark_target_layer_ids"),
        (LLAMA | {"markov_rank": 0}, "dspark", "the config has markov_rank"),
        (LLAMA | {"dflash_config": {}, "eagle_config": {}}, "dflash", "the config has dflash_config"),
        (LLAMA | {"eagle_config": {}, IDS: [1]}, "eagle3", "the config has eagle_config"),
        (LLAMA | {IDS: [1]}, "eagle3", f"the config has {IDS}"),
        (LLAMA | {"draft_vocab_size": 8}, "eagle3", "the config has draft_vocab_size"),
        (LLAMA | {"norm_before_fc": False}, "eagle3", "the config has norm_before_fc"),
        # null is not there: `...` stands for it.
        (LLAMA | {"markov_rank": ..., "dflash_config": ..., "fc_norm": False}, "eagle3", "the config has fc_norm"),
    ],
)
def test_the_kind_is_told_by_architecture_then_by_keys(config: dict[str, Any], kind: Kind, why: str) -> None:
    draft = spec(config)
    assert (draft.kind, draft.kind_why, looks_like(draft)) == (kind, why, kind)


@pytest.mark.parametrize("name", ["midlayer.mlp.up_proj.weight", "model.midlayer.x", "d2t", "model.d2t", "input_norm.weight"])
def test_weights_that_only_eagle3_has_tell_the_kind_where_the_config_does_not(name: str) -> None:
    for config in (LLAMA, {"architectures": ["LlamaForCausalLMEagle"]}):
        draft = spec(config, "lm_head.weight", name)
        assert (draft.kind, draft.kind_why) == ("eagle3", "the weights hold midlayer.*, d2t or input_norm.*")
    assert spec({"architectures": ["DFlashDraftModel"]}, name).kind == "dflash"


@pytest.mark.parametrize("name", ["layers.0.midlayer.x", "midlayers.0", "fc.weight", "input_norms", "t2d"])
def test_other_weights_tell_nothing(name: str) -> None:
    assert spec({"architectures": ["LlamaForCausalLMEagle"]}, name).kind == "eagle"
    with pytest.raises(InputError):
        spec(LLAMA, name)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (LLAMA, "LlamaForCausalLM"),
        (LLAMA | {"model_type": "llama"}, "LlamaForCausalLM"),
        ({"architectures": ["A" * 90]}, "A" * 80),
        ({"architectures": [], "model_type": "llama"}, "llama"),
        ({"architectures": "LlamaForCausalLMEagle3", "model_type": "llama"}, "llama"),
        ({"architectures": [3, "LlamaForCausalLMEagle3"]}, "no architectures, no model_type"),
        ({}, "no architectures, no model_type"),
    ],
)
def test_what_no_mark_tells_is_refused_by_name(config: dict[str, Any], model: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_draft(config, name="some/path")
    assert str(caught.value).startswith(f"some/path: this config is not recognizably a draft head ({model}): ")


def test_a_declared_kind_wins_and_the_report_says_what_the_files_look_like() -> None:
    assert spec(LLAMA, kind="eagle3").kind_why == "said by --kind; the files look like no draft head (no mark of a draft head)"
    served = spec({"architectures": ["LlamaForCausalLMEagle3"]}, kind="eagle")
    assert (served.kind, looks_like(served)) == ("eagle", "eagle3")
    assert served.kind_why == "said by --kind; the files look like eagle3 (LlamaForCausalLMEagle3)"
    assert spec({"architectures": ["LlamaForCausalLMEagle3"]}, kind="eagle3").kind_why == "LlamaForCausalLMEagle3"
    assert looks_like(spec(LLAMA, "d2t", kind="eagle")) == "eagle3"


def test_everything_that_was_read_is_handed_on() -> None:
    draft = parse_draft({"architectures": ["XEagle3", "Y"]}, name="n", d2t=[1, 2], pickles=("a.bin",))
    assert (draft.name, draft.architecture, draft.d2t, draft.pickles) == ("n", "XEagle3", [1, 2], ("a.bin",))
    assert (draft.tensors, draft.converted) == (None, False)


# The ids


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("eagle3", (f"eagle_config.{IDS}", IDS)),
        ("dflash", ("dflash_config.target_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids")),
        (
            "dspark",
            ("dspark_config.target_layer_ids", "dspark_target_layer_ids", "dflash_config.target_layer_ids", "target_layer_ids"),
        ),
        ("eagle", ()),
    ],
)
def test_ids_are_looked_for_at_every_place_of_the_kind_and_in_text_config(kind: Kind, places: tuple[str, ...]) -> None:
    inner: dict[str, Any] = {}
    for number, place in enumerate(("eagle_config." + IDS, IDS, "dflash_config.target_layer_ids", "target_layer_ids",
                                    "aux_hidden_state_layer_ids", "dspark_config.target_layer_ids", "dspark_target_layer_ids")):  # fmt: skip
        *outer, last = place.split(".")
        (inner.setdefault(outer[0], {}) if outer else inner)[last] = [number]
    found = spec(inner | {"text_config": inner}, kind=kind).ids_by_place
    assert list(found) == [*places, *(f"text_config.{place}" for place in places)]
    assert all(found[f"text_config.{place}"] == found[place] for place in places)
    assert len({str(value) for value in found.values()}) == len(places)


@pytest.mark.parametrize(("value", "named"), [(..., False), ([], False), ([1], True), ("x", True), (0, True), ({}, True)])
def test_null_and_an_empty_list_name_no_ids(value: object, named: bool) -> None:
    assert spec({IDS: value}, kind="eagle3").ids_by_place == ({IDS: value} if named else {})


@pytest.mark.parametrize(
    ("config", "speculators"),
    [
        ({"speculators_model_type": "eagle3"}, True),
        ({"speculators_config": {}}, True),
        ({"speculators_model_type": ..., "speculators_config": ...}, False),
        ({"speculators_version": "0.3"}, False),
    ],
)
def test_speculators_own_format_is_told_by_two_keys(config: dict[str, Any], speculators: bool) -> None:
    assert spec(config, kind="eagle3").is_speculators is speculators


# Settings


def test_a_flag_is_read_from_eagle_config_then_dflash_config_then_the_top() -> None:
    eagle, dflash, top = {"eagle_config": {"f": True}}, {"dflash_config": {"f": False}}, {"f": True}
    assert spec(eagle | dflash, kind="eagle3").flag("f") is True
    assert spec(dflash | top, kind="eagle3").flag("f") is False
    assert spec(top, kind="eagle3").flag("f") is True
    assert spec({}, kind="eagle3").flag("f") is None
    assert spec({"f": 1}, kind="eagle3").flag("f") is None


def test_a_setting_is_read_from_the_top_then_the_layer_config_then_text_config() -> None:
    layer, text = {"transformer_layer_config": {"s": 2}}, {"text_config": {"s": 3}}
    assert spec({"s": 1} | layer | text, kind="eagle3").setting("s") == 1
    assert spec(layer | text, kind="eagle3").setting("s") == 2
    assert spec(text, kind="eagle3").setting("s") == 3
    assert spec({}, kind="eagle3").setting("s") is None


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("hidden_size", "hidden_size"), ("vocab_size", "vocab_size"), ("num_hidden_layers", "num_layers")],
)
def test_sizes_are_settings_that_hold_integers(name: str, attribute: str) -> None:
    for config in ({name: 64}, {"transformer_layer_config": {name: 64}}, {"text_config": {name: 64}}):
        assert getattr(spec(config, kind="eagle3"), attribute) == 64
    for odd in ("64", 64.0, True, ...):
        assert getattr(spec({name: odd}, kind="eagle3"), attribute) is None


@pytest.mark.parametrize(
    ("layers", "read"), [(0, None), (1, 1), (MOST_DRAFT_LAYERS, 1000), (MOST_DRAFT_LAYERS + 1, None), (-1, None)]
)
def test_a_number_of_layers_that_no_head_has_is_none(layers: int, read: int | None) -> None:
    assert spec({"num_hidden_layers": layers}, kind="eagle3").num_layers == read


def test_the_draft_vocabulary_stands_at_the_top_or_in_eagle_config() -> None:
    nested = {"eagle_config": {"draft_vocab_size": 5}}
    assert spec({"draft_vocab_size": 4} | nested, kind="eagle3").draft_vocab_size == 4
    assert spec(nested, kind="eagle3").draft_vocab_size == 5
    assert spec({"draft_vocab_size": "4"}, kind="eagle3").draft_vocab_size is None
    assert spec({"vocab_size": 4}, kind="eagle3").draft_vocab_size is None


def test_a_place_is_stated_at_the_top_or_in_the_layer_config() -> None:
    draft = spec({"a": False, "null": ..., "transformer_layer_config": {"b": 1, "e": {"c": 1}}}, kind="eagle3")
    assert [draft.states([place]) for place in ("a", "b", "e.c", "null", "c", "gone")] == [True, True, True, False, False, False]
    assert draft.states(["gone", "null", "b"])
    assert not draft.states([])


def test_a_shape_is_that_of_the_first_name_with_or_without_model() -> None:
    shapes = {"a": (1,), "model.b": (2,), "b.model.": (9,), "model.c": (3,), "c": (4,)}
    draft = draft_spec({}, shapes, kind="eagle3")
    assert [draft.shape(name) for name in ("a", "b", "c", "gone")] == [(1,), (2,), (4,), None]
    assert draft.shape("gone", "b", "a") == (2,)
    assert draft.shape() is None
    assert spec({}, kind="eagle3").shape("a") is None

"""What a target's config says about its size and family."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.files import InputError
from specalign.layer_ids.target_config import TargetSpec, parse_target

SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 8}


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        parse_target(config, name="some/target")
    return str(caught.value)


def test_a_plain_config_is_read() -> None:
    config = {"architectures": ["A", "B"], "model_type": "a", "vocab_size": 99, **SIZES}
    assert parse_target(config, name="n") == TargetSpec("n", ("A", "B"), ("a",), 4, 8, 99)


def test_what_a_config_leaves_out_is_empty() -> None:
    assert parse_target(SIZES, name="n") == TargetSpec("n", (), (), 4, 8, None)
    odd = {"architectures": "A", "model_type": 3, "vocab_size": "99"}
    assert parse_target(odd | SIZES, name="n") == TargetSpec("n", (), (), 4, 8, None)
    assert parse_target({"architectures": ["A", 3, "B"]} | SIZES, name="n").architectures == ("A", "B")


@pytest.mark.parametrize("layers", ["num_hidden_layers", "n_layer", "num_layers"])
@pytest.mark.parametrize("hidden", ["hidden_size", "n_embd", "d_model"])
def test_sizes_have_older_names_too(layers: str, hidden: str) -> None:
    target = parse_target({layers: 3, hidden: 16}, name="n")
    assert (target.num_layers, target.hidden_size) == (3, 16)


def test_of_several_names_the_first_that_is_set_counts() -> None:
    target = parse_target({"num_hidden_layers": None, "n_layer": 3, "num_layers": 5, "n_embd": 16, "d_model": 32}, name="n")
    assert (target.num_layers, target.hidden_size) == (3, 16)


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config", "thinker_config.text_config"])
def test_a_multimodal_config_keeps_the_language_models_numbers_inside(place: str) -> None:
    inner: dict[str, Any] = {"model_type": "inner", "vocab_size": 99, **SIZES}
    for key in reversed(place.split(".")):
        inner = {key: inner}
    target = parse_target({"architectures": ["A"], "model_type": "outer", "hidden_size": 77, "vocab_size": 66} | inner, name="n")
    assert target == TargetSpec("n", ("A",), ("outer", "inner"), 4, 8, 99)


def test_the_top_level_counts_when_it_states_layers() -> None:
    target = parse_target(SIZES | {"vocab_size": 9, "text_config": {"num_hidden_layers": 7, "vocab_size": 5}}, name="n")
    assert (target.num_layers, target.vocab_size) == (4, 9)


def test_the_vocabulary_may_stay_outside_of_text_config() -> None:
    assert parse_target({"vocab_size": 66, "text_config": SIZES}, name="n").vocab_size == 66


def test_what_is_no_object_is_no_inner_config() -> None:
    assert parse_target({"text_config": "x", "llm_config": [1], "language_config": SIZES}, name="n").num_layers == 4


def test_a_model_type_that_stands_twice_is_named_once() -> None:
    assert parse_target({"model_type": "a", "text_config": {"model_type": "a", **SIZES}}, name="n").model_types == ("a",)


@pytest.mark.parametrize(("layers", "hidden"), [(1, 1), (100_000, 1 << 24)])
def test_the_smallest_and_the_largest_sizes_are_taken(layers: int, hidden: int) -> None:
    target = parse_target({"num_hidden_layers": layers, "hidden_size": hidden}, name="n")
    assert (target.num_layers, target.hidden_size) == (layers, hidden)


@pytest.mark.parametrize("bad", [0, -1, 100_001, 10**30, True, 4.0, "4", [4]])
def test_a_number_of_layers_beyond_the_limits_is_refused_with_both(bad: object) -> None:
    says = f"some/target: num_layers must be an integer from 1 to 100000, not {bad}"
    assert refusal({"num_layers": bad, "hidden_size": 8}) == says


@pytest.mark.parametrize("bad", [0, -1, (1 << 24) + 1, True, 8.0, "8"])
def test_a_hidden_size_beyond_the_limits_is_refused_with_both(bad: object) -> None:
    assert refusal({"num_layers": 4, "n_embd": bad}) == f"some/target: n_embd must be an integer from 1 to 16777216, not {bad}"


def test_a_long_wrong_value_is_cut_after_60_characters() -> None:
    assert refusal({"num_layers": "9" * 99}).endswith("not " + "9" * 60)


@pytest.mark.parametrize(
    ("config", "known"),
    [({"architectures": ["A"], "model_type": "a"}, "['A']"), ({"model_type": "a"}, "a"), ({"architectures": []}, "unknown")],
)
def test_a_missing_size_is_named_by_its_usual_key_with_what_the_config_is(config: dict[str, Any], known: str) -> None:
    layers = f"some/target: no num_hidden_layers in this config ({known}), so the number of layers of the target is unknown"
    assert refusal(config) == layers
    hidden = f"some/target: no hidden_size in this config ({known}), so the hidden size of the target is unknown"
    assert refusal(config | {"num_layers": 4}) == hidden


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "DFlashDraftModel", "Qwen3DSparkModel", "XSpeculator", "EAGLE"])
def test_a_draft_head_is_no_target(name: str) -> None:
    for names in ([name, "LlamaForCausalLM"], ["LlamaForCausalLM", name]):
        says = f"some/target: {names[0]} is a draft head, not a target: give the draft first and the target second"
        assert refusal({"architectures": names} | SIZES) == says

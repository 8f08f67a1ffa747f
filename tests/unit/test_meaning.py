"""What ids were meant to say: declared beats format beats proof beats hint."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.conventions import POST_NORM, Convention
from specalign.layer_ids.draft_config import looks_like, parse_draft
from specalign.layer_ids.files import InputError
from specalign.layer_ids.meaning import Meaning, is_double_statement, meaning_of, readings
from specalign.layer_ids.target_config import parse_target
from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, IDS, NO_IDS, draft_spec, eagle, ids, target_spec

TARGET = target_spec(GPT_OSS)


@pytest.mark.parametrize(
    ("config", "declared", "certainty", "states"),
    [
        (HEAD, None, "proven", (24, 30, 36)),
        (HEAD | ids([1, 17, 32]), None, "hint", (2, 18, 33)),
        (HEAD | ids([2, 18, 33]), None, "hint", (2, 18, 33)),
        (HEAD | ids([1, 17, 32]), Convention.BOUNDARY, "declared", (1, 17, 32)),
        (HEAD | ids([3, 19, 30]), None, "unknown", None),
        (HEAD | ids([3, 19, 36]), Convention.HF, "declared", (3, 19, POST_NORM)),
        (DFLASH, None, "format", (2, 18, 33)),
        (HEAD | ids([3, 19, 30]) | {"speculators_model_type": "eagle3"}, None, "format", (3, 19, 30)),
        ({"architectures": ["DFlashDraftModel"], "aux_hidden_state_layer_ids": [3, 19]}, None, "format", (3, 19)),
        (HEAD | {"eagle_config": {"use_aux_hidden_state": False}}, None, "format", (POST_NORM,)),
        (HEAD | {"eagle_config": None, IDS: None}, None, "unknown", None),
    ],
)
def test_certainty_and_states(config: dict[str, Any], declared: Convention | None, certainty: str, states: object) -> None:
    meaning = meaning_of(draft_spec(config), TARGET, declared=declared)
    assert (meaning.certainty, meaning.states) == (certainty, states)


NESTED = f"eagle_config.{IDS}"
INVALID = "the ids are invalid"
EITHER = "every id is below n = 36: [3, 19, 30] may be boundaries or block outputs, nothing in them says which"
OUT_OF_RANGE = (
    "layer id 36 is out of range: the rule 'output' makes it boundary 37, and a 36-layer target has boundaries 0..36;"
    " valid ids are 0..35"
)
NEGATIVE = "layer id -2 is negative: a 36-layer target takes 0..36, and no engine counts from the end here"
TWICE_STATED = "eagle_config holds block outputs, the top level the same states as boundaries: each id there is one higher"
OFF = "use_aux_hidden_state is false: the head takes the state after the final norm and concatenates nothing"
DEFAULT = "the config names no layer ids, so every engine falls back on its own default"
INNER = "text_config.dflash_config.target_layer_ids"


@pytest.mark.parametrize(
    ("config", "declared", "expected"),
    [
        (eagle(use_aux_hidden_state=False), None, Meaning(None, None, None, "format", (POST_NORM,), OFF)),
        (NO_IDS, Convention.OUTPUT, Meaning(None, None, Convention.OUTPUT, "unknown", None, DEFAULT)),
        (
            ids([True]),
            Convention.HF,
            Meaning(
                NESTED,
                None,
                Convention.HF,
                "unknown",
                None,
                INVALID,
                "layer id True is a bool, not an integer: a 36-layer target takes 0..36",
            ),
        ),
        (ids([3, 19, 30]), None, Meaning(NESTED, (3, 19, 30), None, "unknown", None, EITHER)),
        (
            {},
            Convention.OUTPUT,
            Meaning(
                NESTED,
                (24, 30, 36),
                Convention.OUTPUT,
                "declared",
                None,
                "the convention OUTPUT was declared",
                OUT_OF_RANGE,
            ),
        ),
        (
            {},
            None,
            Meaning(
                NESTED,
                (24, 30, 36),
                Convention.BOUNDARY,
                "proven",
                (24, 30, 36),
                "the largest id is n = 36: as block outputs that would be block 36 of 36",
            ),
        ),
        (
            ids([1, 17, 32]),
            None,
            Meaning(
                NESTED,
                (1, 17, 32),
                Convention.OUTPUT,
                "hint",
                (2, 18, 33),
                "the ids equal the OUTPUT default for n = 36: a strong hint, no proof",
            ),
        ),
        (
            {"eagle_config": {IDS: [23, 29, 35]}},
            Convention.BOUNDARY,
            Meaning(NESTED, (23, 29, 35), Convention.OUTPUT, "format", (24, 30, 36), TWICE_STATED),
        ),
        (
            {"eagle_config": {IDS: [-2, 3]}, IDS: [-1, 4]},
            Convention.BOUNDARY,
            Meaning(NESTED, None, None, "unknown", None, INVALID, NEGATIVE),
        ),
        (
            ids([3, 19, 30]) | {"speculators_model_type": "eagle3"},
            None,
            Meaning(
                NESTED,
                (3, 19, 30),
                Convention.BOUNDARY,
                "format",
                (3, 19, 30),
                "speculators' format stores boundaries",
            ),
        ),
    ],
)
def test_every_field_of_what_the_ids_mean(config: dict[str, Any], declared: Convention | None, expected: Meaning) -> None:
    assert meaning_of(draft_spec(HEAD | config), TARGET, declared=declared) == expected


@pytest.mark.parametrize("config", [{IDS: None}, {"eagle_config": None}, {IDS: [24, 30]}, {IDS: "24"}])
def test_one_list_or_two_of_unlike_length_state_nothing_twice(config: dict[str, Any]) -> None:
    assert not is_double_statement(draft_spec(HEAD | config))


def test_readings_are_the_conventions_that_allow_the_ids() -> None:
    assert readings((3, 19), 36) == {Convention.BOUNDARY: "[3, 19]", Convention.OUTPUT: "[4, 20]"}
    assert readings((3, 36), 36) == {Convention.BOUNDARY: "[3, 36]"}
    assert readings((3, 37), 36) == {}


def test_a_place_inside_text_config_means_what_it_means_outside() -> None:
    config = {"architectures": ["DFlashDraftModel"], "text_config": {"dflash_config": {"target_layer_ids": [1, 17]}}}
    why = f"{INNER} holds OUTPUT ids in every format that has it"
    assert meaning_of(draft_spec(config), TARGET) == Meaning(INNER, (1, 17), Convention.OUTPUT, "format", (2, 18), why)


def test_a_head_served_as_eagle_takes_the_last_state() -> None:
    why = "a head served as EAGLE takes the last state, not layer ids"
    assert meaning_of(draft_spec(HEAD, kind="eagle"), TARGET) == Meaning(None, None, None, "format", (POST_NORM,), why)


@pytest.mark.parametrize("bad", [["a"], [True], [1.5], [37], [-2], "24,30", {"a": 1}, [1, 1]])
def test_ids_that_nobody_could_mean_are_an_error_not_a_guess(bad: object) -> None:
    meaning = meaning_of(draft_spec(HEAD | ids(bad)), TARGET, declared=Convention.OUTPUT)
    assert meaning.states is None
    assert meaning.error


def test_declaring_output_for_an_id_of_n_is_contradicted() -> None:
    meaning = meaning_of(draft_spec(HEAD), TARGET, declared=Convention.OUTPUT)
    assert meaning.states is None
    assert "36" in (meaning.error or "")


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}, "eagle3"),
        ({"eagle_config": {}}, "eagle3"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"architectures": ["DominoDraftModel"], "dflash_config": {}}, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"], "dflash_config": {}}, "dspark"),
        ({"architectures": ["X"], "speculators_model_type": "dflash"}, "dflash"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
    ],
)
def test_the_kind_is_read_from_the_files(config: dict[str, Any], kind: str) -> None:
    draft = parse_draft(config, name="d")
    assert draft.kind == kind == looks_like(draft)


def test_a_config_of_another_architecture_is_no_draft_head() -> None:
    with pytest.raises(InputError, match="BertModel"):
        parse_draft({"architectures": ["BertModel"], "num_hidden_layers": 12}, name="d")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "hidden_size": 8}, "draft head, not a target"),
        ({"architectures": ["ResNet"], "hidden_size": 8}, "num_hidden_layers"),
        ({"num_hidden_layers": 0, "hidden_size": 8}, "from 1 to"),
        ({"num_hidden_layers": 10**30, "hidden_size": 8}, "from 1 to"),
        ({"num_hidden_layers": True, "hidden_size": 8}, "from 1 to"),
        ({"num_hidden_layers": 4}, "hidden_size"),
    ],
)
def test_a_target_without_its_sizes_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_target(config, name="t")


def test_a_multimodal_target_keeps_its_sizes_in_text_config() -> None:
    target = parse_target(
        {
            "architectures": ["A"],
            "model_type": "outer",
            "text_config": {"model_type": "inner", "num_hidden_layers": 9, "hidden_size": 8},
        },
        name="t",
    )
    assert (target.num_layers, target.hidden_size, target.model_types) == (9, 8, ("outer", "inner"))

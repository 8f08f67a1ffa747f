"""What ids were meant to say: declared beats format beats proof beats hint."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.conventions import POST_NORM, Convention
from specalign.layer_ids.draft_config import looks_like, parse_draft
from specalign.layer_ids.files import InputError
from specalign.layer_ids.meaning import meaning_of
from specalign.layer_ids.target_config import parse_target
from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, IDS, draft_spec, ids, target_spec

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

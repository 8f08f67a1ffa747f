"""What a config says: precedence, ids and widths, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from specalign.draft import DraftError, Eagle3Config, parse_eagle3_config, read_eagle3_config
from specalign.layer_ids.files import InputError

from .heads import config_dict

EXAMPLES = Path(__file__).parents[3] / "examples" / "heads"


def parse(**changes: object) -> Eagle3Config:
    return parse_eagle3_config(config_dict(**changes))


@pytest.mark.parametrize("flag", ["norm_before_fc", "fc_norm", "norm_output", "norm_before_residual"])
@pytest.mark.parametrize(
    ("nested", "top", "wanted"),
    [
        (..., ..., False), (..., True, True), (True, ..., True), (True, False, True), (False, True, False), (None, True, True),
        (True, None, True), (None, None, False),
    ],
)  # fmt: skip
def test_a_nested_key_wins_over_the_top_level_and_null_is_not_stated(
    flag: str, nested: object, top: object, wanted: bool
) -> None:
    raw = config_dict(**{flag: top}, eagle_config={} if nested is ... else {flag: nested})
    assert getattr(parse_eagle3_config(raw), flag) is wanted


def test_each_key_is_looked_up_by_itself() -> None:
    """A nested eagle_config that states one key does not hide the other keys of the top level."""
    config = parse(eagle_config={"norm_before_fc": True}, eagle_aux_hidden_state_layer_ids=[2, 4, 6, 8], norm_output=True)
    assert (config.norm_before_fc, config.layer_ids, config.chunks, config.norm_output) == (True, (2, 4, 6, 8), 4, True)


@pytest.mark.parametrize(
    ("changes", "chunks", "ids"),
    [
        ({}, 3, None),
        ({"eagle_config": None}, 3, None),
        ({"eagle_aux_hidden_state_layer_ids": None}, 3, None),
        ({"num_aux_hidden_states": 5}, 5, None),
        ({"eagle_aux_hidden_state_layer_ids": [4]}, 1, (4,)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 46, 91, 93]}, 4, (2, 46, 91, 93)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [9, 2]}}, 2, (9, 2)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, 2, (1, 2)),
        ({"eagle_aux_hidden_state_layer_ids": [3, 3, 3], "num_aux_hidden_states": 3}, 3, (3, 3, 3)),
    ],
)  # fmt: skip
def test_ids_decide_the_number_of_chunks(changes: dict[str, object], chunks: int, ids: tuple[int, ...] | None) -> None:
    config = parse(**changes)
    assert (config.chunks, config.layer_ids, config.fc_inputs) == (chunks, ids, chunks * 16)


@pytest.mark.parametrize(("width", "wanted"), [(..., 16), (None, 16), (20, 20), (16, 16)])
def test_a_missing_or_null_target_hidden_size_is_the_heads_own(width: object, wanted: int) -> None:
    assert parse(target_hidden_size=width).target_hidden_size == wanted
    assert parse(target_hidden_size=width).fc_inputs == 3 * wanted


def test_a_head_without_aux_states_takes_one_state_whatever_ids_stand_there() -> None:
    """vLLM and SGLang hand on POST_NORM then, and ModelOpt writes an empty list beside the flag."""
    for ids in ([], [1, 2, 3], None):
        config = parse(eagle_config={"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": ids})
        assert (config.use_aux_hidden_state, config.chunks, config.layer_ids) == (False, 1, None)


@pytest.mark.parametrize(
    ("draft", "tie", "borrows", "rows"),
    [(..., False, True, 40), (None, False, True, 40), (40, False, False, 40), (12, False, False, 12), (..., True, False, 40)],
)
def test_lm_head_is_the_targets_only_when_no_draft_vocabulary_is_stated(
    draft: object, tie: bool, borrows: bool, rows: int
) -> None:
    config = parse(draft_vocab_size=draft, tie_word_embeddings=tie)
    assert (config.borrows_lm_head, config.draft_vocab) == (borrows, rows)


def test_defaults_are_those_of_llama() -> None:
    config = parse(head_dim=..., num_key_value_heads=..., rms_norm_eps=..., rope_theta=...)
    assert (config.head_dim, config.num_key_value_heads, config.rms_norm_eps, config.rope.theta) == (4, 4, 1e-6, 10000.0)
    assert parse(head_dim=None).head_dim == 4


def test_windows_follow_layer_types() -> None:
    config = parse(
        num_hidden_layers=3, sliding_window=7, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    )
    assert [config.window(i) for i in range(3)] == [7, None, 7]
    assert parse(sliding_window=7).window(0) is None  # as vLLM: no layer_types, no sliding layer


def test_speculators_layer_config_is_read_last() -> None:
    layer = {
        key: config_dict()[key]
        for key in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "rms_norm_eps",
        )
    }
    raw = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 12, "norm_before_residual": True,
        "target_hidden_size": None, "eagle_aux_hidden_state_layer_ids": [2, 46, 91, 93], "norm_before_fc": True, "fc_norm": False,
        "transformer_layer_config": {**layer, "model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}, "vocab_size": 41},
        "vocab_size": 40,
    }  # fmt: skip
    config = parse_eagle3_config(raw)
    assert (config.chunks, config.vocab_size, config.rope.theta, config.norm_before_residual) == (4, 40, 5e6, True)
    raw["transformer_layer_config"]["model_type"] = "qwen3"  # type: ignore[index]
    with pytest.raises(DraftError, match="'qwen3'; this head runs llama layers only"):
        parse_eagle3_config(raw)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_needed_keys_are_named(key: str) -> None:
    with pytest.raises(DraftError, match=f"^my head: no {key} in this config"):
        parse_eagle3_config(config_dict(**{key: ...}), name="my head")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM is no Llama EAGLE3 head"),
        ({"model_type": "kimi_k2"}, "layers are 'kimi_k2'"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"hidden_size": "16"}, "hidden_size must be an integer, not '16'"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"hidden_size": 0}, "hidden_size must be at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_key_value_heads": 3}, "4 query heads over 3 key-value heads"),
        ({"head_dim": 5}, "head_dim is 5; rotary positions need an even one"),
        ({"head_dim": ..., "num_attention_heads": 5, "num_key_value_heads": 5}, "no multiple of 5 heads; state head_dim"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must lie between 0 and 1"),
        ({"draft_vocab_size": 41}, "draft_vocab_size 41 against vocab_size 40"),
        ({"draft_vocab_size": 0}, "draft_vocab_size 0"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings with draft_vocab_size 12 of 40"),
        ({"norm_before_fc": "yes"}, "norm_before_fc must be true or false, not 'yes'"),
        ({"norm_before_fc": 1}, "norm_before_fc must be true or false"),
        ({"fc_norm": False, "use_aux_norm": True}, "its old name use_aux_norm is True"),
        ({"eagle_aux_hidden_state_layer_ids": []}, "at least one integer"),
        ({"eagle_aux_hidden_state_layer_ids": [1, "2"]}, "at least one integer"),
        ({"eagle_aux_hidden_state_layer_ids": [1, True]}, "at least one integer"),
        ({"eagle_aux_hidden_state_layer_ids": [1, -2]}, "at least one integer >= 0"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "at least one integer"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2], "num_aux_hidden_states": 3}, "is 3, but .* holds 2 ids"),
        ({"use_aux_hidden_state": False, "target_hidden_size": 20}, "POST_NORM .20 wide."),
        ({"use_aux_hidden_state": False, "norm_before_fc": True}, "there is no fc, yet norm_before_fc or fc_norm is on"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types names 2 layers, num_hidden_layers is 1"),
        ({"layer_types": ["chunked_attention"]}, "'chunked_attention' is not supported"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window is None"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 0}, "sliding_window is 0"),
        ({"use_sliding_window": True, "sliding_window": 8}, "no layer_types says which layers slide"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm is True; this head implements only False"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step is 4"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm is False"),
        ({"bias": True}, "bias is True"),
    ],
)  # fmt: skip
def test_configs_that_this_head_cannot_follow_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DraftError, match=f"^my head: .*{says}"):
        parse_eagle3_config(config_dict(**changes), name="my head")


@pytest.mark.parametrize(
    "change",
    [{"chunks": 2, "layer_ids": (1, 2, 3)}, {"later_norm": "norm"}, {"use_aux_hidden_state": False}, {"head_dim": 3}],
    ids=str,
)
def test_a_config_made_by_hand_is_checked_too(change: dict[str, object]) -> None:
    with pytest.raises(DraftError, match="cannot be"):
        dataclasses.replace(parse(), **change)


def test_legacy_flag_alone_means_fc_norm() -> None:
    assert parse(use_aux_norm=True).fc_norm is True


LLAMA_HEADS = [
    "SpecForge--llama3-70B-ealge3",
    "SpecForge--qwen3-235B-A22B-eagle3",
    "SpecForge--gpt-oss-120B-eagle3",
    "SpecForge--longcat-flash-eagle3",
    "SpecForge--qwen3-30B-A3B-eagle3.1",
]


@pytest.mark.parametrize("head", LLAMA_HEADS)
def test_published_llama_heads_are_read(head: str) -> None:
    raw = json.loads((EXAMPLES / head / "config.json").read_text())
    config = read_eagle3_config(EXAMPLES / head)
    assert config.draft_vocab_size == raw["draft_vocab_size"]
    assert config.chunks == 3
    assert config.fc_norm == raw.get("fc_norm", False)
    assert config.norm_output == raw.get("norm_output", False)


def test_the_head_behind_the_seed_fault_has_three_chunks_and_the_whole_norm() -> None:
    """nvidia/gpt-oss-120b-Eagle3-v3: 8640 features into fc, one norm over all of them (SGLang PR #32334)."""
    raw = json.loads((EXAMPLES / "nvidia--gpt-oss-120b-Eagle3-v3" / "config.json").read_text())
    raw |= {
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 17280,
    }  # not in the stored excerpt
    config = parse_eagle3_config(raw)
    assert (config.layer_ids, config.fc_inputs, config.norm_before_fc, config.fc_norm) == ((24, 30, 36), 8640, True, False)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: no such file"):
        read_eagle3_config(tmp_path)

"""Reading `config.json`: what is read, what is filled in as transformers does, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specalign.models import GptOssConfig, ModelConfigError
from tests.unit.models.tiny import BASE, YARN

RELEASED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}
"""The config of the released 20B model."""


def test_the_released_config_reads_whole() -> None:
    config = GptOssConfig.from_dict(RELEASED)
    assert config.windows == (128, None) * 12
    assert (config.num_local_experts, config.num_experts_per_tok, config.hidden_size) == (32, 4, 2880)
    assert (config.rope_type, config.rope_theta, config.rope_factor, config.rope_truncate) == ("yarn", 150000.0, 32.0, False)
    assert config.rope_concentration == pytest.approx(1.3465735902799727)
    assert (config.swiglu_alpha, config.swiglu_limit, config.rms_norm_eps) == (1.702, 7.0, 1e-5)


def test_old_and_new_spelling_of_rope_are_the_same_config() -> None:
    old = {key: value for key, value in YARN.items() if key != "rope_theta"}
    spelled = BASE | {"rope_parameters": None, "rope_scaling": old, "rope_theta": 150000}
    assert GptOssConfig.from_dict(spelled) == GptOssConfig.from_dict(BASE)


def test_a_file_that_says_nothing_gets_what_transformers_takes() -> None:
    bare = {key: value for key, value in BASE.items() if key not in ("rope_parameters", "layer_types", "swiglu_limit")}
    config = GptOssConfig.from_dict(bare)
    assert config.layer_types == ("sliding_attention", "full_attention") * 2
    assert (config.rope_type, config.rope_factor, config.rope_original_length, config.rope_truncate) == (
        "yarn",
        32.0,
        4096,
        False,
    )
    assert config.swiglu_limit == 7.0


def test_a_null_head_dim_is_derived() -> None:
    assert GptOssConfig.from_dict(BASE | {"head_dim": None}).head_dim == 16


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in BASE.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BASE | {"model_type": "llama"}, "model_type is 'llama', not 'gpt_oss'"),
        (without("num_local_experts"), "num_local_experts must be an integer, not missing"),
        (without("head_dim"), "head_dim must be an integer, not missing"),
        (BASE | {"hidden_size": "64"}, "hidden_size must be an integer, not '64'"),
        (BASE | {"vocab_size": True}, "vocab_size must be an integer"),
        (BASE | {"vocab_size": 0}, "vocab_size must be at least 1, not 0"),
        (BASE | {"num_key_value_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        (BASE | {"head_dim": 15}, "head_dim 15 is odd"),
        (BASE | {"num_experts_per_tok": 5}, "5 is more than the 4 experts"),
        (BASE | {"layer_types": ["full_attention"]}, "lists 1 layers, num_hidden_layers says 4"),
        (BASE | {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'; implemented are"),
        (BASE | {"layer_types": "full_attention"}, "layer_types must be a list"),
        (BASE | {"sliding_window": None}, "sliding_window must be at least 1 for sliding layers, not None"),
        (BASE | {"sliding_window": 0}, "sliding_window must be at least 1"),
        (BASE | {"hidden_act": "gelu"}, "hidden_act 'gelu': only silu"),
        (BASE | {"tie_word_embeddings": True}, "tie_word_embeddings is true"),
        (BASE | {"attention_bias": 1}, "attention_bias must be true or false"),
        (BASE | {"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number"),
        (BASE | {"swiglu_limit": -1.0}, "swiglu_limit must be above 0"),
        (BASE | {"quantization_config": {"quant_method": "fp8"}}, "'fp8': only mxfp4"),
        (BASE | {"rope_parameters": {"rope_type": "llama3"}}, "rope_type 'llama3': implemented are"),
        (BASE | {"rope_parameters": YARN | {"short_factor": [1]}}, "'short_factor' not implemented"),
        (BASE | {"rope_parameters": YARN | {"factor": None}}, "factor must be a finite number"),
        (BASE | {"rope_parameters": YARN | {"factor": 0.5}}, "factor must be at least 1, not 0.5"),
        (BASE | {"rope_parameters": YARN | {"beta_slow": 64.0}}, "beta_fast >= beta_slow"),
        (BASE | {"rope_scaling": YARN | {"factor": 2.0}}, "both set and differ"),
        (BASE | {"rope_parameters": {"full_attention": YARN}}, "'full_attention' not implemented"),
        (BASE | {"rope_parameters": [1]}, "must be an object"),
        (BASE | {"original_max_position_embeddings": 128}, "is 128, but 64 in rope_parameters"),
        (BASE | {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5: only 1"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message) as error:
        GptOssConfig.from_dict(config, name="target/config.json")
    assert str(error.value).startswith("target/config.json: ")


def test_a_config_made_by_hand_is_checked_too() -> None:
    config = GptOssConfig.from_dict(BASE)
    with pytest.raises(ModelConfigError, match="odd"):
        dataclasses.replace(config, head_dim=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.head_dim = 8  # type: ignore[misc]

"""Rotary settings against transformers: its own functions on its own config class."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specalign.draft import DraftError, RopeConfig, inverse_frequencies, parse_eagle3_config
from specalign.draft.rope import Rotary, rotate

from .heads import config_dict

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
CASES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3, other bounds": {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 16.0, "factor": 3.0},
    "llama3 without an original": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
    "yarn": YARN,
    "yarn, no truncation (gpt-oss)": {**YARN, "truncate": False},
    "yarn, other betas": {**YARN, "beta_fast": 4.0, "beta_slow": 2.0},
    "yarn, attention factor": {**YARN, "attention_factor": 1.7},
    "yarn, mscale (DeepSeek)": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn, equal mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, mscale alone": {**YARN, "mscale": 0.5},
    "yarn, mscale_all_dim alone": {**YARN, "mscale_all_dim": 0.5},
    "yarn, no stretch": {**YARN, "factor": 1.0},
    "yarn, shrunk": {**YARN, "factor": 0.5},
    "yarn, tiny original": {**YARN, "original_max_position_embeddings": 8},
    "yarn, factor from lengths": {"rope_type": "yarn", "original_max_position_embeddings": 64, "factor": None},
}


def transformers_config(params: dict[str, object], theta: float, head_dim: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_parameters={**params, "rope_theta": theta},
    )


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", "both"])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("case", CASES)
def test_frequencies_have_the_values_of_transformers(case: str, theta: float, place: str) -> None:
    params, head_dim = CASES[case], 32
    their_config = transformers_config(params, theta, head_dim)
    function = ROPE_INIT_FUNCTIONS.get(str(params["rope_type"]), LlamaRotaryEmbedding.compute_default_rope_parameters)
    theirs, their_scale = function(their_config)
    old = {"rope_theta": theta, "rope_scaling": params}
    new = {"rope_theta": ..., "rope_parameters": {**params, "rope_theta": theta}}
    raw = config_dict(
        max_position_embeddings=2048, **{"rope_scaling": old, "rope_parameters": new, "both": {**new, **old}}[place]
    )
    ours, our_scale = inverse_frequencies(parse_eagle3_config(raw).rope, head_dim)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=0)
    assert our_scale == pytest.approx(their_scale, rel=1e-12)


@pytest.mark.parametrize("case", ["default", "llama3", "yarn", "yarn, attention factor"])
def test_turning_equals_transformers(case: str) -> None:
    their_config = transformers_config(CASES[case], 10000.0, 16)
    g = torch.Generator().manual_seed(0)
    q, positions = torch.randn(1, 2, 5, 16, generator=g), torch.tensor([[0, 1, 7, 100, 2000]])
    cos, sin = LlamaRotaryEmbedding(their_config)(q, positions)
    theirs, _ = apply_rotary_pos_emb(q, q, cos, sin)
    raw = config_dict(max_position_embeddings=2048, rope_theta=10000.0, rope_scaling=CASES[case])
    our_cos, our_sin = Rotary(parse_eagle3_config(raw).rope, 16)(positions[0], torch.float32)
    torch.testing.assert_close(rotate(q, our_cos, our_sin), theirs, rtol=2e-3, atol=2e-3)  # angles of 2000 rad, 1 ulp = 1e-4
    torch.testing.assert_close(rotate(q, our_cos, our_sin)[..., :3, :], theirs[..., :3, :], rtol=2e-6, atol=2e-6)


def test_a_top_level_original_length_wins_as_in_transformers() -> None:
    raw = config_dict(rope_scaling=YARN, original_max_position_embeddings=256, max_position_embeddings=2048)
    assert parse_eagle3_config(raw).rope.original_max_position_embeddings == 256


def test_the_old_name_of_the_type_is_taken() -> None:
    raw = config_dict(rope_scaling={"type": "linear", "factor": 2})
    assert parse_eagle3_config(raw).rope == RopeConfig(rope_type="linear", factor=2, theta=100.0)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"rope_type": "default", "factor": 1.0}])
def test_no_scaling_is_the_default_type(scaling: object) -> None:
    assert parse_eagle3_config(config_dict(rope_scaling=scaling)).rope == RopeConfig(theta=100.0)


def test_equal_settings_for_each_layer_type_are_one_setting() -> None:
    inner = {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
    raw = config_dict(rope_parameters={"full_attention": inner, "sliding_attention": dict(inner)})
    assert parse_eagle3_config(raw).rope == RopeConfig(rope_type="linear", factor=2.0, theta=100.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported, default, linear"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "needs low_freq_factor and high_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "0 < low_freq_factor < high_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8}}, "needs original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 8}}, "needs factor or max_position_embeddings"),
        ({"rope_scaling": {"factor": 8.0}}, "no rope_type that uses it"),
        ({"rope_scaling": {"rope_type": "linear", "factor": True}}, "factor must be a finite number, not 'True'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor must be positive"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, "'mrope_section' is not supported"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "type says 'yarn'; keep one"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"rope_theta": "big"}, "rope_theta must be a finite number"),
        ({"rope_theta": 0}, "rope_theta must be positive"),
        ({"rope_parameters": {"rope_theta": 7.0}}, "rope_theta is 100.0 at the top and 7.0 in the rope settings"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"rope_type": "linear", "factor": 3}}, "disagree about factor: 2 and 3"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "linear"}}}, "from one layer type"),
    ],
)  # fmt: skip
def test_rope_settings_that_cannot_be_followed_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DraftError, match=says):
        parse_eagle3_config(config_dict(**changes))

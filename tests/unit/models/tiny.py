"""Tiny GPT-OSS configs, as transformers writes them, that between them turn every switch of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specalign.models import GptOss, GptOssConfig, random_gpt_oss

YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
BASE: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 4,
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 7.0,
    "max_position_embeddings": 512,
    "rope_parameters": YARN,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "float32",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "window-5-yarn": BASE,
    "one-kv-head-each, yarn-truncated, top-1": BASE
    | {"num_key_value_heads": 4, "num_experts_per_tok": 1, "rope_parameters": YARN | {"truncate": True, "factor": 32.0}},
    "one-kv-head, 8-experts-top-4, clamp-bites": BASE
    | {
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "swiglu_limit": 0.5,
        "swiglu_alpha": 1.1,
    },
    "plain-rope, all-full, no-attention-bias": BASE
    | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * 4,
        "attention_bias": False,
    },
    "all-sliding, window-1, attention-factor": BASE
    | {
        "layer_types": ["sliding_attention"] * 3,
        "num_hidden_layers": 3,
        "sliding_window": 1,
        "rope_parameters": YARN | {"attention_factor": 1.4},
    },
    "full-first, wide-window, mscale, all-experts": BASE
    | {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "sliding_window": 200,
        "num_experts_per_tok": 4,
        "head_dim": 32,
        "rope_parameters": YARN | {"mscale": 1.2, "mscale_all_dim": 0.7, "beta_fast": 8.0, "beta_slow": 2.0},
        "rms_norm_eps": 1e-2,
    },
}


def tiny(config: dict[str, Any] = BASE, *, seed: int = 0) -> GptOss:
    """A model whose biases, sinks and norms all matter."""
    model = random_gpt_oss(GptOssConfig.from_dict(config), seed=seed)
    for name, parameter in sorted(model.named_parameters()):
        parameter.copy_(drawn(name, parameter))
    return model


def drawn(name: str, like: Tensor) -> Tensor:
    """Random values for a parameter, by its name: large enough that no part of the model is idle, and predictions are clear."""
    generator = torch.Generator().manual_seed(sum(name.encode()) * 1009 + like.numel())
    normal = torch.randn(like.shape, generator=generator)
    if "norm" in name:
        return 1 + 0.5 * normal.clamp(-1, 1)
    if "sinks" in name or "embed" in name:
        return normal
    if name.endswith("bias"):
        return 0.3 * normal
    return normal / like.shape[1] ** 0.5  # `[out, in]`, or `[experts, in, out]`


def tokens(count: int, *, batch: int = 1, vocab: int = 97, seed: int = 1) -> Tensor:
    """int64 `[batch, count]`."""
    return torch.randint(0, vocab, (batch, count), generator=torch.Generator().manual_seed(seed))

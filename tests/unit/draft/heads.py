"""Tiny configs and random weights for the tests of the draft room, by the names that checkpoints use."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

BASE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": 40,
    "draft_vocab_size": 12,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
}
TARGETS = [0, 1, 4, 5, 9, 11, 12, 20, 21, 30, 33, 39]
"""The target tokens that the twelve draft tokens are."""


def config_dict(**changes: object) -> dict[str, object]:
    """`BASE` with changes; a change to `...` removes the key."""
    return {key: value for key, value in {**BASE, **changes}.items() if value is not ...}


def offsets() -> torch.Tensor:
    return torch.tensor(TARGETS) - torch.arange(len(TARGETS))


def random_tensors(
    raw: dict[str, object], *, width: int = 16, chunks: int = 3, seed: int = 0, **more: bool
) -> dict[str, torch.Tensor]:
    """float64 weights for `raw`, written down from the format, not from the code under test.

    `more`: input_norm, fc_norm, bias, mlp_bias, no_fc; each says that these tensors are there.
    """
    g = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64) * 0.3

    def norm(n: int) -> torch.Tensor:
        return torch.rand(n, generator=g, dtype=torch.float64) + 0.5

    hidden, inner, dim = int(str(raw["hidden_size"])), int(str(raw["intermediate_size"])), int(str(raw["head_dim"]))
    heads, kv_heads = int(str(raw["num_attention_heads"])), int(str(raw["num_key_value_heads"]))
    tensors = {"embed_tokens.weight": matrix(int(str(raw["vocab_size"])), hidden), "norm.weight": norm(hidden)}
    if not more.get("no_fc"):
        tensors["fc.weight"] = matrix(hidden, chunks * width)
    if more.get("input_norm"):
        tensors["input_norm.weight"] = norm(chunks * width)
    if more.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": norm(width) for i in range(chunks)}
    for layer in range(int(str(raw["num_hidden_layers"]))):
        at, inputs = f"layers.{layer}.", hidden * (2 if layer == 0 else 1)
        outs = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        tensors |= {f"{at}self_attn.{p}_proj.weight": matrix(out, inputs) for p, out in outs.items()}
        tensors[f"{at}self_attn.o_proj.weight"] = matrix(hidden, heads * dim)
        if more.get("bias"):
            tensors |= {f"{at}self_attn.{p}_proj.bias": matrix(out) for p, out in {**outs, "o": hidden}.items()}
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        tensors |= {f"{at}mlp.{p}_proj.weight": matrix(*shape) for p, shape in shapes.items()}
        if more.get("mlp_bias"):
            tensors |= {f"{at}mlp.{p}_proj.bias": matrix(shape[0]) for p, shape in shapes.items()}
        norms = (
            ("input_layernorm", "hidden_norm", "post_attention_layernorm")
            if layer == 0
            else ("input_layernorm", "post_attention_layernorm")
        )
        tensors |= {f"{at}{name}.weight": norm(hidden) for name in norms}
    if not raw.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = matrix(int(str(raw.get("draft_vocab_size") or raw["vocab_size"])), hidden)
    if raw.get("draft_vocab_size") == len(TARGETS):
        tensors["d2t"] = offsets()
    return tensors


def save_head(folder: Path, raw: dict[str, object], tensors: dict[str, torch.Tensor]) -> Path:
    """A checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def inputs(
    tokens: int, *, chunks: int = 3, width: int = 16, vocab: int = 40, seed: int = 1
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Target tokens [T], and `chunks` float64 states [T, width] whose scales differ by powers of four."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (tokens,), generator=g)
    return ids, [torch.randn(tokens, width, generator=g, dtype=torch.float64) * 4.0**i for i in range(chunks)]

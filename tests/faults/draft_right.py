"""A right draft head, written by hand: nothing here calls the library or the contract's own reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def flag(config: dict[str, Any], name: str) -> bool:
    """Nested before top level; null is absent."""
    nested = (config.get("eagle_config") or {}).get(name)
    return bool(config.get(name) if nested is None else nested)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def whole(config: dict[str, Any], weights: dict[str, Tensor], x: Tensor) -> Tensor:
    return rms(x, weights["input_norm.weight"], config["rms_norm_eps"])


def per_chunk(config: dict[str, Any], weights: dict[str, Tensor], x: Tensor, width: int) -> Tensor:
    chunks = x.split(width, dim=-1)
    return torch.cat([rms(c, weights[f"fc_norm.{i}.weight"], config["rms_norm_eps"]) for i, c in enumerate(chunks)], -1)


def fc_input(config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
    width = config.get("target_hidden_size") or config["hidden_size"]
    if any(state.shape[-1] != width for state in states):
        raise ValueError(f"states of another width than {width}")
    joined = torch.cat(states, -1)
    if flag(config, "norm_before_fc"):
        joined = whole(config, weights, joined)
    return per_chunk(config, weights, joined, width) if flag(config, "fc_norm") else joined


def fc_input_of_one_norm(config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
    """For a head that declares that the two norms exclude each other."""
    if flag(config, "norm_before_fc") and flag(config, "fc_norm"):
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    return fc_input(config, weights, states)


def combine(config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
    return fc_input(config, weights, states) @ weights["fc.weight"].T


def outputs(config: dict[str, Any], weights: dict[str, Tensor], hidden: Tensor) -> tuple[Tensor, Tensor]:
    normed = rms(hidden, weights["norm.weight"], config["rms_norm_eps"])
    return normed, normed if flag(config, "norm_output") else hidden


def first_residual(config: dict[str, Any], weights: dict[str, Tensor], hidden: Tensor) -> Tensor:
    if not flag(config, "norm_before_residual"):
        return hidden
    return rms(hidden, weights["layers.0.hidden_norm.weight"], config["rms_norm_eps"])


def map_tokens(d2t: Tensor, tokens: Tensor) -> Tensor:
    return tokens + d2t[tokens]


LEGACY = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2", "midlayer": "layers.0"}
LAYER = (
    *(f"self_attn.{p}_proj" for p in "qkvo"),
    *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
    *("input_layernorm", "hidden_norm", "post_attention_layernorm"),
)


def renamed(name: str) -> str:
    return ".".join(LEGACY.get(segment, segment) for segment in name.split("."))


def parameters(config: dict[str, Any]) -> set[str]:
    chunks = len(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    names = {"fc", "norm", "embed_tokens", "lm_head", *(f"layers.0.{part}" for part in LAYER)}
    names |= {"input_norm"} if flag(config, "norm_before_fc") else set()
    names |= {f"fc_norm.{i}" for i in range(chunks)} if flag(config, "fc_norm") else set()
    return {f"{name}.weight" for name in names} | ({"d2t"} if config["draft_vocab_size"] < config["vocab_size"] else set())


def check_d2t(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    d2t, size = tensors["d2t"], config["draft_vocab_size"]
    targets = d2t + torch.arange(len(d2t))
    if len(d2t) != size or int(targets.min()) < 0 or int(targets.max()) >= config["vocab_size"]:
        raise ValueError("d2t does not fit the vocabularies")


def load(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    given = {renamed(name): tensor for name, tensor in tensors.items()}
    if given.keys() != parameters(config):
        raise ValueError(f"left over or missing: {sorted(given.keys() ^ parameters(config))}")
    if "d2t" in given:
        check_d2t(config, given)
    return given

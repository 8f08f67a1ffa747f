"""Broken draft heads, each the right one but for the fault."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.faults import draft_right as right
from tests.faults.draft_right import flag, rms

Config = dict[str, Any]
Weights = dict[str, Tensor]


def norm_not_applied(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return torch.cat(states, -1)


def top_level_only(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return right.fc_input({**config, "eagle_config": None}, weights, states)


def nested_only(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return right.fc_input({k: v for k, v in config.items() if k not in ("norm_before_fc", "fc_norm")}, weights, states)


def weight_unused(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return right.fc_input(config, {name: torch.ones_like(weight) for name, weight in weights.items()}, states)


def whole_per_chunk(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    if not flag(config, "norm_before_fc"):
        return right.fc_input(config, weights, states)
    parts = weights["input_norm.weight"].chunk(len(states))
    return torch.cat([rms(s, w, config["rms_norm_eps"]) for s, w in zip(states, parts, strict=True)], -1)


def chunks_as_whole(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    if not flag(config, "fc_norm"):
        return right.fc_input(config, weights, states)
    joined = torch.cat([weights[f"fc_norm.{i}.weight"] for i in range(len(states))])
    return rms(torch.cat(states, -1), joined, config["rms_norm_eps"])


def without(name: str) -> Any:
    """Where both norms are asked for, this one is dropped."""

    def fc_input(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
        both = flag(config, "norm_before_fc") and flag(config, "fc_norm")
        return right.fc_input({**config, name: False} if both else config, weights, states)

    return fc_input


def swapped(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    if not (flag(config, "norm_before_fc") and flag(config, "fc_norm")):
        return right.fc_input(config, weights, states)
    chunks = right.per_chunk(config, weights, torch.cat(states, -1), states[0].shape[-1])
    return right.whole(config, weights, chunks)


def one_weight(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    same = {f"fc_norm.{i}.weight": weights["fc_norm.0.weight"] for i in range(len(states)) if "fc_norm.0.weight" in weights}
    return right.fc_input(config, weights | same, states)


def backwards(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return right.fc_input(config, weights, states[::-1])


def fixed_eps(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    return right.fc_input({**config, "rms_norm_eps": 1e-6}, weights, states)


def three_states(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    if len(states) < 3:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    return right.fc_input(config, weights, states[:3])


def width_by_presence(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    width = config["target_hidden_size"] if "target_hidden_size" in config else config["hidden_size"]
    torch.empty(width * len(states))
    return right.fc_input(config, weights, states)


def norms_only_if_wider(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    joined = torch.cat(states, -1)
    return joined if joined.shape[-1] == config["hidden_size"] else right.fc_input(config, weights, states)


def fc_only_if_wider(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    joined = torch.cat(states, -1)
    return joined if joined.shape[-1] == config["hidden_size"] else right.combine(config, weights, states)


def in_place(config: Config, weights: Weights, states: list[Tensor]) -> Tensor:
    found = right.fc_input(config, weights, [state.clone() for state in states])
    states[0].add_(1)
    return found


def norm_output_inverted(config: Config, weights: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
    normed = rms(hidden, weights["norm.weight"], config["rms_norm_eps"])
    return normed, hidden if flag(config, "norm_output") else normed


def always_normed(config: Config, weights: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
    normed = rms(hidden, weights["norm.weight"], config["rms_norm_eps"])
    return normed, normed


def never_normed(config: Config, weights: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
    return rms(hidden, weights["norm.weight"], config["rms_norm_eps"]), hidden


def logits_follow_the_flag(config: Config, weights: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
    recycled = right.outputs(config, weights, hidden)[1]
    return recycled, recycled


def plain_residual(config: Config, weights: Weights, hidden: Tensor) -> Tensor:
    return hidden


def normed_residual(config: Config, weights: Weights, hidden: Tensor) -> Tensor:
    return rms(hidden, weights["layers.0.hidden_norm.weight"], config["rms_norm_eps"])


def unmapped(d2t: Tensor, tokens: Tensor) -> Tensor:
    return tokens


def looked_up(d2t: Tensor, tokens: Tensor) -> Tensor:
    return d2t[tokens]


def twice(d2t: Tensor, tokens: Tensor) -> Tensor:
    hot = d2t + torch.arange(len(d2t))
    return hot[tokens] + tokens


def accepting(missing: Any = (), left_over: Any = ()) -> Any:
    """A loader that does not notice when these are missing, or that these are left over ("*": anything)."""

    def load(config: Config, tensors: Weights) -> None:
        wanted = right.parameters(config)
        given = {right.renamed(name): tensor for name, tensor in tensors.items()}
        kept = {n: t for n, t in given.items() if n in wanted or not _among(n, left_over)}
        filler = {n: torch.zeros(1) for n in wanted if n not in kept and _among(n, missing) and n != "d2t"}
        if "d2t" in wanted and "d2t" not in kept and _among("d2t", missing):
            filler["d2t"] = torch.zeros(config["draft_vocab_size"], dtype=torch.int64)
        right.load(config, kept | filler)

    return load


def _among(name: str, names: Any) -> bool:
    return any(n == "*" or n in name for n in names)


def d2t_as_it_is(config: Config, tensors: Weights) -> None:
    fine = torch.zeros(config["draft_vocab_size"], dtype=torch.int64)
    right.load(config, {n: fine if n == "d2t" else t for n, t in tensors.items()})


def by_substring(config: Config, tensors: Weights) -> None:
    names = {}
    for name in tensors:
        for old, new in right.LEGACY.items():
            names[name] = names.get(name, name).replace(old, new)
    accepting(left_over=("*",))(config, {names[n]: t for n, t in tensors.items()})

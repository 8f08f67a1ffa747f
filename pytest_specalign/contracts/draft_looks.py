"""What the known faults of draft heads make of their inputs: for each one the faulty code in little, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pytest_specalign.contracts import draft_heads as heads
from pytest_specalign.contracts.draft_heads import DraftCase, rms_norm

What: TypeAlias = Literal["fc_input", "combine", "logits", "recycled", "residual", "tokens"]


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What a call was given, all in float64 (tokens in int64).

    Attributes:
        case: the head.
        weights: by name.
        states: the target's states; for `logits`, `recycled` and `residual` one tensor, the stream; for `tokens` d2t and tokens.
        flag: the value of the flag that the call is about, as the config states it.
    """

    case: DraftCase
    weights: Mapping[str, Tensor]
    states: Sequence[Tensor]
    flag: bool = False


def raw(i: Inputs) -> Tensor:
    return torch.cat(list(i.states), dim=-1)


def with_norms(norms: heads.Norms) -> Callable[[Inputs], Tensor]:
    return lambda i: heads.fc_input(dataclasses.replace(i.case, norms=norms), i.weights, i.states)


def read_from(nested: bool) -> Callable[[Inputs], Tensor]:
    """Only flags that stand nested, or only those at the top level, count."""

    def looks_like(i: Inputs) -> Tensor:
        seen = {key.split(".")[-1]: value for key, value in i.case.flags if ("." in key) == nested}
        whole, chunk = bool(seen.get(heads.NORM_BEFORE_FC)), bool(seen.get(heads.FC_NORM))
        norms: heads.Norms = "both" if whole and chunk else "whole" if whole else "chunk" if chunk else "none"
        return with_norms(norms)(i)

    return looks_like


def chunks_like_whole(i: Inputs) -> Tensor:
    """`input_norm` with one RMS for each chunk."""
    weights = i.weights["input_norm.weight"].chunk(i.case.chunks)
    parts = raw(i).chunk(i.case.chunks, dim=-1)
    joined = torch.cat([rms_norm(p, w, i.case.eps) for p, w in zip(parts, weights, strict=True)], dim=-1)
    return heads.norm_chunks(joined, i.case, i.weights) if i.case.per_chunk else joined


def whole_like_chunks(i: Inputs) -> Tensor:
    """`fc_norm` with one RMS over the whole."""
    joined = heads.norm_whole(raw(i), i.case, i.weights) if i.case.whole else raw(i)
    return rms_norm(joined, torch.cat([i.weights[f"fc_norm.{c}.weight"] for c in range(i.case.chunks)]), i.case.eps)


def swapped(i: Inputs) -> Tensor:
    return heads.norm_whole(heads.norm_chunks(raw(i), i.case, i.weights), i.case, i.weights)


def first_chunk_weight(i: Inputs) -> Tensor:
    same = {f"fc_norm.{c}.weight": i.weights["fc_norm.0.weight"] for c in range(i.case.chunks)}
    return heads.fc_input(i.case, {**i.weights, **same}, i.states)


def in_reverse(i: Inputs) -> Tensor:
    return heads.fc_input(i.case, i.weights, list(reversed(i.states)))


def fixed_eps(eps: float) -> Callable[[Inputs], Tensor]:
    return lambda i: heads.fc_input(dataclasses.replace(i.case, eps=eps), i.weights, i.states)


def eps_ignored(i: Inputs) -> Tensor:
    return fixed_eps(1e-5 if i.case.eps == 1e-6 else 1e-6)(i)


def three_only(i: Inputs) -> Tensor:
    """An fc for three states."""
    if i.case.chunks < 3:
        raise RuntimeError("shapes cannot be multiplied")
    return heads.fc_input(i.case, i.weights, i.states[:3])


def null_width(i: Inputs) -> Tensor:
    if ("target_hidden_size", None) in i.case.flags:
        raise TypeError("unsupported operand type(s) for *: 'NoneType' and 'int'")
    return heads.fc_input(i.case, i.weights, i.states)


def passed_through(i: Inputs) -> Tensor:
    if i.case.width * i.case.chunks != heads.HIDDEN:
        return heads.fc_input(i.case, i.weights, i.states) @ i.weights["fc.weight"].T
    return raw(i)


def skipped_if_equal(i: Inputs) -> Tensor:
    equal = i.case.width * i.case.chunks == heads.HIDDEN
    return raw(i) if equal else heads.fc_input(i.case, i.weights, i.states)


def _normed_stream(i: Inputs, name: str = "norm.weight") -> Tensor:
    return rms_norm(i.states[0], i.weights[name], i.case.eps)


def either(of: What, normed: Callable[[bool], bool]) -> Callable[[Inputs], Tensor]:
    name = "layers.0.hidden_norm.weight" if of == "residual" else "norm.weight"
    return lambda i: _normed_stream(i, name) if normed(i.flag) else i.states[0]

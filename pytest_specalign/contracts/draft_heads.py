"""Small EAGLE3 heads for `DraftNormContract`: configs, weights and states, and in float64 what must come of them.

Chunks differ in scale, so that one RMS over the whole concatenation is far from one RMS per chunk; norm weights differ from 1
and between chunks, so that a weight that is not used, or is used for another chunk, shows.
"""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor

from pytest_specalign.contracts.config_faults import put

Norms: TypeAlias = Literal["none", "whole", "chunk", "both"]

HIDDEN: Final = 8
VOCABULARY: Final = 64
INNER: Final = 16
NORM_BEFORE_FC: Final = "norm_before_fc"
FC_NORM: Final = "fc_norm"
_SCALES: Final = (1.0, 8.0, 0.25, 3.0, 0.5)
_TINY: Final = 1e-3
"""At this scale the mean square of a state is about the size of eps."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraftCase:
    """One head and one batch.

    Attributes:
        norms: which norms before fc the config asks for.
        chunks: number of states.
        width: of one state.
        rows: of the batch; 0 for an idle one.
        flags: dotted config keys and values that are set beside the rest.
        eps: `rms_norm_eps`.
        tiny: states so small that eps matters.
        seed: of weights and states.
        vocabulary: the head's own; below `VOCABULARY` it comes with d2t.
    """

    norms: Norms = "none"
    chunks: int = 3
    width: int = HIDDEN
    rows: int = 3
    flags: tuple[tuple[str, Any], ...] = ()
    eps: float = 1e-6
    tiny: bool = False
    seed: int = 0
    vocabulary: int = VOCABULARY

    @property
    def whole(self) -> bool:
        return self.norms in ("whole", "both")

    @property
    def per_chunk(self) -> bool:
        return self.norms in ("chunk", "both")

    def config(self) -> dict[str, Any]:
        """The draft's `config.json`; the flags of the norms stand where `flags` puts them."""
        made: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": HIDDEN // 2,
            "num_hidden_layers": 1,
            "vocab_size": VOCABULARY,
            "draft_vocab_size": self.vocabulary,
            "rms_norm_eps": self.eps,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(range(1, 2 * self.chunks, 2))},
        }
        if self.width != HIDDEN:
            made["target_hidden_size"] = self.width
        for key, value in self.flags:
            put(made, key, value)
        return made

    def weights(self) -> dict[str, Tensor]:
        """What the file holds for the way from the states to the first layer, float64: `fc.weight` `[H, chunks * width]`,
        `input_norm.weight` `[chunks * width]`, `fc_norm.<i>.weight` `[width]`; norms only as far as the config asks for them."""
        random = torch.Generator().manual_seed(self.seed)
        total = self.chunks * self.width
        made = {"fc.weight": torch.randn(HIDDEN, total, generator=random, dtype=torch.float64) / total**0.5}
        if self.whole:
            made["input_norm.weight"] = _norm_weight(total, random)
        if self.per_chunk:
            made |= {f"fc_norm.{i}.weight": _norm_weight(self.width, random) for i in range(self.chunks)}
        return made

    def states(self) -> list[Tensor]:
        """`chunks` tensors `[rows, width]`, float64."""
        random = torch.Generator().manual_seed(self.seed + 1)
        scale = _TINY if self.tiny else 1.0
        shape = (self.rows, self.width)
        return [scale * _SCALES[i % 5] * torch.randn(shape, generator=random, dtype=torch.float64) for i in range(self.chunks)]

    def hidden(self) -> Tensor:
        """The stream after the draft's last layer, hidden + residual: `[rows, H]`, float64."""
        random = torch.Generator().manual_seed(self.seed + 2)
        return 4.0 * torch.randn(self.rows, HIDDEN, generator=random, dtype=torch.float64)

    def norm_weight(self) -> Tensor:
        return _norm_weight(HIDDEN, torch.Generator().manual_seed(self.seed + 3))

    def format(self) -> str:
        flags = ", ".join(f"{key}: {value}" for key, value in self.flags) or "no flags"
        tiny = f" of size {_TINY:g}" if self.tiny else ""
        return (
            f"{self.chunks} states of width {self.width}{tiny}, {self.rows} rows, hidden_size {HIDDEN}, eps {self.eps:g},"
            f" norms {self.norms} ({flags}), seed {self.seed}"
        )


def _norm_weight(width: int, random: torch.Generator) -> Tensor:
    return 0.5 + 1.5 * torch.rand(width, generator=random, dtype=torch.float64)


def rms_norm(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv 1910.07467)."""
    normed: Tensor = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight
    return normed


def norm_whole(x: Tensor, case: DraftCase, weights: Mapping[str, Tensor], *, weighted: bool = True) -> Tensor:
    """`input_norm`: one RMS over all chunks."""
    return rms_norm(x, weights["input_norm.weight"] if weighted else 1.0, case.eps)


def norm_chunks(x: Tensor, case: DraftCase, weights: Mapping[str, Tensor], *, weighted: bool = True) -> Tensor:
    """`fc_norm`: one RMS for each chunk."""
    chunks = x.chunk(case.chunks, dim=-1)
    normed = [rms_norm(c, weights[f"fc_norm.{i}.weight"] if weighted else 1.0, case.eps) for i, c in enumerate(chunks)]
    return torch.cat(normed, dim=-1)


def fc_input(case: DraftCase, weights: Mapping[str, Tensor], states: Sequence[Tensor], *, weighted: bool = True) -> Tensor:
    """What goes into fc, `[rows, chunks * width]`: states in their order, then `input_norm`, then `fc_norm`, as far as asked for
    (SGLang 0.5.23 llama_eagle3.py, vLLM `combine_hidden_states`, speculators models/eagle3)."""
    joined = torch.cat(list(states), dim=-1)
    if case.whole:
        joined = norm_whole(joined, case, weights, weighted=weighted)
    return norm_chunks(joined, case, weights, weighted=weighted) if case.per_chunk else joined


def checkpoint(case: DraftCase) -> dict[str, Tensor]:
    """Every tensor of a Llama EAGLE3 head, float32, under the names that SGLang and vLLM read."""
    random = torch.Generator().manual_seed(case.seed + 4)
    layer = "layers.0."
    shapes = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        **{f"{layer}{norm}.weight": (HIDDEN,) for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        **{f"{layer}self_attn.{part}_proj.weight": (HIDDEN, 2 * HIDDEN) for part in "qkv"},
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, INNER),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (case.vocabulary, HIDDEN),
    }
    made = {name: tensor.float() for name, tensor in case.weights().items()}
    made |= {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    if case.vocabulary < VOCABULARY:
        made["d2t"] = offsets(case)
    return made


def offsets(case: DraftCase) -> Tensor:
    """A d2t, int64 `[vocabulary]`: target token minus draft token, for some ascending choice of target tokens."""
    random = torch.Generator().manual_seed(case.seed + 5)
    kept = torch.randperm(VOCABULARY, generator=random)[: case.vocabulary].sort().values
    return kept - torch.arange(case.vocabulary)

"""SGLang's own target classes with weights that make every boundary known in closed form, for `CaptureContract`.

The projections of attention and experts are zero and their biases are what the probe's blocks add, so the engine's blocks,
norms, router and residual code all run, and boundary b is a sum of small integers, exact in fp32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from pytest_specalign.contracts.probe import (
    VOCABULARY,
    ProbeError,
    ProbeLayout,
    ProbeModel,
    attention_table,
    embedding_table,
    mlp_table,
)
from specalign.layer_ids import State
from tests.conformance.sglang_cpu.batch import prefill, run
from tests.conformance.sglang_cpu.targets import ENGINE_CLASSES, captured, gpt_oss_config, llama_config

CONFIGS: Final[dict[str, Callable[..., Any]]] = {"llama": llama_config, "gpt_oss": gpt_oss_config}


class EngineProbe(ProbeModel):
    """The probe as a target of SGLang: `engine` is the model, and calling the probe runs its body."""

    def __init__(self, family: str, layout: ProbeLayout) -> None:
        super().__init__(layout)
        self.family = family
        self.engine = _engine(family, layout.num_layers, layout.hidden_size)
        if layout.fails_at is not None:
            self.engine = _engine.__wrapped__(family, layout.num_layers, layout.hidden_size)
            self.engine.model.layers[layout.fails_at].register_forward_pre_hook(_fail)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The normed output of the last block; without the states, where the engine returns both."""
        output = run(self.engine.model, prefill(tokens))
        return output[0] if isinstance(output, tuple) else output

    def capture(self, states: Sequence[State]) -> list[torch.Tensor]:
        """The boundaries, asked for as a head's config would: by the ids that the engine takes for them."""
        return captured(self.engine, self.ids_for(states), self.tokens)

    def ids_for(self, boundaries: Sequence[Any]) -> list[int]:
        """GPT-OSS takes ids as boundaries once one of them is n; all else are outputs of blocks."""
        as_they_are = self.family == "gpt_oss" and max(boundaries) == self.num_layers
        return [b if as_they_are else b - 1 for b in boundaries]


@functools.cache
def _engine(family: str, num_layers: int, hidden_size: int) -> Any:
    config = CONFIGS[family](
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=16,
        vocab_size=VOCABULARY,
        attention_bias=True,
        architectures=["LlamaForCausalLM" if family == "llama" else "GptOssForCausalLM"],
    )
    engine = ENGINE_CLASSES[config.architectures[0]](config).eval().float()
    with torch.no_grad():
        for name, parameter in engine.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        _fill(engine, family, num_layers, hidden_size)
    return engine


def _fill(engine: Any, family: str, num_layers: int, hidden_size: int) -> None:
    attention, mlp = (table(num_layers, hidden_size).float() for table in (attention_table, mlp_table))
    engine.model.embed_tokens.weight[:VOCABULARY] = embedding_table(hidden_size).float()
    for layer, block in enumerate(engine.model.layers):
        if family == "gpt_oss":
            block.self_attn.o_proj.bias.copy_(attention[layer])
            block.mlp.experts.w2_weight_bias.copy_(mlp[layer].expand_as(block.mlp.experts.w2_weight_bias))
        else:  # Llama's MLP has no bias here, so attention adds what both halves should
            block.self_attn.o_proj.bias.copy_(attention[layer] + mlp[layer])


def _fail(module: torch.nn.Module, inputs: object) -> None:
    raise ProbeError("this block was made to fail")

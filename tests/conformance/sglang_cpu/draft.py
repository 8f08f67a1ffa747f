"""SGLang's own EAGLE3 head, `LlamaForCausalLMEagle3`, with a given config and given weights."""

from __future__ import annotations

import dataclasses
import types
import zlib
from collections.abc import Mapping
from typing import Any, Final

import torch
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from transformers import LlamaConfig

from tests.conformance.sglang_cpu.batch import prefill, run

HEAD: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "draft_vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
"""The config.json of a small head, as published heads write theirs."""


@dataclasses.dataclass(frozen=True)
class DraftOutput:
    """One forward of a draft head over a sequence.

    Attributes:
        output: fp32 `[tokens, hidden]`, what goes into the lm_head.
        recycled: fp32 `[tokens, hidden]`, what the next draft step takes in place of the target's states.
        logits: fp32 `[tokens, draft_vocab]`.
    """

    output: torch.Tensor
    recycled: torch.Tensor
    logits: torch.Tensor


def make_head(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> LlamaForCausalLMEagle3:
    """SGLang's head in fp32, loaded by its own loader from tensors under the names of a published file."""
    head = LlamaForCausalLMEagle3(LlamaConfig(**config)).eval().float()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.fill_(float("nan"))  # it keeps whatever memory held where a file lacks a tensor, and says nothing
    head.load_weights(weights.items())
    return head


def forward(head: LlamaForCausalLMEagle3, tokens: torch.Tensor, states: torch.Tensor) -> DraftOutput:
    """`tokens` int64 `[tokens]`; `states` fp32 `[tokens, width]`: concatenated states, or the hidden of the step before."""
    whole = run(head, _batch(tokens, states))
    output, _ = run(head.model, _batch(tokens, states))
    logits = torch.nn.functional.linear(output, head.lm_head.weight)
    torch.testing.assert_close(logits[-1:], whole.next_token_logits, rtol=0, atol=1e-5)
    return DraftOutput(output, whole.hidden_states, logits)


def random_weights(config: Mapping[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor of a published head of that config, under the names that its file would use.

    A tensor depends on its name and shape alone, so two configs share all the tensors that both of them have.
    """
    weights = {}
    for name, shape in _shapes(config).items():
        noise = torch.randn(shape, generator=_chance(name, seed))
        weights[name] = noise * shape[-1] ** -0.5 if len(shape) == 2 else 0.3 * noise + (0 if name.endswith("bias") else 1)
    weights["d2t"] = _offsets(config["draft_vocab_size"], config["vocab_size"], _chance("d2t", seed))
    return weights


def _chance(name: str, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))


def _batch(tokens: torch.Tensor, states: torch.Tensor) -> Any:
    batch = prefill(tokens)
    batch.spec_info = types.SimpleNamespace(hidden_states=states)
    return batch


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, chunk = config["hidden_size"], config.get("target_hidden_size", config["hidden_size"])
    flags = {**config, **config.get("eagle_config", {})}
    chunks = len(flags.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config["vocab_size"], hidden),
        "fc.weight": (hidden, chunks * chunk),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }
    if flags.get("use_aux_hidden_state") is False:
        del shapes["fc.weight"]  # such a head takes POST_NORM as it is
    if flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (chunks * chunk,)
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (chunk,) for i in range(chunks)}
    if config["num_hidden_layers"] == 1:
        return shapes | _layer("midlayer", 2 * hidden, config)
    for layer in range(config["num_hidden_layers"]):
        shapes |= _layer(f"layers.{layer}", hidden if layer else 2 * hidden, config)
    return shapes


def _layer(name: str, inputs: int, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    norms = ["hidden_norm", "post_attention_layernorm", *(["input_layernorm"] if inputs != hidden else [])]
    biases = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": hidden} if config.get("attention_bias") else {}
    return {
        **{f"{name}.self_attn.{part}.bias": (width,) for part, width in biases.items()},
        f"{name}.self_attn.q_proj.weight": (queries, inputs),
        f"{name}.self_attn.k_proj.weight": (keys, inputs),
        f"{name}.self_attn.v_proj.weight": (keys, inputs),
        f"{name}.self_attn.o_proj.weight": (hidden, queries),
        f"{name}.mlp.gate_proj.weight": (inner, hidden),
        f"{name}.mlp.up_proj.weight": (inner, hidden),
        f"{name}.mlp.down_proj.weight": (hidden, inner),
        **{f"{name}.{norm}.weight": (hidden,) for norm in norms},
    }


def _offsets(draft: int, vocab: int, chance: torch.Generator) -> torch.Tensor:
    """int64 `[draft]`: target id minus draft id, for a random ascending choice of target ids."""
    chosen = torch.randperm(vocab, generator=chance)[:draft].sort().values
    return chosen - torch.arange(draft)

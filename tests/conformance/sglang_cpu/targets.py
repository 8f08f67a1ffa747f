"""Small random targets in two implementations with the same weights: transformers', and SGLang's own classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from sglang.srt.models.gpt_oss import GptOssForCausalLM
from sglang.srt.models.llama import LlamaForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig, LlamaConfig

from tests.conformance.sglang_cpu.batch import prefill, run

LAYERS: Final = 8
SIZE: Final[dict[str, Any]] = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
EXPERTS: Final = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}
YARN: Final = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": 128}

ENGINE_CLASSES: Final = {"LlamaForCausalLM": LlamaForCausalLM, "GptOssForCausalLM": GptOssForCausalLM}
TOKENS: Final = torch.randint(3, 250, (12,), generator=torch.Generator().manual_seed(1))
"""int64 `[12]`: three times the sliding window, so that the window matters."""


def llama_config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**SIZE | changes)


def gpt_oss_config(**changes: Any) -> GptOssConfig:
    return GptOssConfig(**SIZE | EXPERTS | {"rope_parameters": dict(YARN)} | changes)


@dataclasses.dataclass(frozen=True)
class Target:
    """One target in both implementations.

    Attributes:
        engine: SGLang's model, fp32.
        boundaries: n + 1 tensors `[tokens, hidden]`, fp32: the embedding output and the output of every block of transformers'
            model, which has no say in what the engine captures.
    """

    engine: Any
    boundaries: tuple[torch.Tensor, ...]

    @property
    def num_layers(self) -> int:
        return len(self.boundaries) - 1


def make_target(config: LlamaConfig | GptOssConfig, folder: Path, *, std: float = 0.08) -> Target:
    """A random target of that config; its weights pass through a checkpoint in `folder`, as real ones do."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    _randomize(model, std)
    model.save_pretrained(folder)
    return Target(engine_target(folder), _boundaries(model))


def engine_target(folder: Path) -> Any:
    """SGLang's model with the weights of a checkpoint, all in fp32."""
    config = AutoConfig.from_pretrained(folder)
    # GPT-OSS makes its sinks in bf16 whatever the config says: made fp32 before anything is loaded into them
    model = ENGINE_CLASSES[config.architectures[0]](config).eval().float()
    model.load_weights(load_file(folder / "model.safetensors").items())
    return model


def captured(model: Any, ids: Sequence[int] | None, tokens: torch.Tensor = TOKENS) -> list[torch.Tensor]:
    """What arrives in front of a draft head for these ids: fp32 `[tokens, hidden]`, in the order of the concatenation.

    SGLang's setter is called with the ids, then its whole forward, logits processor included, which concatenates the states.
    """
    model.set_eagle3_layers_to_capture(None if ids is None else list(ids))
    return handed_on(model, tokens)


def handed_on(model: Any, tokens: torch.Tensor = TOKENS) -> list[torch.Tensor]:
    """The same for whatever the model is set to capture now."""
    output = run(model, prefill(tokens))
    return list(output.hidden_states.split(model.config.hidden_size, dim=-1))


def _randomize(model: torch.nn.Module, std: float) -> None:
    """Every parameter: norms around 1, all others around 0, biases and sinks included, so that none of them can go missing."""
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=chance)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else std * noise)


def _boundaries(model: Any) -> tuple[torch.Tensor, ...]:
    outputs: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, output: outputs.append(output[0].clone())) for block in model.model.layers]
    with torch.no_grad():
        embedded = model.model.embed_tokens(TOKENS)
        model(input_ids=TOKENS[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return (embedded, *outputs)

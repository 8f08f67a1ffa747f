"""Tiny targets of transformers with random weights, and random heads for them, in float64: equal tokens are no luck of rounding."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

from specalign.draft import Eagle3Config, Eagle3Head, make_vocab
from specalign.integrations.transformers_target import TransformersTarget

LAYERS, HIDDEN, VOCABULARY = 3, 16, 13
STATES = [0, 2, 3]

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 512, "initializer_range": 0.6, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral, a window of 5": lambda: transformers.MistralConfig(**SIZES, sliding_window=5),
    "gpt-oss, windows and full layers": lambda: transformers.GptOssConfig(
        **SIZES, sliding_window=4, num_local_experts=4, num_experts_per_tok=2
    ),
    "gemma 2, windows and soft caps": lambda: transformers.Gemma2Config(**SIZES, sliding_window=4),
}


@functools.cache
def make_target(family: str = "llama", *, end_tokens: tuple[int, ...] = (), attention: str = "eager") -> TransformersTarget:
    torch.manual_seed(0)
    config = FAMILIES[family]()
    config._attn_implementation, config._experts_implementation = attention, "eager"  # grouped products take no float64
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    return TransformersTarget(model, end_tokens=end_tokens)


def make_head(*, seed: int = 1, scale: float = 0.4, small: bool = False, **changes: Any) -> Eagle3Head:
    config = Eagle3Config(
        hidden_size=HIDDEN, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4, vocab_size=VOCABULARY,
        target_hidden_size=HIDDEN, **({"draft_vocab_size": 7} if small else {}), **changes,
    )  # fmt: skip
    kept = torch.tensor([0, 2, 3, 6, 7, 11, 12])
    vocab = make_vocab(size=7, target_size=VOCABULARY, d2t=kept - torch.arange(7)) if small else None
    torch.manual_seed(seed)
    head = Eagle3Head(config, vocab, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, scale)
    return head.eval().requires_grad_(False)


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]

"""A tiny pair on disk, quick to decode, and goldens of it. A random head proves nothing, so its golden is made by hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from specalign.acceptance import PromptRounds, Round
from specalign.acceptance.golden_file import AcceptanceGolden, KnownRow
from specalign.acceptance.metrics import Interval
from specalign.acceptance.table import Table

HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 16, "target_hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "vocab_size": 13, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "eagle_aux_hidden_state_layer_ids": [1, 4, 8],
}  # fmt: skip


def write_pair(folder: Path) -> Path:
    """target/, draft/ and prompts.jsonl in a folder: a random Llama of 8 layers and a random head."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=13, hidden_size=16, intermediate_size=32, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, max_position_embeddings=64, initializer_range=0.6, tie_word_embeddings=False, eos_token_id=12,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "target")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(13)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder / "target")
    write_head(folder / "draft", HEAD)
    lines = [{"id": f"p{i}", "prompt": " ".join(f"w{(i * 5 + j * j) % 12}" for j in range(4 + i))} for i in range(8)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def write_head(folder: Path, config: dict[str, Any], *, seed: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    width, hidden = config["target_hidden_size"], config["hidden_size"]
    shapes = {
        "fc.weight": (hidden, 3 * width), "norm.weight": (hidden,), "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,), "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (24, hidden), "midlayer.mlp.up_proj.weight": (24, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, 24), "midlayer.self_attn.q_proj.weight": (16, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (8, 2 * hidden), "midlayer.self_attn.v_proj.weight": (8, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, 16),
    }  # fmt: skip
    torch.manual_seed(seed)
    save_file({name: torch.randn(shape) * 0.4 for name, shape in shapes.items()}, folder / "model.safetensors")


def golden_by_hand(table: Table, pair: Mapping[str, str]) -> AcceptanceGolden:
    """The right way as it was measured, beside a made-up dead control."""
    right = KnownRow("right", False, table.rows[0].acceptance.length, table.rows[0].acceptance.per_position)
    dead = KnownRow("random head", False, Interval(0.5, 0.5, 0.5), (0.0,))
    return AcceptanceGolden(dict(pair), table.depth, table.new_tokens, table.counts, (right, dead))


def better_golden(golden: AcceptanceGolden) -> AcceptanceGolden:
    """The same pair, had it accepted every draft."""
    all_right = tuple(
        PromptRounds(
            item.name, (Round(golden.depth, golden.depth, golden.depth + 1),) * max(1, item.tokens // (golden.depth + 1))
        )
        for item in golden.counts
    )
    return dataclasses.replace(golden, counts=all_right)

"""Ids of published draft heads and training presets: the calls that every layer-id contract makes first.

Facts from the public configs, and the number of layers of the target each belongs to. What the ids mean is not said there.
"""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class KnownHead:
    """One published head: its ids as the config has them (None: it lists none), and n."""

    name: str
    layer_ids: tuple[int, ...] | None
    num_layers: int


EAGLE3_HEADS: Final = (
    KnownHead("nvidia/gpt-oss-120b-Eagle3-v3", (24, 30, 36), 36),
    KnownHead("nvidia/gpt-oss-120b-Eagle3-long-context", (1, 17, 32), 36),
    KnownHead("the boundary default of a 36-layer target", (2, 18, 33), 36),
    KnownHead("k-l-lambda/Kimi-K2.5-Eagle3", (2, 30, 58), 61),
    KnownHead("lightseekorg/kimi-k2.7-coder-eagle3.1-mla", (1, 29, 57), 61),
    KnownHead("SpecForge gpt-oss-120B", (1, 17, 33), 36),
    KnownHead("SpecForge gpt-oss-20B", (1, 11, 21), 24),
    KnownHead("SpecForge qwen3-235B-A22B", (1, 46, 90), 94),
    KnownHead("a speculators head for a 94-layer Qwen3-MoE", (2, 46, 91, 93), 94),
    KnownHead("nvidia/Llama-3.3-70B-Instruct-Eagle3", None, 80),
    KnownHead("SpecForge qwen3-8b", None, 36),
)

DFLASH_HEADS: Final = (
    KnownHead("z-lab Qwen3-8B-DFlash-b16", (1, 9, 17, 25, 33), 36),
    KnownHead("SpecForge qwen3.5-4b-domino", (3, 11, 19, 27, 31), 32),
    KnownHead("SpecForge qwen3.5-35b-a3b-dflash", (1, 10, 19, 28, 37), 40),
    KnownHead("SpecForge kimi-k3 dspark", (7, 23, 51, 67, 83), 93),
    KnownHead("SpecForge glm-5.2 dspark", (1, 19, 38, 57, 76), 78),
    KnownHead("SpecForge inkling dspark", (5, 17, 35, 47, 59), 66),
)

KNOWN_HEADS: Final = (*EAGLE3_HEADS, *DFLASH_HEADS)

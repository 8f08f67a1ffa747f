"""Any causal language model of transformers as a target of the draft–verify loop: states by hooks, its own cache, our masks.

The mask of each pass is given in full ([batch, 1, T, S + T], which transformers takes as it is), so that trees and ragged
batches need nothing of the model. Models with sliding layers get one mask for each kind of layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from specalign.capture import Capture, capture_states
from specalign.draft.cache import gathered
from specalign.draft.plan import Borrowed
from specalign.layer_ids import State
from specalign.layer_ids.files import InputError, shown
from specalign.speculate.target import TargetStep


class TransformersTarget:
    """See `specalign.speculate.target.Target`.

    Attributes:
        model: the module, in eval mode and without gradients.
    """

    def __init__(self, model: nn.Module, *, end_tokens: Sequence[int] | None = None) -> None:
        """Wraps a model.

        Args:
            model: an `AutoModelForCausalLM`.
            end_tokens: by default those of its generation config.

        Raises:
            InputError: chunked attention, whose mask is not given here.
        """
        self.model = model.eval().requires_grad_(False)
        config: Any = model.config
        self.text = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.num_layers = int(self.text.num_hidden_layers)
        self.vocab_size, self.hidden_size = int(self.text.vocab_size), int(self.text.hidden_size)
        self.device = next(model.parameters()).device
        window = getattr(self.text, "sliding_window", None) if getattr(self.text, "use_sliding_window", True) else None
        alone = "full_attention" if window is None else "sliding_attention"  # of a model whose layers are all alike
        self.kinds = tuple(dict.fromkeys(getattr(self.text, "layer_types", None) or (alone,)))
        if "chunked_attention" in self.kinds:
            raise InputError(f"{type(model).__name__} has chunked attention, for which no mask is made here")
        self.window: int | None = window if "sliding_attention" in self.kinds else None
        self.max_tokens: int | None = getattr(self.text, "max_position_embeddings", None)
        self.end_tokens = frozenset(_end_tokens(model) if end_tokens is None else end_tokens)

    @property
    def borrowed(self) -> Borrowed:
        """Embedding and lm_head, for heads that have none of their own."""
        model: Any = self.model
        return Borrowed(
            embed_tokens=model.get_input_embeddings().weight.detach(), lm_head=model.get_output_embeddings().weight.detach()
        )

    @contextlib.contextmanager
    def session(self, states: Sequence[State]) -> Iterator[TransformersSession]:
        """A fresh cache; hooks hang on the model until the session ends."""
        with contextlib.ExitStack() as stack:
            capture = stack.enter_context(capture_states(self.model, list(states), duplicates="keep")) if states else None
            yield TransformersSession(self, capture)


class TransformersSession:
    """See `specalign.speculate.target.Session`."""

    def __init__(self, target: TransformersTarget, capture: Capture | None) -> None:
        self._target, self._capture = target, capture
        self._cache = DynamicCache()
        self._positions = torch.empty(0, 0, dtype=torch.int64, device=target.device)

    @torch.no_grad()
    def run(self, tokens: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor) -> TargetStep:
        """One pass over the new tokens, which are added to the cache."""
        past = self._positions if self._positions.numel() else positions[:, :0]
        self._positions = torch.cat((past, positions), dim=1)
        if self._capture is not None:
            self._capture.clear()
        model: Any = self._target.model
        output = model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self._masks(positions, seen),
            past_key_values=self._cache,
            use_cache=True,
        )
        return TargetStep(output.logits, () if self._capture is None else self._capture.states)

    def keep(self, columns: torch.Tensor) -> None:
        """Keep these columns of every layer's keys and values."""
        self._positions = self._positions.gather(1, columns)
        prefix = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
        cut = bool((columns == prefix).all())
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                part = getattr(layer, name)
                setattr(layer, name, part[:, :, : columns.shape[1]] if cut else gathered(part, columns))

    def __len__(self) -> int:
        return int(self._cache.get_seq_length())

    def _masks(self, positions: torch.Tensor, seen: torch.Tensor) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """What is added to the scores: 0 where a token is seen, the most negative number elsewhere."""
        dtype = next(self._target.model.parameters()).dtype
        masks = {}
        for kind in self._target.kinds:
            visible = seen
            if kind == "sliding_attention" and self._target.window is not None:
                visible = seen & (positions[:, :, None] - self._positions[:, None, :] < self._target.window)
            blocked = torch.zeros(visible.shape, dtype=dtype, device=seen.device).masked_fill_(~visible, torch.finfo(dtype).min)
            masks[kind] = blocked[:, None]
        return next(iter(masks.values())) if len(masks) == 1 else masks


def load_target(place: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[TransformersTarget, Any]:
    """A target and its tokenizer from a folder of transformers, a `.gguf` file, or a folder with exactly one.

    Raises:
        InputError: nothing there that transformers loads, or weights are missing: transformers would draw them at random.
    """
    more: dict[str, str] = {}
    folder = place
    if place.is_file():
        folder, more = place.parent, {"gguf_file": place.name}
    elif not (place / "config.json").is_file():
        found = sorted(place.glob("*.gguf"))
        if len(found) != 1:
            raise InputError(f"{shown(place)}: no config.json, and {len(found)} .gguf files: give a model's folder, or one file")
        more = {"gguf_file": found[0].name}
    loader: Any = AutoModelForCausalLM
    try:
        model, told = loader.from_pretrained(folder, dtype=dtype, output_loading_info=True, **more)
        tokenizer = AutoTokenizer.from_pretrained(folder, **more)
    except Exception as error:  # damaged files end in errors of safetensors, of dataclasses, in a division by zero, …
        what = " ".join(f"{type(error).__name__}: {error}".split())[:600]
        raise InputError(f"{shown(place)}: transformers cannot load a causal model there: {what}") from error
    if missing := sorted(told["missing_keys"]):
        raise InputError(
            f"{shown(place)}: {len(missing)} weights are missing, first {missing[0]}, and random ones would stand there; does"
            " config.json belong to these weights?"
        )
    return TransformersTarget(model.to(device)), tokenizer


def _end_tokens(model: nn.Module) -> list[int]:
    said = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if said is None:
        said = getattr(model.config, "eos_token_id", None)
    return [] if said is None else [said] if isinstance(said, int) else list(said)

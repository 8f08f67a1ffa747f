"""What a target's config says about its size and family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from specalign.layer_ids.files import InputError
from specalign.layer_ids.places import first_set, int_or_none, look_up

TEXT_CONFIGS: Final = ("text_config", "llm_config", "language_config", "thinker_config.text_config")
"""Where multimodal configs keep the language model's own numbers."""

_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
_MOST_LAYERS: Final = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class TargetSpec:
    """The facts about a target that a draft head depends on.

    Attributes:
        name: where it came from.
        architectures: `architectures` of the config, outermost first.
        model_types: `model_type` of the config and of its text config.
        num_layers: n.
        hidden_size: width of the residual stream, in elements.
        vocab_size: size of the vocabulary, or None where the config does not say.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    num_layers: int
    hidden_size: int
    vocab_size: int | None


def parse_target(config: Mapping[str, object], *, name: str) -> TargetSpec:
    """A `TargetSpec` out of a parsed `config.json`.

    Raises:
        InputError: no layer count or hidden size that is a positive integer, or a config of a draft head.
    """
    text = _text_config(config)
    architectures = _strings(config.get("architectures"))
    if any(_is_draft_architecture(a) for a in architectures):
        raise InputError(f"{name}: {architectures[0]} is a draft head, not a target: give the draft first and the target second")
    return TargetSpec(
        name=name,
        architectures=architectures,
        model_types=tuple(dict.fromkeys(_strings([config.get("model_type"), text.get("model_type")]))),
        num_layers=_positive(text, _LAYERS, name, "the number of layers", _MOST_LAYERS),
        hidden_size=_positive(text, _HIDDEN, name, "the hidden size", 1 << 24),
        vocab_size=int_or_none(text.get("vocab_size", config.get("vocab_size"))),
    )


def _text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    if first_set(config, _LAYERS)[0] is not None:
        return config
    for place in TEXT_CONFIGS:
        inner = look_up(config, place)
        if isinstance(inner, Mapping):
            return inner
    return config


def _positive(config: Mapping[str, object], places: tuple[str, ...], name: str, what: str, limit: int) -> int:
    place, value = first_set(config, places)
    if place is None:
        kind = config.get("architectures") or config.get("model_type") or "unknown"
        raise InputError(f"{name}: no {places[0]} in this config ({kind}), so {what} of the target is unknown")
    number = int_or_none(value)
    if number is None or not 1 <= number <= limit:
        raise InputError(f"{name}: {place} must be an integer from 1 to {limit}, not {str(value)[:60]}")
    return number


def _strings(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else ()


def _is_draft_architecture(architecture: str) -> bool:
    lowered = architecture.lower()
    return any(mark in lowered for mark in ("eagle", "dflash", "dspark", "speculator"))

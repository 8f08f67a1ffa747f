"""The config of a GPT-OSS model: one flat frozen dataclass, read strictly from transformers' `config.json`.

The keys and their defaults are those of transformers 5.19 (`models/gpt_oss/configuration_gpt_oss.py`); the older spelling of
the released checkpoints, `rope_scaling` beside `rope_theta`, is read too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

from specalign.layer_ids.files import quoted
from specalign.models.errors import ModelConfigError
from specalign.numerics.rope import yarn_concentration

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"

_SIZES: Final = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_local_experts",
    "num_experts_per_tok",
)
_ROPE_KEYS: Final = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
    }
)
_DEFAULT_ROPE: Final[Mapping[str, object]] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""What transformers takes where the file says nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig:
    """The numbers of a GPT-OSS model, checked when the object is made.

    Attributes:
        num_hidden_layers: n, the number of blocks.
        vocab_size, hidden_size, intermediate_size, head_dim: widths, in elements.
        num_attention_heads, num_key_value_heads: query heads, and the heads that groups of them share.
        num_local_experts, num_experts_per_tok: experts of a layer, and how many of them a token takes.
        layer_types: for each block `sliding_attention` or `full_attention`.
        sliding_window: how many rows a query of a sliding layer sees, its own included; None where no layer slides.
        attention_bias: whether q, k, v and o have biases. (The router and the experts always have.)
        rms_norm_eps: added to the mean square.
        swiglu_alpha, swiglu_limit: gain of the sigmoid, and the clamp, of the experts' activation.
        initializer_range: standard deviation of random weights.
        rope_type: `yarn` or `default`; the other rope fields past `rope_theta` are for `yarn`.
        rope_theta: base of the wavelengths.
        rope_factor: how many times longer the context became.
        rope_original_length: positions seen in pre-training.
        rope_beta_fast, rope_beta_slow: rotations over `rope_original_length` above which a frequency is kept, below which it is
            divided by `rope_factor`.
        rope_truncate: whether the two edges of the ramp between them are rounded to whole dimensions.
        rope_concentration: what cos and sin are multiplied by ("attention factor" in transformers).

    Raises:
        ModelConfigError: a number out of range, or numbers that contradict one another.
    """

    num_hidden_layers: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    num_attention_heads: int
    num_key_value_heads: int
    num_local_experts: int
    num_experts_per_tok: int
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    attention_bias: bool = True
    rms_norm_eps: float = 1e-5
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    initializer_range: float = 0.02
    rope_type: str = "default"
    rope_theta: float = 150000.0
    rope_factor: float = 1.0
    rope_original_length: int = 4096
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_truncate: bool = True
    rope_concentration: float = 1.0

    def __post_init__(self) -> None:
        for name in (*_SIZES, "head_dim"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        _require(heads % shared == 0, f"num_attention_heads {heads} is no multiple of num_key_value_heads {shared}")
        _require(self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd: rope turns pairs of dimensions")
        top, experts = self.num_experts_per_tok, self.num_local_experts
        _require(top <= experts, f"num_experts_per_tok {top} is more than the {experts} experts of num_local_experts")
        self._check_layer_types()
        self._check_rope()
        _require(self.swiglu_limit > 0, f"swiglu_limit must be above 0, not {self.swiglu_limit}")

    def _check_layer_types(self) -> None:
        wrong = sorted(set(self.layer_types) - {SLIDING, FULL})
        _require(not wrong, f"layer_types holds {', '.join(map(quoted, wrong))}; implemented are {SLIDING} and {FULL}")
        n, listed = self.num_hidden_layers, len(self.layer_types)
        _require(listed == n, f"layer_types lists {listed} layers, num_hidden_layers says {n}")
        window = self.sliding_window
        if SLIDING in self.layer_types:
            _require(window is not None and window >= 1, f"sliding_window must be at least 1 for sliding layers, not {window}")

    def _check_rope(self) -> None:
        _require(self.rope_type in ("default", "yarn"), f"rope_type {quoted(self.rope_type)}: implemented are default and yarn")
        _require(self.rope_theta > 1, f"rope_theta must be above 1, not {self.rope_theta}")
        _require(self.rope_factor >= 1, f"the rope factor must be at least 1, not {self.rope_factor}")
        _require(self.rope_original_length >= 1, "original_max_position_embeddings must be at least 1")
        fast, slow = self.rope_beta_fast, self.rope_beta_slow
        _require(fast >= slow > 0, f"rope needs beta_fast >= beta_slow > 0, not {fast} and {slow}")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each block the rows that a query sees, its own included; None for all."""
        return tuple(self.sliding_window if kind == SLIDING else None for kind in self.layer_types)

    @classmethod
    def from_dict(cls, config: Mapping[str, object], *, name: str = "config.json") -> GptOssConfig:
        """The config out of a parsed `config.json` of transformers.

        Args:
            config: the parsed file. Keys that do not change what the model computes are not looked at.
            name: how messages call the file.

        Raises:
            ModelConfigError: another kind of model, a missing key, a value of the wrong type, or a setting that is not
                implemented (tied embeddings, another activation, another rope).
        """
        try:
            _refuse_other_models(config)
            sizes = {key: _integer(config, key) for key in _SIZES}
            head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
            return cls(
                **sizes,  # type: ignore[arg-type]  # the sizes are the integer fields
                head_dim=_integer(config, "head_dim", head_dim if "head_dim" in config else None),
                layer_types=_layer_types(config, sizes["num_hidden_layers"]),
                sliding_window=_integer(config, "sliding_window") if config.get("sliding_window") is not None else None,
                attention_bias=_flag(config, "attention_bias", True),
                rms_norm_eps=_number(config, "rms_norm_eps"),
                swiglu_alpha=_number(config, "swiglu_alpha", 1.702),
                swiglu_limit=_number(config, "swiglu_limit", 7.0),
                initializer_range=_number(config, "initializer_range", 0.02),
                **_rope(config),  # type: ignore[arg-type]  # built of the typed readers below
            )
        except ModelConfigError as error:
            raise ModelConfigError(f"{name}: {error}") from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelConfigError(message)


def _refuse_other_models(config: Mapping[str, object]) -> None:
    model_type = config.get("model_type")
    _require(model_type == "gpt_oss", f"model_type is {quoted(model_type)}, not 'gpt_oss'")
    _require(
        config.get("hidden_act", "silu") == "silu", f"hidden_act {quoted(config.get('hidden_act'))}: only silu is implemented"
    )
    tied = _flag(config, "tie_word_embeddings", False)
    _require(not tied, "tie_word_embeddings is true, but lm_head and the embedding are separate here; untie them in the file")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        _require(method == "mxfp4", f"quantization_config.quant_method {quoted(method)}: only mxfp4 is implemented")


def _layer_types(config: Mapping[str, object], num_layers: int) -> tuple[str, ...]:
    listed = config.get("layer_types")
    if listed is None:  # transformers' default: alternating, the first one sliding
        return tuple(FULL if i % 2 else SLIDING for i in range(num_layers))
    strings = isinstance(listed, Sequence) and not isinstance(listed, str) and all(isinstance(kind, str) for kind in listed)
    if not strings:
        raise ModelConfigError(f"layer_types must be a list of strings, not {quoted(listed)}")
    return tuple(listed)  # type: ignore[arg-type]  # checked above


def _rope(config: Mapping[str, object]) -> dict[str, object]:
    """The rope fields: from `rope_parameters` (transformers 5), or `rope_scaling` with `rope_theta` beside it (4)."""
    rope = _rope_object(config)
    theta = _number(rope, "rope_theta", _number(config, "rope_theta", 150000.0))
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "yarn":
        return {"rope_type": kind if isinstance(kind, str) else quoted(kind), "rope_theta": theta}
    factor = _number(rope, "factor")
    scales = {key: _number(rope, key, 0.0) for key in ("mscale", "mscale_all_dim")}
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "rope_factor": factor,
        "rope_original_length": _original_length(config, rope),
        "rope_beta_fast": _number(rope, "beta_fast", 32.0),
        "rope_beta_slow": _number(rope, "beta_slow", 1.0),
        "rope_truncate": _flag(rope, "truncate", True),
        "rope_concentration": _number(rope, "attention_factor", yarn_concentration(factor, **scales)),
    }


def _rope_object(config: Mapping[str, object]) -> Mapping[str, object]:
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    _require(not (new and old and new != old), "rope_parameters and rope_scaling are both set and differ; keep one of them")
    rope = new or old or _DEFAULT_ROPE
    if not isinstance(rope, Mapping):
        raise ModelConfigError(f"rope_parameters must be an object, not {quoted(rope)}")
    unknown = sorted(str(key) for key in rope if key not in _ROPE_KEYS)
    _require(
        not unknown, f"rope_parameters: {', '.join(map(quoted, unknown))} not implemented; the keys are {sorted(_ROPE_KEYS)}"
    )
    partial = config.get("partial_rotary_factor")
    _require(partial is None or partial == 1, f"partial_rotary_factor {quoted(partial)}: only 1 is implemented")
    return rope


def _original_length(config: Mapping[str, object], rope: Mapping[str, object]) -> int:
    key = "original_max_position_embeddings"
    inner = _integer(rope, key, _integer(config, "max_position_embeddings", 0))
    outer = _integer(config, key, inner)  # transformers lets the outer one win without a word
    _require(inner == outer, f"{key} is {outer}, but {inner} in rope_parameters; make them equal")
    return inner


def _integer(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int:
        raise ModelConfigError(f"{key} must be an integer, not {'missing' if key not in config else quoted(value)}")
    return value


def _number(config: Mapping[str, object], key: str, default: float | None = None) -> float:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ModelConfigError(f"{key} must be a finite number, not {'missing' if key not in config else quoted(value)}")
    return float(value)


def _flag(config: Mapping[str, object], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ModelConfigError(f"{key} must be true or false, not {quoted(value)}")
    return value

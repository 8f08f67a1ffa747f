"""Rotary positions of a draft head: what the config says, and the frequencies that follow.

The frequencies are those of transformers (`modeling_rope_utils.py`, types default, linear, llama3 and yarn), computed in
float32 in the same order of operations. SGLang 0.5.23 ignores yarn's `attention_factor` (`rotary_embedding/factory.py:320-332`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

import torch
from torch import nn

from specalign.draft.errors import DraftError
from specalign.numerics.rope import plain_frequencies, yarn_concentration, yarn_frequencies

RopeType: TypeAlias = Literal["default", "linear", "llama3", "yarn"]
ROPE_TYPES: Final[tuple[RopeType, ...]] = get_args(RopeType)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions turn into angles.

    Attributes:
        rope_type: default (no scaling), linear, llama3 or yarn.
        theta: the base of the frequencies.
        factor: how many times the context was stretched; 1.0 for default.
        original_max_position_embeddings: context before stretching, in tokens; llama3 and yarn need it.
        low_freq_factor: llama3; wavelengths beyond original / low_freq_factor are stretched in full.
        high_freq_factor: llama3; wavelengths below original / high_freq_factor are not stretched.
        beta_fast: yarn; rotations within the original context above which a frequency stays.
        beta_slow: yarn; rotations below which it is stretched in full.
        truncate: yarn; whether the bounds of the ramp are rounded outwards to whole dimensions.
        attention_factor: yarn; scale of cos and sin, None for the one of the paper, 0.1 ln(factor) + 1.
        mscale: yarn; with mscale_all_dim, replaces the scale of the paper by a quotient of two (DeepSeek).
        mscale_all_dim: see mscale.
    """

    rope_type: RopeType = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        _require(self.rope_type in ROPE_TYPES, f"rope type {self.rope_type!r} is not supported, {', '.join(ROPE_TYPES)} are")
        _require(self.theta > 0, f"rope_theta must be positive, not {self.theta}")
        _require(self.factor > 0, f"the rope factor must be positive, not {self.factor}")
        if self.rope_type in ("llama3", "yarn"):
            original = self.original_max_position_embeddings
            _require(
                original is not None and original > 0,
                f"rope type {self.rope_type} needs original_max_position_embeddings of at least 1, not {original}",
            )
        if self.rope_type == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            _require(0 < low < high, f"llama3 needs 0 < low_freq_factor < high_freq_factor, not {low} and {high}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise DraftError(f"{message}; correct the rope settings of the draft's config")


_NUMBERS: Final = (
    "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
)  # fmt: skip
_KEYS: Final = frozenset(
    (*_NUMBERS, "rope_type", "type", "rope_theta", "original_max_position_embeddings", "truncate", "partial_rotary_factor")
)
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RopeSettings:
    """The raw values of a config that decide about positions; None where a key is missing or null."""

    rope_parameters: object = None
    rope_scaling: object = None
    rope_theta: object = None
    original_max_position_embeddings: object = None
    max_position_embeddings: object = None


def parse_rope(settings: RopeSettings, *, name: str) -> RopeConfig:
    """The `RopeConfig` of a config in the old form (rope_theta, rope_scaling), the new one (rope_parameters), or both.

    What stands in two places must agree. As in transformers, a top-level `original_max_position_embeddings` wins over the one
    inside, and `max_position_embeddings` stands in for a missing one.

    Raises:
        DraftError: two places that disagree, an unknown type or key, a missing or malformed number.
    """
    stated = _agreed(settings, name)
    if unknown := sorted(set(stated) - _KEYS):
        raise DraftError(f"{name}: rope setting {unknown[0]!r} is not supported by this head; supported are {sorted(_KEYS)}")
    rope_type = _type(stated, name)
    if lacking := [key for key in _NEEDED[rope_type] if stated.get(key) is None]:
        raise DraftError(f"{name}: rope type {rope_type} needs {' and '.join(lacking)}; add it to the config")
    _refuse_partial(stated, name)
    values: dict[str, object] = {key: _number(stated[key], key, name) for key in _NUMBERS if stated.get(key) is not None}
    if rope_type in ("llama3", "yarn"):
        values |= _original(settings, stated, values, rope_type, name)
    if stated.get("truncate") is not None:
        values["truncate"] = bool(stated["truncate"])
    if rope_type == "default":
        if values.get("factor", 1) != 1:
            raise DraftError(f"{name}: a rope factor of {values['factor']} and no rope_type that uses it; state the rope_type")
        values = {}
    return RopeConfig(rope_type=rope_type, theta=_theta(settings, stated, name), **values)  # type: ignore[arg-type]


def _agreed(settings: RopeSettings, name: str) -> dict[str, object]:
    found = [_flat(value, key, name) for key in ("rope_parameters", "rope_scaling") if (value := getattr(settings, key))]
    if not found:
        return {}
    first, second = found[0], found[-1]
    for key in first.keys() & second.keys():
        if first[key] != second[key]:
            raise DraftError(
                f"{name}: rope_parameters and rope_scaling disagree about {key}: {first[key]!r} and {second[key]!r};"
                " engines differ in which they read, keep one"
            )
    return {**second, **first}


def _flat(value: object, key: str, name: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise DraftError(f"{name}: {key} must be an object, not {str(value)[:60]!r}")
    nested = [inner for inner in value.values() if isinstance(inner, Mapping)]
    if not nested:
        return dict(value)
    if len(nested) != len(value) or any(inner != nested[0] for inner in nested):
        raise DraftError(f"{name}: {key} differs from one layer type to the next, which this head does not support")
    return dict(nested[0])


def _type(stated: Mapping[str, object], name: str) -> RopeType:
    new, old = stated.get("rope_type"), stated.get("type")
    if new is not None and old is not None and new != old:
        raise DraftError(f"{name}: rope_type says {new!r} and its old name type says {old!r}; keep one")
    chosen = new or old or "default"
    for known in ROPE_TYPES:
        if chosen == known:
            return known
    raise DraftError(f"{name}: rope type {chosen!r} is not supported, {', '.join(ROPE_TYPES)} are")


def _theta(settings: RopeSettings, stated: Mapping[str, object], name: str) -> float:
    inner, outer = stated.get("rope_theta"), settings.rope_theta
    if inner is not None and outer is not None and inner != outer:
        raise DraftError(f"{name}: rope_theta is {outer!r} at the top and {inner!r} in the rope settings; keep one")
    value = inner if inner is not None else outer
    return 10000.0 if value is None else _number(value, "rope_theta", name)


def _original(
    settings: RopeSettings, stated: Mapping[str, object], values: Mapping[str, object], rope_type: RopeType, name: str
) -> dict[str, object]:
    longest, original = settings.max_position_embeddings, settings.original_max_position_embeddings
    for fallback in (stated.get("original_max_position_embeddings"), longest):
        original = fallback if original is None else original
    if original is None:
        raise DraftError(f"{name}: rope type {rope_type} needs original_max_position_embeddings; add it to the config")
    found: dict[str, object] = {"original_max_position_embeddings": _number(original, "original_max_position_embeddings", name)}
    if "factor" not in values:
        if longest is None:
            raise DraftError(f"{name}: rope type {rope_type} needs factor or max_position_embeddings; add one to the config")
        found["factor"] = _number(longest, "max_position_embeddings", name) / _number(original, "original", name)
    return found


def _number(value: object, key: str, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise DraftError(f"{name}: {key} must be a finite number, not {str(value)[:60]!r}")
    return value


def _refuse_partial(stated: Mapping[str, object], name: str) -> None:
    partial = stated.get("partial_rotary_factor")
    if partial is not None and partial != 1:
        raise DraftError(f"{name}: partial_rotary_factor {partial!r} is not supported by this head, only 1.0")


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and the scale of cos and sin.

    Returns:
        float32 of shape [head_dim / 2] on the CPU, in radians per position; and the factor that multiplies cos and sin.
    """
    base = plain_frequencies(head_dim, rope.theta)
    if rope.rope_type == "linear":
        return base / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(rope, base), 1.0
    if rope.rope_type == "yarn":
        return _yarn(rope, head_dim), _yarn_scale(rope)
    return base, 1.0


def _llama3(rope: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched, short ones stay, and those between are blended (Llama 3.1's own rule)."""
    original = float(rope.original_max_position_embeddings or 0)
    wavelength = 2 * math.pi / base
    blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * base / rope.factor + blend * base


def _yarn(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    return yarn_frequencies(
        head_dim,
        rope.theta,
        factor=rope.factor,
        original_length=rope.original_max_position_embeddings or 0,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        truncate=rope.truncate,
    )


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return yarn_concentration(rope.factor, mscale=rope.mscale or 0.0, mscale_all_dim=rope.mscale_all_dim or 0.0)


class Rotary(nn.Module):
    """cos and sin of positions. It has no parameters and no buffers: casting the head to bf16 must not round frequencies."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        super().__init__()
        self._frequencies, self._scale = inverse_frequencies(rope, head_dim)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of shape [..., T, head_dim] in `dtype` for int positions [..., T]; float32 (or wider) inside."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        inner = torch.promote_types(dtype, torch.float32)
        angles = positions.to(inner).unsqueeze(-1) * self._frequencies.to(inner)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`x` [..., T, D] turned by its positions; dimension i is paired with i + D/2, as in every Llama of transformers."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin

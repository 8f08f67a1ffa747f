"""What a Llama EAGLE3 head's `config.json` says, with every choice made.

One rule for every key: `eagle_config.KEY` first, then `KEY` at the top level, then `transformer_layer_config.KEY` (speculators'
format); null counts as not stated.

One rule for the number of chunks that `fc` takes: as many as there are ids in `eagle_aux_hidden_state_layer_ids`; without
ids, `num_aux_hidden_states`; without either, 3 (EAGLE's low, middle and high). If both are stated they must agree. Each chunk
is `target_hidden_size` wide, or `hidden_size` where that is missing or null.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from specalign.draft.errors import DraftError
from specalign.draft.rope import RopeConfig, RopeSettings, parse_rope
from specalign.layer_ids.draft_config import EAGLE3_IDS, LAYER_CONFIG
from specalign.layer_ids.files import read_json_object
from specalign.layer_ids.places import first_set, int_or_none

LaterNorm: TypeAlias = Literal["input_layernorm", "hidden_norm"]

DEFAULT_CHUNKS: Final = 3
ARCHITECTURES: Final = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel",
)  # fmt: skip
"""Names under which a Llama EAGLE3 head is published."""

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_UNSUPPORTED: Final[Mapping[str, object]] = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "bias": False,
    "partial_rotary_factor": 1.0,
    "rope_is_neox_style": True,
    "logit_scale": 1.0,
}
"""Keys → the only value that this head implements (others belong to other heads of ModelOpt, SGLang and Qwen)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """A Llama EAGLE3 head. Sizes are in elements.

    Attributes:
        hidden_size: width H of the head's residual stream.
        intermediate_size: inner width of the MLP.
        num_hidden_layers: k; the first layer takes 2H inputs.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads; divides num_attention_heads.
        head_dim: width of one attention head, even.
        vocab_size: size of the target vocabulary, from which `embed_tokens` reads.
        draft_vocab_size: rows of the head's own lm_head; None where the config leaves it open, which says that the lm_head is
            the target's (SGLang `llama_eagle3.py`, #27908), unless the file holds one.
        target_hidden_size: width of one chunk.
        chunks: number of states that `fc` takes; 1 without `use_aux_hidden_state`.
        layer_ids: the ids as they stand in the file, in its order; their convention is not in the file.
        use_aux_hidden_state: False for heads that take POST_NORM as it is: no concatenation, no fc.
        norm_before_fc: one RMSNorm over the whole concatenation before fc (`input_norm`).
        fc_norm: one RMSNorm for each chunk before fc; after `input_norm` if both are on.
        norm_output: the hidden state that the next draft step takes has been through the final norm.
        norm_before_residual: the first layer's residual is the normed hidden state (vLLM, speculators).
        later_norm: name of the norm before attention in layers 1..k-1. vLLM and speculators call it input_layernorm,
            SGLang 0.5.23 hidden_norm.
        rms_norm_eps: epsilon of every RMSNorm.
        attention_bias: q, k, v and o have biases.
        mlp_bias: gate, up and down have biases.
        tie_word_embeddings: lm_head is the head's own embed_tokens.
        rope: positions.
        layer_types: `full_attention` or `sliding_attention` for each layer; empty for full everywhere.
        sliding_window: tokens that a sliding layer sees, itself included.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_hidden_layers: int = 1
    draft_vocab_size: int | None = None
    target_hidden_size: int
    chunks: int = DEFAULT_CHUNKS
    layer_ids: tuple[int, ...] | None = None
    use_aux_hidden_state: bool = True
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    later_norm: LaterNorm = "input_layernorm"
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope: RopeConfig = dataclasses.field(default_factory=RopeConfig)
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        for problem in (*_size_problems(self), *_state_problems(self), *_layer_problems(self)):
            raise DraftError(f"this draft config cannot be: {problem}")

    @property
    def fc_inputs(self) -> int:
        """Input features of `fc`."""
        return self.chunks * self.target_hidden_size

    @property
    def draft_vocab(self) -> int:
        """Rows of the lm_head."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def borrows_lm_head(self) -> bool:
        """The config says that the lm_head may be the target's: no draft vocabulary is stated and nothing is tied."""
        return self.draft_vocab_size is None and not self.tie_word_embeddings

    def window(self, layer: int) -> int | None:
        """Tokens that `layer` (from 0) sees, itself included; None for all."""
        return self.sliding_window if self.layer_types and self.layer_types[layer] == _SLIDING else None


def _size_problems(config: Eagle3Config) -> list[str]:
    sizes = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "num_hidden_layers", "target_hidden_size", "chunks",
    )  # fmt: skip
    found = [f"{size} must be at least 1, not {getattr(config, size)}" for size in sizes if getattr(config, size) < 1]
    if found:
        return found
    if config.num_attention_heads % config.num_key_value_heads:
        heads = f"{config.num_attention_heads} query heads over {config.num_key_value_heads} key-value heads"
        found.append(f"{heads}; num_key_value_heads must divide num_attention_heads")
    if config.head_dim % 2:
        found.append(f"head_dim is {config.head_dim}; rotary positions need an even one")
    if not 0 < config.rms_norm_eps < 1:
        found.append(f"rms_norm_eps must lie between 0 and 1, not {config.rms_norm_eps}")
    if not 1 <= config.draft_vocab <= config.vocab_size:
        found.append(f"draft_vocab_size {config.draft_vocab} against vocab_size {config.vocab_size}; it must be 1..vocab_size")
    if config.tie_word_embeddings and config.draft_vocab != config.vocab_size:
        found.append(
            f"tie_word_embeddings with draft_vocab_size {config.draft_vocab} of {config.vocab_size}: the rows of embed_tokens are"
            " target tokens, not draft tokens; drop one of the two keys"
        )
    return found


def _state_problems(config: Eagle3Config) -> list[str]:
    if config.use_aux_hidden_state:
        if config.layer_ids is not None and len(config.layer_ids) != config.chunks:
            return [f"{len(config.layer_ids)} layer ids {list(config.layer_ids)} against {config.chunks} chunks; they must agree"]
        return []
    found = []
    if config.chunks != 1 or config.layer_ids is not None:
        found.append(f"use_aux_hidden_state is false, so there is 1 state (POST_NORM) and no ids, not {config.chunks} chunks")
    if config.target_hidden_size != config.hidden_size:
        found.append(
            f"use_aux_hidden_state is false, so POST_NORM ({config.target_hidden_size} wide) is taken without fc by a head that"
            f" is {config.hidden_size} wide"
        )
    if config.norm_before_fc or config.fc_norm:
        found.append("use_aux_hidden_state is false, so there is no fc, yet norm_before_fc or fc_norm is on; drop one")
    return found


def _layer_problems(config: Eagle3Config) -> list[str]:
    types = config.layer_types
    if types and len(types) != config.num_hidden_layers:
        return [f"layer_types names {len(types)} layers, num_hidden_layers is {config.num_hidden_layers}"]
    found = [
        f"layer type {kind!r} is not supported, {_FULL} and {_SLIDING} are" for kind in types if kind not in (_FULL, _SLIDING)
    ]
    if _SLIDING in types and (config.sliding_window is None or config.sliding_window < 1):
        found.append(f"a layer is {_SLIDING} and sliding_window is {config.sliding_window}; state at least 1 token")
    if config.later_norm not in ("input_layernorm", "hidden_norm"):
        found.append(f"later_norm is {config.later_norm!r}, not input_layernorm or hidden_norm")
    return found


def read_eagle3_config(path: Path, *, later_norm: LaterNorm = "input_layernorm") -> Eagle3Config:
    """The `Eagle3Config` of a `config.json`, or of the folder that holds one.

    Raises:
        InputError: a file that cannot be read; `DraftError`, a kind of it, for what `parse_eagle3_config` refuses.
    """
    file = path / "config.json" if path.is_dir() else path
    return parse_eagle3_config(read_json_object(file), name=str(path), later_norm=later_norm)


def parse_eagle3_config(
    config: Mapping[str, object], *, name: str = "draft config", later_norm: LaterNorm = "input_layernorm"
) -> Eagle3Config:
    """The `Eagle3Config` of a parsed `config.json`.

    Args:
        config: the parsed JSON object.
        name: how messages call it.
        later_norm: see `Eagle3Config`; configs do not say it.

    Raises:
        DraftError: another kind of head, a missing or malformed key, or keys that contradict each other.
    """
    reader = _Reader(config, name)
    _check_kind(reader)
    try:
        return Eagle3Config(**_sizes(reader), **_states(reader), **_flags(reader), **_layers(reader), later_norm=later_norm)  # type: ignore[arg-type]
    except DraftError as error:
        raise error if str(error).startswith(name) else DraftError(f"{name}: {error}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    config: Mapping[str, object]
    name: str

    def get(self, key: str) -> object:
        """The value of a key at the first place that states it, or None."""
        return first_set(self.config, (f"eagle_config.{key}", key, f"{LAYER_CONFIG}.{key}"))[1]

    def integer(self, key: str) -> int | None:
        value = self.get(key)
        if value is not None and int_or_none(value) is None:
            raise self.error(key, "an integer", value)
        return int_or_none(value)

    def needed(self, key: str) -> int:
        value = self.integer(key)
        if value is None:
            raise DraftError(f"{self.name}: no {key} in this config; a Llama EAGLE3 head needs it, add it")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "true or false", value)
        return value

    def error(self, key: str, wanted: str, value: object) -> DraftError:
        return DraftError(f"{self.name}: {key} must be {wanted}, not {str(value)[:60]!r}")


def _check_kind(reader: _Reader) -> None:
    names = reader.config.get("architectures")
    for architecture in names if isinstance(names, list) else ():
        if architecture not in ARCHITECTURES:
            raise DraftError(f"{reader.name}: {architecture} is no Llama EAGLE3 head; this one runs {', '.join(ARCHITECTURES)}")
    inner = reader.config.get(LAYER_CONFIG)
    model_type = (inner if isinstance(inner, Mapping) else reader.config).get("model_type")
    if model_type not in (None, "llama"):
        raise DraftError(f"{reader.name}: its layers are {model_type!r}; this head runs llama layers only")
    if reader.get("hidden_act") not in (None, "silu"):
        raise reader.error("hidden_act", "silu", reader.get("hidden_act"))
    for key, only in _UNSUPPORTED.items():
        value = reader.get(key)
        if value is not None and value != only:
            raise DraftError(f"{reader.name}: {key} is {value!r}; this head implements only {only!r}")


def _sizes(reader: _Reader) -> dict[str, object]:
    hidden, heads = reader.needed("hidden_size"), reader.needed("num_attention_heads")
    head_dim, kv_heads = reader.integer("head_dim"), reader.integer("num_key_value_heads")
    if head_dim is None and (heads < 1 or hidden % heads):
        raise DraftError(f"{reader.name}: no head_dim, and hidden_size {hidden} is no multiple of {heads} heads; state head_dim")
    return {
        "hidden_size": hidden,
        "intermediate_size": reader.needed("intermediate_size"),
        "num_hidden_layers": reader.needed("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": hidden // heads if head_dim is None else head_dim,
        "vocab_size": reader.needed("vocab_size"),
        "draft_vocab_size": reader.integer("draft_vocab_size"),
    }


def _states(reader: _Reader) -> dict[str, object]:
    width = reader.integer("target_hidden_size")
    found: dict[str, object] = {"target_hidden_size": reader.needed("hidden_size") if width is None else width}
    if reader.flag("use_aux_hidden_state") is False:
        # Ids that stand beside the flag say nothing: vLLM and SGLang hand on POST_NORM whatever they are.
        return {**found, "use_aux_hidden_state": False, "chunks": 1}
    ids, stated = _ids(reader), reader.integer("num_aux_hidden_states")
    if ids is not None and stated is not None and len(ids) != stated:
        raise DraftError(
            f"{reader.name}: num_aux_hidden_states is {stated}, but {EAGLE3_IDS} holds {len(ids)} ids {list(ids)}; engines differ"
            " in which they build fc for, make them agree"
        )
    chunks = len(ids) if ids is not None else DEFAULT_CHUNKS if stated is None else stated
    return {**found, "chunks": chunks, "layer_ids": ids}


def _ids(reader: _Reader) -> tuple[int, ...] | None:
    value = reader.get(EAGLE3_IDS)
    if value is None:
        return None
    ids = tuple(number for item in value if (number := int_or_none(item)) is not None) if isinstance(value, list) else ()
    if not isinstance(value, list) or not ids or len(ids) != len(value) or min(ids) < 0:
        raise reader.error(EAGLE3_IDS, "a list of at least one integer >= 0, or left out", value)
    return ids


def _flags(reader: _Reader) -> dict[str, object]:
    names = ("norm_before_fc", "norm_output", "norm_before_residual", "attention_bias", "mlp_bias", "tie_word_embeddings")
    new, old = reader.flag("fc_norm"), reader.flag("use_aux_norm")
    if new is not None and old is not None and new != old:
        raise DraftError(f"{reader.name}: fc_norm is {new} and its old name use_aux_norm is {old}; keep one")
    return {**{name: bool(reader.flag(name)) for name in names}, "fc_norm": bool(old if new is None else new)}


def _layers(reader: _Reader) -> dict[str, object]:
    eps, types = reader.get("rms_norm_eps"), reader.get("layer_types")
    if eps is not None and (isinstance(eps, bool) or not isinstance(eps, (int, float))):
        raise reader.error("rms_norm_eps", "a number", eps)
    if types is not None and (not isinstance(types, list) or not all(isinstance(kind, str) for kind in types)):
        raise reader.error("layer_types", "a list of names", types)
    if reader.flag("use_sliding_window") and not types:
        raise DraftError(f"{reader.name}: use_sliding_window is true and no layer_types says which layers slide; add layer_types")
    settings = RopeSettings(**{field.name: reader.get(field.name) for field in dataclasses.fields(RopeSettings)})
    return {
        "rms_norm_eps": 1e-6 if eps is None else float(eps),
        "layer_types": tuple(types or ()),
        "sliding_window": reader.integer("sliding_window"),
        "rope": parse_rope(settings, name=reader.name),
    }

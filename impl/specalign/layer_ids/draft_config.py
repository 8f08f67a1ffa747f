"""What a draft head's config and weight headers say, before any engine reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.files import InputError
from specalign.layer_ids.places import MISSING, first_set, int_or_none, look_up
from specalign.layer_ids.tensor_files import TensorFacts

Kind: TypeAlias = Literal["eagle3", "dflash", "dspark", "eagle"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

LAYER_CONFIG: Final = "transformer_layer_config"
"""Where speculators' format keeps the settings of the draft's layer; engines that read the format lift them to the top."""

TARGET_HIDDEN_PLACES: Final = ("target_hidden_size", "eagle_config.target_hidden_size")
"""Where a head states the width of its target's states."""

NORM_FLAGS: Final = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual")
"""The flags that decide which norms run, before fc and after the last layer."""

MOST_DRAFT_LAYERS: Final = 1000

EAGLE3_IDS: Final = "eagle_aux_hidden_state_layer_ids"

ID_PLACES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "eagle3": (f"eagle_config.{EAGLE3_IDS}", EAGLE3_IDS),
    "dflash": ("dflash_config.target_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids"),
    "dspark": ("dspark_config.target_layer_ids", "dspark_target_layer_ids", "dflash_config.target_layer_ids", "target_layer_ids"),
    "eagle": (),
}
"""Every place where some engine or trainer keeps the ids, nested first. Each is looked for inside `text_config` as well."""

PLACE_CONVENTION: Final[Mapping[str, Convention]] = {
    "dflash_config.target_layer_ids": Convention.OUTPUT,
    "dspark_config.target_layer_ids": Convention.OUTPUT,
    "dspark_target_layer_ids": Convention.OUTPUT,
    "target_layer_ids": Convention.OUTPUT,
    "aux_hidden_state_layer_ids": Convention.BOUNDARY,
}
"""Places whose meaning all writers share. `eagle_aux_hidden_state_layer_ids` is not among them: two conventions use that key."""

_KIND_MARKS: Final[tuple[tuple[Kind, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("dspark", ("dspark",), ("dspark_config", "dspark_target_layer_ids", "markov_rank")),
    ("dflash", ("dflash",), ("dflash_config",)),
    ("eagle3", ("eagle3", "eagle_3"), ("eagle_config", EAGLE3_IDS, "draft_vocab_size", "norm_before_fc", "fc_norm")),
    ("eagle", ("eagle",), ()),
)
"""Kind, what its architecture or speculators_model_type contains (lower case), and config keys that only it has."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraftSpec:
    """A draft head as its files describe it.

    Attributes:
        name: where it came from.
        kind: eagle3, dflash, dspark, or eagle for a head served as EAGLE-1/2.
        kind_why: how the kind was decided.
        config: the parsed `config.json`.
        architecture: the first entry of `architectures`, or "".
        tensors: weight headers, or None where only the config is at hand.
        d2t: the values of the `d2t` tensor, or None where they cannot be read.
        pickles: weight files that are pickles and therefore not read.
        converted: the config is what an engine made of speculators' format (see `speculators.converted`).
    """

    name: str
    kind: Kind
    kind_why: str
    config: Mapping[str, object]
    architecture: str
    tensors: TensorFacts | None = None
    d2t: Sequence[int] | None = None
    pickles: tuple[str, ...] = ()
    converted: bool = False

    @property
    def ids_by_place(self) -> dict[str, object]:
        """Every place of the file that holds something other than null or an empty list, with its raw value, nested first."""
        places = ID_PLACES[self.kind]
        found = {place: look_up(self.config, place) for place in (*places, *(f"text_config.{p}" for p in places))}
        return {place: value for place, value in found.items() if value is not MISSING and value is not None and value != []}

    @property
    def is_speculators(self) -> bool:
        """The config is in speculators' own format, which states boundaries."""
        return any(self.config.get(key) is not None for key in ("speculators_model_type", "speculators_config"))

    def first(self, *places: str) -> object:
        """The first value other than null at `places`, or None."""
        return first_set(self.config, places)[1]

    def flag(self, name: str) -> bool | None:
        """A boolean that may stand in eagle_config, dflash_config or at the top level, in this order; None when unset."""
        value = self.first(f"eagle_config.{name}", f"dflash_config.{name}", name)
        return value if isinstance(value, bool) else None

    @property
    def hidden_size(self) -> int | None:
        """Width of the draft's own residual stream, in elements."""
        return int_or_none(self.setting("hidden_size"))

    @property
    def vocab_size(self) -> int | None:
        """Size of the target vocabulary that the head was made for."""
        return int_or_none(self.setting("vocab_size"))

    @property
    def num_layers(self) -> int | None:
        """Number of the draft's own layers; None when the config does not say, or says something that no head has."""
        number = int_or_none(self.setting("num_hidden_layers"))
        return number if number is not None and 1 <= number <= MOST_DRAFT_LAYERS else None

    @property
    def draft_vocab_size(self) -> int | None:
        """Size of the head's own vocabulary, or None when the config leaves it open."""
        return int_or_none(self.first("draft_vocab_size", "eagle_config.draft_vocab_size"))

    def setting(self, name: str) -> object:
        """An architecture setting of the draft's layer, also inside a speculators `transformer_layer_config`; None when unset."""
        return self.first(name, f"{LAYER_CONFIG}.{name}", f"text_config.{name}")

    def states(self, places: Iterable[str]) -> bool:
        """Some of `places` holds a value, at the top level or in the layer config of speculators' format."""
        return first_set(self.config, [p for place in places for p in (place, f"{LAYER_CONFIG}.{place}")])[0] is not None

    def shape(self, *names: str) -> tuple[int, ...] | None:
        """The shape of the first of these tensors that the weight headers name (with or without a `model.` prefix)."""
        if self.tensors is None:
            return None
        for name in names:
            for full in (name, f"model.{name}"):
                if full in self.tensors.tensors:
                    return self.tensors.tensors[full].shape
        return None


def parse_draft(
    config: Mapping[str, object],
    *,
    name: str,
    kind: Kind | None = None,
    tensors: TensorFacts | None = None,
    d2t: Sequence[int] | None = None,
    pickles: tuple[str, ...] = (),
) -> DraftSpec:
    """A `DraftSpec` out of a parsed `config.json`.

    Raises:
        InputError: a config that is no draft head, or whose kind cannot be told and is not given.
    """
    architecture = _architecture(config)
    found, why = _detect_kind(config, architecture, tensors)
    chosen = kind or found
    if chosen is None:
        model = architecture or config.get("model_type") or "no architectures, no model_type"
        raise InputError(
            f"{name}: this config is not recognizably a draft head ({str(model)[:80]}): it names no EAGLE3, DFlash or DSpark"
            " architecture or key; give the draft first and the target second, or say --kind"
        )
    return DraftSpec(
        name=name,
        kind=chosen,
        kind_why=why if kind in (None, found) else f"said by --kind; the files look like {found or 'no draft head'} ({why})",
        config=config,
        architecture=architecture,
        tensors=tensors,
        d2t=d2t,
        pickles=pickles,
    )


def looks_like(draft: DraftSpec) -> Kind | None:
    """The kind that the files themselves show, whatever was declared."""
    return _detect_kind(draft.config, draft.architecture, draft.tensors)[0]


def _architecture(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _detect_kind(config: Mapping[str, object], architecture: str, tensors: TensorFacts | None) -> tuple[Kind | None, str]:
    model = config.get("speculators_model_type")
    named = [text.lower() for text in (architecture, model) if isinstance(text, str)]
    for kind, marks, _ in _KIND_MARKS:
        if any(mark in text for text in named for mark in marks) and not (kind == "eagle" and _eagle3_weights(tensors)):
            return kind, f"{architecture or model}"
    for kind, _, keys in _KIND_MARKS:
        key = next((key for key in keys if config.get(key) is not None), None)
        if key is not None:
            return kind, f"the config has {key}"
    if _eagle3_weights(tensors):
        return "eagle3", "the weights hold midlayer.*, d2t or input_norm.*"
    return None, "no mark of a draft head"


def _eagle3_weights(tensors: TensorFacts | None) -> bool:
    names = tensors.tensors if tensors is not None else {}
    return any(name.removeprefix("model.").startswith(("midlayer.", "d2t", "input_norm.")) for name in names)

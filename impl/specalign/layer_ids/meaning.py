"""What the ids of a draft head were meant to say, and how sure that is."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from specalign.layer_ids.conventions import POST_NORM, Convention, State, check_ids, format_states
from specalign.layer_ids.convert import infer_convention, to_states
from specalign.layer_ids.draft_config import ID_PLACES, PLACE_CONVENTION, DraftSpec
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.places import int_or_none
from specalign.layer_ids.target_config import TargetSpec

Certainty: TypeAlias = Literal["declared", "format", "proven", "hint", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """The states that a head was trained on, as far as anybody can know.

    Attributes:
        place, ids: where the ids stand in the config, and the ids; None where the head names none.
        convention: the convention taken, or None.
        certainty: "declared" by the user, fixed by the "format" of the file, "proven" by the ids, a "hint", or "unknown".
        states: the states, or None while the convention is unknown or the ids are invalid.
        why: one sentence.
        error: why the ids are invalid under the convention, or None.
    """

    place: str | None
    ids: tuple[int, ...] | None
    convention: Convention | None
    certainty: Certainty
    states: tuple[State, ...] | None
    why: str
    error: str | None = None

    @property
    def is_certain(self) -> bool:
        """More than a hint."""
        return self.states is not None and self.certainty in ("declared", "format", "proven")


def meaning_of(draft: DraftSpec, target: TargetSpec, *, declared: Convention | None = None) -> Meaning:
    """What the ids in `draft` mean on `target`; `declared` is the user's own word and wins."""
    if draft.kind == "eagle":
        return Meaning(None, None, None, "format", (POST_NORM,), "a head served as EAGLE takes the last state, not layer ids")
    if draft.flag("use_aux_hidden_state") is False:
        why = "use_aux_hidden_state is false: the head takes the state after the final norm and concatenates nothing"
        return Meaning(None, None, None, "format", (POST_NORM,), why)
    places = draft.ids_by_place
    if not places:
        why = "the config names no layer ids, so every engine falls back on its own default"
        return Meaning(None, None, declared, "unknown", None, why)
    place, raw = next(iter(places.items()))
    n = target.num_layers
    if is_double_statement(draft):
        declared = None  # the file itself says which list is which
    try:
        ids = check_ids(raw, n)
        convention, certainty, why = _convention(draft, place, ids, n, declared)
    except LayerIdError as error:
        return Meaning(place, None, declared, "unknown", None, "the ids are invalid", str(error))
    if convention is None:
        return Meaning(place, ids, None, certainty, None, why)
    try:
        states = to_states(ids, num_layers=n, convention=convention)
    except LayerIdError as error:
        return Meaning(place, ids, convention, certainty, None, why, str(error))
    return Meaning(place, ids, convention, certainty, states, why)


def _convention(
    draft: DraftSpec, place: str, ids: tuple[int, ...], n: int, declared: Convention | None
) -> tuple[Convention | None, Certainty, str]:
    if is_double_statement(draft):
        why = "eagle_config holds block outputs, the top level the same states as boundaries: each id there is one higher"
        return Convention.OUTPUT, "format", why
    if declared is not None:
        return declared, "declared", f"the convention {declared.name} was declared"
    fixed = PLACE_CONVENTION.get(place.removeprefix("text_config."))
    if fixed is not None:
        return fixed, "format", f"{place} holds {fixed.name} ids in every format that has it"
    if draft.is_speculators:
        return Convention.BOUNDARY, "format", "speculators' format stores boundaries"
    inference = infer_convention(ids, n)
    if inference.convention is not None:
        return inference.convention, "proven", inference.why
    if inference.hint is not None:
        return inference.hint, "hint", inference.why
    return None, "unknown", inference.why


def is_double_statement(draft: DraftSpec) -> bool:
    """The config states the same states twice: as block outputs in `eagle_config` and as boundaries at the top level.

    It is the one form that engines of both conventions read right from one file.
    """
    nested, top = (draft.ids_by_place.get(place) for place in ID_PLACES["eagle3"])
    if not isinstance(nested, list) or not isinstance(top, list) or len(nested) != len(top):
        return False
    return all(int_or_none(k) is not None and int_or_none(b) == k + 1 for k, b in zip(nested, top, strict=True))


def readings(ids: tuple[int, ...], num_layers: int) -> dict[Convention, str]:
    """Convention → the states that `ids` would name under it, as text; for messages about undecidable ids."""
    found = {}
    for convention in (Convention.BOUNDARY, Convention.OUTPUT):
        try:
            found[convention] = format_states(to_states(ids, num_layers=num_layers, convention=convention))
        except LayerIdError:
            continue
    return found

"""What one engine would do with one pair: the ids that it reads, the states that it captures, the widths that result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from specalign.layer_ids.captured import Captured, capture_ids
from specalign.layer_ids.conventions import POST_NORM, State
from specalign.layer_ids.draft_config import TARGET_HIDDEN_PLACES, DraftSpec
from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, EngineProfile
from specalign.layer_ids.places import MISSING, first_set, int_or_none, look_up
from specalign.layer_ids.target_config import TargetSpec


@dataclasses.dataclass(frozen=True, slots=True)
class EngineView:
    """One engine's reading of a pair.

    Attributes:
        profile: the facts that it rests on.
        place: the config place that the ids are read from for capture, or None for the engine's default.
        ids: those ids as the file holds them, or None.
        named: the boundaries that the engine makes of them, in the order of the ids, unlimited: on 36 layers 37 may be there.
        states: the states that really arrive, in the order in which they are concatenated.
        lost: named boundaries that never arrive.
        error: what happens in place of serving, or "".
        chunks: number of chunks that the draft's fc is built for, and `chunks_place`, where that number is read.
        buffered: number of chunks that the engine makes room for, where it reads that number elsewhere again.
        width: width of one chunk that fc is built for, in elements.
        norms: norms that run on the states, in order.
    """

    profile: EngineProfile
    place: str | None
    ids: tuple[int, ...] | None
    named: tuple[State, ...]
    states: tuple[State, ...]
    lost: tuple[State, ...]
    error: str
    chunks: int | None
    chunks_place: str | None
    buffered: int | None
    width: int | None
    norms: tuple[str, ...]

    @property
    def label(self) -> str:
        """The engine as `name==version`."""
        return self.profile.label

    @property
    def fc_inputs(self) -> int | None:
        """Number of input features that the engine builds fc for."""
        return None if self.chunks is None or self.width is None else self.chunks * self.width


def view_of(
    profile: EngineProfile, draft: DraftSpec, target: TargetSpec, *, flag_ids: tuple[int, ...] | None = None
) -> EngineView:
    """The engine's reading of the pair; `flag_ids` are given to engines that take ids by a flag of their own.

    Ids that are no list of integers count as an error of the engine.
    """
    capture = profile.capture
    place, ids = None, None
    captured = Captured()
    if capture is not None and capture.supported and draft.kind != "eagle":
        if aux_state_off(profile.draft, draft):
            captured = Captured((POST_NORM,), (POST_NORM,))
        else:
            place, ids, error = _read_ids(capture, draft, flag_ids)
            captured = (
                Captured(error=error)
                if error
                else capture_ids(capture, ids, target.num_layers, place=place, draft_layers=draft.num_layers)
            )
    chunks, chunks_place = _chunks(profile.draft, draft)
    buffered = _count(draft, profile.draft.buffer_width)[0] if profile.draft is not None else None
    return EngineView(
        profile=profile,
        place=place,
        ids=ids,
        named=captured.named,
        states=captured.states,
        lost=captured.lost,
        error=captured.error,
        chunks=1 if captured.states == (POST_NORM,) else chunks,
        chunks_place=chunks_place,
        buffered=buffered,
        width=_chunk_width(draft),
        norms=_norms(profile.draft, draft),
    )


def aux_state_off(profile: DraftProfile | None, draft: DraftSpec) -> bool:
    """The engine sees `use_aux_hidden_state: false` and hands the head POST_NORM."""
    return profile is not None and setting(profile, draft, "use_aux_hidden_state") is False


def setting(profile: DraftProfile, draft: DraftSpec, name: str) -> Any:
    """The value that the engine uses for a setting: out of the places that it reads, else its default; `MISSING` if unknown."""
    if name not in profile.reads:
        return MISSING
    _, value = first_set(draft.config, profile.reads[name])
    return profile.defaults.get(name) if value is None else value


def _read_ids(
    capture: CaptureProfile, draft: DraftSpec, flag_ids: tuple[int, ...] | None
) -> tuple[str | None, tuple[int, ...] | None, str]:
    for place in capture.ids_from:
        if place.startswith("cli:"):
            if flag_ids is not None:
                return place, flag_ids, ""
            continue
        value = look_up(draft.config, place)
        if value is MISSING or value is None or (value == [] and capture.empty_is_unset):
            continue
        if not isinstance(value, list) or not value or any(int_or_none(item) is None for item in value):
            return place, None, f"ids that are no list of integers: {str(value)[:60]}"
        return place, tuple(value), ""
    return None, None, ""


def _chunks(profile: DraftProfile | None, draft: DraftSpec) -> tuple[int | None, str | None]:
    if profile is None:
        return None, None
    count, place = _count(draft, profile.ids_width)
    return (profile.width_default or None, None) if count is None else (count, place)


def _count(draft: DraftSpec, places: Sequence[str]) -> tuple[int | None, str | None]:
    """The number of chunks that the first usable place states, as a list of ids or as a number."""
    for place in places:
        value = look_up(draft.config, place)
        count = len(value) if isinstance(value, list) else int_or_none(value)
        if count:
            return count, place
    return None, None


def _chunk_width(draft: DraftSpec) -> int | None:
    return int_or_none(draft.first(*TARGET_HIDDEN_PLACES)) or draft.hidden_size


def _norms(profile: DraftProfile | None, draft: DraftSpec) -> tuple[str, ...]:
    if profile is None:
        return ()
    return tuple(name for name in ("norm_before_fc", "fc_norm") if setting(profile, draft, name) is True)

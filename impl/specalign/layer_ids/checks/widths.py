"""Concern "widths": how many features arrive at fc, and how many it takes."""

from __future__ import annotations

from collections.abc import Iterator

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.conventions import POST_NORM
from specalign.layer_ids.draft_config import TARGET_HIDDEN_PLACES
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.places import int_or_none, look_up


def check_files(case: FileCase) -> Iterator[Finding]:
    """The sizes of the target that the draft was made for, and fc against the ids of the same config."""
    draft, target = case.draft, case.target
    stated = int_or_none(draft.first(*TARGET_HIDDEN_PLACES))
    place = "target_hidden_size"
    if stated is None and draft.kind == "eagle3":
        stated, place = draft.hidden_size, "hidden_size (no target_hidden_size is stated, so states are as wide as the head)"
    yield from _size(place, stated, "hidden_size", target.hidden_size)
    yield from _size("target_num_hidden_layers", _trained_layers(case), "num_hidden_layers", target.num_layers)
    if case.draft.vocab_size is not None and target.vocab_size is not None and case.draft.vocab_size > target.vocab_size:
        yield from _size("vocab_size", draft.vocab_size, "vocab_size", target.vocab_size)
    yield from _fc_against_ids(case)


def _trained_layers(case: FileCase) -> int | None:
    places = ("num_target_layers", "dflash_config.num_target_layers", "target_layer_count", "target_num_hidden_layers")
    return int_or_none(case.draft.first(*places))


def _size(place: str, stated: int | None, target_key: str, actual: int) -> Iterator[Finding]:
    if stated is not None and stated != actual:
        yield finding(
            "target-mismatch",
            Severity.ERROR,
            f"the head was made for a target whose {target_key} is {stated}, this target has {actual}",
            where=place,
            how_much=f"{stated} against {actual}",
            next="check that this is the target which the head was trained on",
        )


def _fc_against_ids(case: FileCase) -> Iterator[Finding]:
    """The file against itself: the width of fc.weight must be number of ids times hidden size."""
    fc, ids = case.draft.shape("fc.weight"), case.meaning.ids
    if fc is None or len(fc) != 2 or ids is None or case.draft.kind not in ("eagle3", "dflash", "dspark"):
        return
    wanted = len(ids) * case.target.hidden_size
    if fc[1] != wanted:
        yield finding(
            "width-mismatch",
            Severity.ERROR,
            f"fc.weight takes {fc[1]} features, {len(ids)} states of this target have {wanted}",
            where=f"fc.weight {list(fc)} and {case.meaning.place}",
            how_much=f"{len(ids)} * {case.target.hidden_size} = {wanted} against {fc[1]}",
            next="the ids in this config are not those that the weights were trained with, or the target has another hidden size",
        )


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """What the engine builds, what it loads, and what arrives at the first forward."""
    if not case.serves or case.view.profile.draft is None or case.draft.kind == "eagle":
        return
    yield from _null_target_hidden(case)
    yield from _width_source(case)
    yield from _load(case)
    yield from _forward(case)


def _null_target_hidden(case: EngineCase) -> Iterator[Finding]:
    profile = case.view.profile.draft
    if profile is None or profile.target_hidden_size_null != "error":
        return
    for place in TARGET_HIDDEN_PLACES:
        if look_up(case.draft.config, place) is None:
            yield case.found(
                "target-hidden-size-null",
                Severity.ERROR,
                f"{place} is null and the engine multiplies it by the number of states (TypeError at start)",
                where=place,
                next=f"write {case.target.hidden_size}, the target's hidden_size, or remove the key",
            )


def _width_source(case: EngineCase) -> Iterator[Finding]:
    view = case.view
    if view.chunks is None or view.states == (POST_NORM,) or view.error or not view.named:
        return
    named = len(view.named)
    if view.buffered is not None and view.buffered != named:
        yield case.found(
            "width-source-differs",
            Severity.ERROR,
            f"capture takes {named} states, the engine makes room for {view.buffered}, from another place of the config",
            where="the buffer of the captured states",
            how_much=f"{named} against {view.buffered}",
            next=case.draft_remedy("width-source-differs", "state the ids at one place only"),
        )
    if view.chunks != named:
        yield case.found(
            "width-source-differs",
            Severity.ERROR,
            f"capture takes {named} states from {view.place or 'the default'}, fc is built for {view.chunks} from"
            f" {view.chunks_place or 'the default'}",
            where=f"{view.place or 'default'} and {view.chunks_place or 'default'}",
            how_much=f"{named} against {view.chunks}",
            next=case.draft_remedy(
                "width-source-differs",
                "state the ids at one place that the engine reads for both, and num_aux_hidden_states = their number",
            ),
        )


def _load(case: EngineCase) -> Iterator[Finding]:
    view, fc = case.view, case.draft.shape("fc.weight")
    if fc is None or len(fc) != 2 or view.fc_inputs is None or fc[1] == view.fc_inputs or view.states == (POST_NORM,):
        return
    yield case.found(
        "width-mismatch",
        Severity.ERROR,
        "the engine builds fc for another number of features than the file holds, loading fails",
        where=f"fc.weight {list(fc)}",
        how_much=f"{view.chunks} * {view.width} = {view.fc_inputs} against {fc[1]}",
        next=case.draft_remedy(
            "width-mismatch", "make the number of ids that the engine reads equal to the number of chunks of fc.weight"
        ),
    )


def _forward(case: EngineCase) -> Iterator[Finding]:
    view, fc = case.view, case.draft.shape("fc.weight")
    takes = fc[1] if fc is not None and len(fc) == 2 else view.fc_inputs
    if takes is None or view.error or view.states == (POST_NORM,) or not view.named:
        return
    arrives = len(view.states) * case.target.hidden_size
    out = fc[0] if fc is not None and len(fc) == 2 else (case.draft.hidden_size or view.width)
    profile = view.profile.draft
    if profile is not None and profile.fc_skipped_when_equal_width and arrives == out:
        if takes != arrives or len(view.states) == 1:
            yield _skipped(case, arrives)
        return
    if arrives != takes:
        yield case.found(
            "width-mismatch",
            Severity.ERROR,
            f"{len(view.states)} states arrive where fc takes {takes} features: the first request dies with"
            f" `mat1 and mat2 shapes cannot be multiplied (tokens x {arrives} and {takes} x {out})`",
            where="the draft's fc at the first forward",
            how_much=f"{arrives} against {takes}",
            next=case.capture_remedy("make the engine capture every state that the head needs"),
        )


def _skipped(case: EngineCase, width: int) -> Finding:
    return case.found(
        "width-mismatch",
        Severity.ERROR,
        f"the states are as wide as the draft ({width}), so the engine skips fc and every norm before it without a word",
        where="the draft's fc at the first forward",
        how_much=f"{width} against {width}",
        next=case.capture_remedy("make the engine capture every state that the head needs"),
    )

"""Concern "ids": which states the engine captures, and whether they are the ones meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.conventions import POST_NORM, State, format_states
from specalign.layer_ids.convert import to_states
from specalign.layer_ids.draft_config import PLACE_CONVENTION
from specalign.layer_ids.engine_profiles import CaptureProfile
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.meaning import is_double_statement, readings
from specalign.layer_ids.rules import MIN_LAYERS_FOR_DEFAULT


def check_files(case: FileCase) -> Iterator[Finding]:
    """Conflicting, invalid and undecidable ids."""
    draft, meaning = case.draft, case.meaning
    places = draft.ids_by_place
    if _conflict(case):
        yield finding(
            "ids-conflict",
            Severity.ERROR,
            "the config holds different layer ids at different places, and engines do not agree which to read",
            where=", ".join(places),
            how_much="; ".join(f"{place} = {value}" for place, value in places.items()),
            next="keep one list, at the place that your engine reads (see the table below), or write the same list to both",
        )
    if meaning.error:
        yield finding(
            "ids-invalid", Severity.ERROR, meaning.error, where=f"{meaning.place}", next="correct the list of ids in the config"
        )
    yield from _convention_findings(case)
    if draft.kind == "eagle3" and draft.flag("use_aux_hidden_state") is False:
        yield finding(
            "aux-state-off",
            Severity.INFO,
            "the head takes POST_NORM, one state after the final norm, and no layer ids",
            where="use_aux_hidden_state",
            next="nothing to do where the engine honours the flag",
        )


def _conflict(case: FileCase) -> bool:
    """Places that name different states; lists of different conventions may well name the same ones."""
    if is_double_statement(case.draft):
        return False
    named = {str(_named_at(case, place, value)) for place, value in case.draft.ids_by_place.items()}
    return len(named) > 1


def _named_at(case: FileCase, place: str, value: object) -> object:
    convention = PLACE_CONVENTION.get(place.removeprefix("text_config."))
    if convention is None or not isinstance(value, list):
        return value
    try:
        return to_states(value, num_layers=case.target.num_layers, convention=convention)
    except LayerIdError:
        return value


def _convention_findings(case: FileCase) -> Iterator[Finding]:
    meaning, n = case.meaning, case.target.num_layers
    if meaning.ids is None or meaning.error:
        return
    if meaning.certainty in ("unknown", "hint"):
        both = readings(meaning.ids, n)
        hint = f"; {meaning.why}" if meaning.certainty == "hint" else ""
        yield finding(
            "convention-undecidable",
            Severity.WARNING,
            f"nothing in the config says whether the ids {list(meaning.ids)} are boundaries or block outputs{hint}",
            where=f"{meaning.place}",
            how_much=" or ".join(f"{convention.name}: {states}" for convention, states in both.items()),
            next="ask whoever trained the head and say --convention boundary (EAGLE, vLLM, speculators) or --convention output"
            " (ModelOpt, SpecForge, TensorRT-LLM); or measure it on the target: specalign probe",
        )


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """The engine's states against the ones meant."""
    if case.draft.kind == "eagle":
        return
    capture = case.view.profile.capture
    if capture is None or not capture.supported:
        return
    yield from _source_findings(case, capture)
    yield from _state_findings(case, capture)


def _source_findings(case: EngineCase, capture: CaptureProfile) -> Iterator[Finding]:
    view, meaning = case.view, case.meaning
    if view.states == (POST_NORM,):
        return
    places = case.draft.ids_by_place
    if view.place is None and not view.error:
        flags = [place for place in capture.ids_from if place.startswith("cli:")]
        n = case.target.num_layers
        if n < MIN_LAYERS_FOR_DEFAULT and capture.default == "rule":
            yield case.found(
                "default-too-shallow",
                Severity.ERROR,
                f"the default ids on {n} layers are {format_states(view.named)}, which engines do not refuse",
                where="num_hidden_layers",
                how_much=f"{n} layers, at least {MIN_LAYERS_FOR_DEFAULT} needed",
                next="name the layer ids explicitly",
            )
        elif not places:
            yield case.found(
                "ids-guessed",
                Severity.WARNING,
                f"no layer ids in the config: the engine takes its default {format_states(view.named)}",
                where=", ".join(capture.ids_from) or "the engine's default",
                next=case.capture_remedy("write the ids that the head was trained on into the config"),
            )
        elif meaning.place is not None:
            yield _not_read(case, capture, flags)
    elif view.ids is not None and meaning.ids is not None and view.place != meaning.place:
        by_flag = f"{view.place}".startswith("cli:")
        if not by_flag and view.ids != meaning.ids and not case.draft.converted and not is_double_statement(case.draft):
            yield _not_read(case, capture)


def _not_read(case: EngineCase, capture: CaptureProfile, flags: Sequence[str] = ()) -> Finding:
    view, meaning = case.view, case.meaning
    same = view.states == meaning.states
    took = f"{view.place}" if view.place else f"its default {format_states(view.named)}"
    reads = ", ".join(p.removeprefix("cli:") + (" (a flag)" if p.startswith("cli:") else "") for p in capture.ids_from)
    value = list(meaning.ids) if meaning.ids else "the ids"
    flag = f"pass {flags[0].removeprefix('cli:')}, or " if flags else ""
    advice = _ids_that_work(case) if meaning.is_certain else ""
    return case.found(
        "ids-not-read",
        Severity.WARNING if same else Severity.ERROR,
        f"{meaning.place} = {value} is not read for capture; the engine takes {took}",
        where=f"{meaning.place}",
        how_much=f"read: {reads or 'no place in the config'}",
        next=advice or case.capture_remedy(f"{flag}write the ids to {reads or 'a place that the engine reads'}"),
    )


def _state_findings(case: EngineCase, capture: CaptureProfile) -> Iterator[Finding]:
    view, meaning = case.view, case.meaning
    if view.error:
        yield _refused(case)
        return
    yield from _corrupt(case, capture)
    if view.lost:
        yield _unreachable(case)
    yield from _collapsed(case)
    if meaning.states is None:
        return
    if case.draft.flag("use_aux_hidden_state") is False and view.states != (POST_NORM,):
        yield _aux_ignored(case)
    elif set(view.named) != set(meaning.states):
        if view.place is not None:
            yield _shifted(case)
    elif not view.lost and view.states != meaning.states and set(view.states) == set(meaning.states):
        yield case.found(
            "ids-reordered",
            Severity.ERROR,
            "the engine concatenates the states in layer order, the head was trained on the order of its config",
            where=f"{meaning.place}",
            how_much=f"{format_states(view.states)} in place of {format_states(meaning.states)}",
            next="no flag restores the order: permute the column blocks of fc.weight (and any per-chunk norms) to ascending order"
            " and sort the ids",
        )


def _refused(case: EngineCase) -> Finding:
    view = case.view
    return case.found(
        "ids-refused",
        Severity.ERROR,
        f"the engine does not serve these ids: {view.error}",
        where=view.place or "the engine's default",
        how_much=_asked(case),
        next=_ids_that_work(case) or case.capture_remedy("name ids that the engine accepts"),
    )


def _corrupt(case: EngineCase, capture: CaptureProfile) -> Iterator[Finding]:
    view = case.view
    aliased = capture.boundary_0 == "aliased" and 0 in view.states
    what = capture.captured or ("boundary 0 without a copy, which later blocks overwrite" if aliased else "")
    if what:
        yield case.found(
            "state-corrupt",
            Severity.ERROR,
            f"what this engine captures here is not the residual stream: {what}",
            where=capture.source,
            how_much=f"states {format_states(view.states)}",
            next="use a version without the fault; no list of ids avoids it"
            if capture.captured
            else "do not name boundary 0 here",
        )


def _unreachable(case: EngineCase) -> Finding:
    view, n = case.view, case.target.num_layers
    beyond = [b for b in view.lost if b is not POST_NORM and int(b) > n]
    kind = f"boundary {beyond[0]} does not exist on {n} layers" if beyond else f"boundary {view.lost[0]} is never captured"
    return case.found(
        "state-unreachable",
        Severity.ERROR,
        f"{len(view.lost)} of {len(view.named)} states silently do not arrive: {kind}",
        where=view.place or "the engine's default",
        how_much=f"{_asked(case)}, captured {format_states(view.states)}",
        next=_ids_that_work(case) or case.capture_remedy("use a version of the engine that captures this boundary"),
    )


def _collapsed(case: EngineCase) -> Iterator[Finding]:
    view = case.view
    if len(view.states) < len(view.named) - len(view.lost):
        yield case.found(
            "ids-collapsed",
            Severity.ERROR,
            "a state that the ids name twice is captured once",
            where=view.place or "the engine's default",
            how_much=f"named {format_states(view.named)}, captured {format_states(view.states)}",
            next="name each layer once; a head that was trained on a doubled chunk cannot be served here",
        )


def _shifted(case: EngineCase) -> Finding:
    view, meaning = case.view, case.meaning
    certain = meaning.is_certain
    basis = {"declared": "declared", "format": "fixed by the format", "proven": "proven", "hint": "suggested"}[meaning.certainty]
    convention = meaning.convention.name if meaning.convention else ""
    return case.found(
        "ids-shifted",
        Severity.ERROR if certain else Severity.WARNING,
        f"the engine captures other states than the ids name under the {basis} convention {convention}:"
        f" {_distance(view.named, meaning.states or ())}",
        where=f"{view.place}",
        how_much=f"captured {format_states(view.named)}, meant {format_states(meaning.states or ())}",
        next=_ids_that_work(case) or case.capture_remedy("no list of ids gives the meant states on this engine"),
    )


def _aux_ignored(case: EngineCase) -> Finding:
    return case.found(
        "aux-state-off",
        Severity.ERROR,
        "the config says use_aux_hidden_state: false and the engine captures boundaries all the same",
        where="use_aux_hidden_state",
        how_much=f"captured {format_states(case.view.states)}, meant [POST_NORM]",
        next=case.draft_remedy("aux-state-off", "serve this head with an engine that honours use_aux_hidden_state"),
    )


def _asked(case: EngineCase) -> str:
    view = case.view
    if view.ids is None and view.place is not None:
        return ""
    return f"ids {list(view.ids) if view.ids is not None else 'None'} become {format_states(view.named)}"


def _distance(captured: tuple[State, ...], meant: tuple[State, ...]) -> str:
    pairs = [(c, m) for c, m in zip(captured, meant, strict=False) if c is not POST_NORM and m is not POST_NORM]
    steps = {int(c) - int(m) for c, m in pairs}
    if len(captured) == len(meant) and len(pairs) == len(meant) and len(steps) == 1:
        step = steps.pop()
        return f"every one is {abs(step)} boundar{'y' if abs(step) == 1 else 'ies'} too {'late' if step > 0 else 'early'}"
    return f"{len(set(meant) - set(captured))} of {len(meant)} states differ"


def _ids_that_work(case: EngineCase) -> str:
    """The ids that give the meant states on this engine, as advice; "" when there are none."""
    capture, meaning = case.view.profile.capture, case.meaning
    if capture is None or meaning.states is None:
        return ""
    place = next((p for p in capture.ids_from if not p.startswith("cli:")), None)
    if not capture.ids_from:
        return ""
    try:
        ids = capture.as_rule(place).ids_for(meaning.states, case.target.num_layers)
    except LayerIdError:
        return ""
    if ids == case.view.ids:
        return ""
    where = place or capture.ids_from[0].removeprefix("cli:")
    return f"for {format_states(meaning.states)} on this engine set {where} to {list(ids)}"

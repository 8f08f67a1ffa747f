"""The forms of a `CheckReport`: text for people, JSON (`specalign.check/1`) and GitHub annotations for machines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from specalign.layer_ids.annotations import Level, workflow_command
from specalign.layer_ids.conventions import State, format_states
from specalign.layer_ids.findings import Finding, Severity, one_line
from specalign.layer_ids.preflight import CheckReport
from specalign.layer_ids.tables import format_table
from specalign.layer_ids.view import EngineView

JSON_SCHEMA_NAME: Final = "specalign.check/1"

_GITHUB_LEVELS: Final[Mapping[Severity, Level]] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def format_text(report: CheckReport) -> str:
    """The pair, one table row an engine, then the findings."""
    heading = (one_line(line) for line in _heading(report))
    return "\n".join((*heading, "", _engine_table(report), "", *_findings(report), _summary(report)))


def _heading(report: CheckReport) -> Iterator[str]:
    draft, target, meaning = report.draft, report.target, report.meaning
    tensors = f"{len(draft.tensors.tensors)} tensors" if draft.tensors is not None else "weights not read"
    yield f"draft   {draft.name}  ({draft.kind}: {draft.kind_why}; {tensors})"
    family = report.family or "family unknown"
    yield (
        f"target  {target.name}  ({family}, {target.num_layers} layers, hidden {target.hidden_size},"
        f" vocabulary {target.vocab_size or 'unknown'})"
    )
    yield f"ids     {meaning.place or 'none in the config'}{f' = {list(meaning.ids)}' if meaning.ids else ''}"
    states = format_states(meaning.states) if meaning.states is not None else "unknown"
    convention = f", {meaning.convention.name} {meaning.certainty}" if meaning.convention else ""
    yield f"meant   {states}{convention}: {meaning.why}"


def _engine_table(report: CheckReport) -> str:
    head = ("engine", "ids it reads", "states it captures", "fc takes/gets", "norms", "verdict")
    return format_table([head, *(_engine_row(report, view) for view in report.views)])


def _engine_row(report: CheckReport, view: EngineView) -> tuple[str, ...]:
    ids = "default" if view.place is None else str(list(view.ids)) if view.ids is not None else "unreadable"
    captured = f"none: {view.error}" if view.error else format_states(view.states) if view.named else "?"
    lost = f" (lost {format_states(view.lost)})" if view.lost and not view.error else ""
    gets = len(view.states) * report.target.hidden_size if view.states and not view.error else "?"
    takes = _fc_takes(report, view)
    counts = [(s, sum(f.severity is s for f in report.of(view.label))) for s in (Severity.ERROR, Severity.WARNING)]
    fine = "ok" if not any(f.severity is Severity.ERROR for f in report.of(None)) else "see the files"
    verdict = ", ".join(f"{n} {s.value}{'s' if n > 1 else ''}" for s, n in counts if n) or fine
    return view.label, ids, captured + lost, f"{takes}/{gets}", " + ".join(view.norms) or "-", verdict


def _fc_takes(report: CheckReport, view: EngineView) -> int | str:
    fc = report.draft.shape("fc.weight")
    return fc[1] if fc is not None and len(fc) == 2 else view.fc_inputs or "?"


def _findings(report: CheckReport) -> Iterator[str]:
    for engine in (None, *(view.label for view in report.views)):
        found = report.of(engine)
        if found:
            yield f"{engine or 'the files'}:"
            yield from (textwrap.indent(f.format(), "  ") for f in found)
            yield ""
    for f, reason in report.ignored:
        yield f"ignored {f.code}{f' ({f.engine})' if f.engine else ''}: {reason}"


def _summary(report: CheckReport) -> str:
    counts = {s: sum(f.severity is s for f in report.findings) for s in Severity}
    judged = [v for v in report.views if v.profile.capture is not None]
    clean = [v.label for v in judged if not any(f.severity is Severity.ERROR for f in report.of(v.label))]
    total = ", ".join(f"{n} {s.value}{'s' if n != 1 else ''}" for s, n in counts.items() if n) or "no findings"
    if any(f.severity is Severity.ERROR for f in report.of(None)):
        return f"{total}; the files themselves have errors, whatever the engine"
    return f"{total}; without errors: {', '.join(clean) or 'none'}"


def as_json(report: CheckReport) -> dict[str, Any]:
    """The report as plain objects after the JSON Schema `schemas/check-1.json`."""
    draft, target, meaning = report.draft, report.target, report.meaning
    return {
        "schema": JSON_SCHEMA_NAME,
        "ok": report.ok,
        "exit_code": report.exit_code,
        "draft": {
            "name": draft.name,
            "kind": draft.kind,
            "kind_why": draft.kind_why,
            "architecture": draft.architecture or None,
            "hidden_size": draft.hidden_size,
            "vocab_size": draft.vocab_size,
            "draft_vocab_size": draft.draft_vocab_size,
            "tensors": None if draft.tensors is None else len(draft.tensors.tensors),
            "ids": {place: _plain(value) for place, value in draft.ids_by_place.items()},
        },
        "target": {
            "name": target.name,
            "family": report.family,
            "architectures": list(target.architectures),
            "model_types": list(target.model_types),
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
        },
        "meaning": {
            "place": meaning.place,
            "ids": None if meaning.ids is None else list(meaning.ids),
            "convention": None if meaning.convention is None else meaning.convention.name,
            "certainty": meaning.certainty,
            "states": None if meaning.states is None else _states(meaning.states),
            "why": meaning.why,
            "error": meaning.error,
        },
        "engines": [_engine_json(view) for view in report.views],
        "findings": [_finding_json(f) for f in report.findings],
        "ignored": [{"finding": _finding_json(f), "reason": reason} for f, reason in report.ignored],
    }


def _engine_json(view: EngineView) -> dict[str, Any]:
    profile = view.profile
    rows = [row for row in (profile.capture, profile.draft) if row is not None]
    return {
        "engine": profile.engine,
        "version": profile.version or None,
        "profiled": profile.profiled or None,
        "place": view.place,
        "ids": None if view.ids is None else list(view.ids),
        "named": _states(view.named),
        "states": _states(view.states),
        "lost": _states(view.lost),
        "error": view.error or None,
        "fc": {"chunks": view.chunks, "chunks_place": view.chunks_place, "width": view.width, "inputs": view.fc_inputs},
        "norms": list(view.norms),
        "sources": [{"source": row.source, "grade": row.grade} for row in rows],
    }


def _finding_json(f: Finding) -> dict[str, Any]:
    return {
        "code": f.code,
        "concern": f.concern,
        "severity": f.severity.value,
        "engine": f.engine,
        "what": f.what,
        "where": f.where,
        "how_much": f.how_much or None,
        "next": f.next,
    }


def _plain(value: object) -> object:
    """A raw value out of a config, without the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _states(states: Iterable[State]) -> list[int | str]:
    return [state if isinstance(state, int) else str(state) for state in states]


def format_github(report: CheckReport, *, file: str) -> str:
    """One workflow command a finding, attached to `file`."""
    return "\n".join(_annotation(f, file) for f in report.findings)


def _annotation(f: Finding, file: str) -> str:
    title = f"specalign {f.code}" + (f" ({f.engine})" if f.engine else "")
    figures = f" ({f.how_much})" if f.how_much else ""
    message = f"{f.what}{figures}\nat {f.where}\nnext: {f.next}"
    return workflow_command(_GITHUB_LEVELS[f.severity], message, {"file": file, "title": title})

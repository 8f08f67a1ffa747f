"""Concern "ids", first half: whether the engine takes the pair, and whether anybody profiled it."""

from __future__ import annotations

from collections.abc import Iterator

from specalign.layer_ids.checks.case import EngineCase
from specalign.layer_ids.draft_config import looks_like
from specalign.layer_ids.findings import Finding, Severity


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """Version, target, architecture and algorithm: may this engine be judged at all, and does it take the pair?"""
    profile = case.view.profile
    if profile.profiled != profile.version:
        yield case.found(
            "version-unprofiled",
            Severity.WARNING,
            f"nobody profiled {profile.engine} {profile.version}; the facts of {profile.profiled} are used",
            where=f"the profiles of {profile.engine}",
            next=f"run `specalign engines verify --wheel` on the wheel of {profile.version}, or check against {profile.profiled}",
        )
    if case.draft.kind == "eagle":
        yield from _served_as_eagle(case)
        return
    yield from _architecture_findings(case)
    capture = profile.capture
    model = case.target.architectures[0] if case.target.architectures else ", ".join(case.target.model_types) or "unknown"
    if capture is None:
        yield case.found(
            "target-unprofiled",
            Severity.WARNING,
            f"no profile says what this engine does with {case.draft.kind} ids on {model}",
            where="the target's architectures",
            next="read the engine's code for this model, or add a row to its file in engine_data (see CONTRIBUTING.md)",
        )
    elif not capture.supported:
        yield case.found(
            "target-unsupported",
            Severity.ERROR,
            f"this engine has no {case.draft.kind} capture for {model}: {capture.note or 'the model lacks the interface'}",
            where=capture.source,
            next=case.capture_remedy("serve this pair with an engine or version that supports it"),
        )


def _architecture_findings(case: EngineCase) -> Iterator[Finding]:
    profile, architecture = case.view.profile.draft, case.draft.architecture or "none stated"
    if not case.serves:
        return
    if profile is None:
        yield case.found(
            "draft-unprofiled",
            Severity.WARNING,
            f"no profile says how this engine reads {case.draft.kind} heads of the architecture {architecture}: norms, widths and"
            " weights were not checked for it",
            where="architectures",
            next="read the engine's loader for this architecture, or add a row to its file in engine_data (see CONTRIBUTING.md)",
        )
    elif not profile.supported:
        yield case.found(
            "draft-unsupported",
            Severity.ERROR,
            f"the engine cannot load {case.draft.kind} heads of the architecture {architecture}",
            where="architectures",
            how_much=profile.note,
            next=case.draft_remedy("draft-unsupported", "convert the head to an architecture that the engine knows"),
        )


def _served_as_eagle(case: EngineCase) -> Iterator[Finding]:
    kind = looks_like(case.draft)
    if kind in (None, "eagle") or not case.serves:
        return
    profile = case.view.profile.draft
    effect = profile.served_as_eagle if profile is not None else ""
    yield case.found(
        "eagle3-served-as-eagle",
        Severity.ERROR,
        f"a head of kind {kind} served with the algorithm EAGLE{': ' + effect if effect else ''}",
        where="the speculative algorithm",
        next=case.draft_remedy("eagle3-served-as-eagle", f"serve it with the algorithm {str(kind).upper()}"),
    )

"""Concern "settings": head size, rope and sliding window of the draft's own layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.draft_config import LAYER_CONFIG, DraftSpec
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.places import first_set


def rope_statements(draft: DraftSpec) -> dict[str, dict[str, object]]:
    """ "theta" and "scaling" → place → value, for every place of the config that states it."""
    found: dict[str, dict[str, object]] = {"theta": {}, "scaling": {}}
    for prefix in ("", f"{LAYER_CONFIG}.", "text_config."):
        _, theta = first_set(draft.config, [f"{prefix}rope_theta"])
        if theta is not None:
            found["theta"][f"{prefix}rope_theta"] = theta
        for place in (f"{prefix}rope_parameters", f"{prefix}rope_scaling"):
            _, value = first_set(draft.config, [place])
            if isinstance(value, Mapping):
                _add_rope_object(found, place, value)
    return found


def _add_rope_object(found: dict[str, dict[str, object]], place: str, value: Mapping[str, object]) -> None:
    if value.get("rope_theta") is not None:
        found["theta"][f"{place}.rope_theta"] = value["rope_theta"]
    kind = value.get("rope_type") or value.get("type") or "default"
    if kind != "default":
        found["scaling"][place] = {key: item for key, item in value.items() if key not in ("rope_theta", "type", "rope_type")} | {
            "rope_type": kind
        }


def check_files(case: FileCase) -> Iterator[Finding]:
    """Rope that is stated twice and differently."""
    for what, places in rope_statements(case.draft).items():
        values = list(places.values())
        if any(value != values[0] for value in values[1:]):
            yield finding(
                "rope-conflict",
                Severity.ERROR,
                f"rope {what} is stated at {len(places)} places with different values",
                where=", ".join(places),
                how_much="; ".join(f"{place} = {value}" for place, value in places.items()),
                next="keep one statement, or make them equal",
            )


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """Settings that stand in the file and do not reach the engine."""
    if case.view.profile.draft is None or not case.serves:
        return
    yield from _head_dim(case)
    yield from _attention_bias(case)
    yield from _rope(case)
    yield from _window(case)


def _reads(case: EngineCase, name: str) -> tuple[str, ...] | None:
    profile = case.view.profile.draft
    return profile.reads.get(name) if profile is not None else None


def _head_dim(case: EngineCase) -> Iterator[Finding]:
    draft, reads = case.draft, _reads(case, "head_dim")
    head_dim, heads, hidden = draft.setting("head_dim"), draft.setting("num_attention_heads"), draft.hidden_size
    if reads is None or not isinstance(head_dim, int) or not isinstance(heads, int) or not hidden or heads < 1:
        return
    if head_dim * heads != hidden and not draft.states(reads):
        yield case.found(
            "head-dim-ignored",
            Severity.ERROR,
            "the engine computes the head size from hidden_size and ignores head_dim",
            where="head_dim",
            how_much=f"{hidden // heads} against {head_dim}",
            next=case.draft_remedy("head-dim-ignored", "use a version of the engine that reads head_dim"),
        )


def _attention_bias(case: EngineCase) -> Iterator[Finding]:
    if case.draft.setting("attention_bias") is True and _reads(case, "attention_bias") == ():
        yield case.found(
            "attention-bias-ignored",
            Severity.ERROR,
            "the engine builds q, k and v of the draft without biases, whatever the config says",
            where="attention_bias",
            next=case.draft_remedy("attention-bias-ignored", "serve this head with an engine that reads attention_bias"),
        )


def _rope(case: EngineCase) -> Iterator[Finding]:
    for what, places in rope_statements(case.draft).items():
        reads = _reads(case, f"rope_{what}")
        if reads is None or not places or any(_covers(read, place) for read in reads for place in places):
            continue
        value = next(iter(places.values()))
        yield case.found(
            f"rope-{what}-ignored",
            Severity.ERROR,
            f"the config states rope {what} at {', '.join(places)}, the engine reads {', '.join(reads) or 'none of it'}",
            where=next(iter(places)),
            how_much=f"{value} is lost",
            next=f"write it to {reads[0]} as well"
            if reads
            else case.draft_remedy(f"rope-{what}-ignored", "use an engine that reads it"),
        )


def _covers(read: str, place: str) -> bool:
    bare = place.removeprefix(f"{LAYER_CONFIG}.")
    return any(p == read or p.startswith(f"{read}.") for p in (place, bare))


def _window(case: EngineCase) -> Iterator[Finding]:
    draft = case.draft
    layer_types = draft.setting("layer_types")
    sliding = isinstance(layer_types, list) and "sliding_attention" in layer_types[: draft.num_layers]
    window = draft.setting("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or draft.setting("use_sliding_window") is False:
        return
    longest = draft.setting("max_position_embeddings")
    if (isinstance(layer_types, list) and not sliding) or (isinstance(longest, int) and window >= longest):
        return
    ignored = [name for name in ("sliding_window", "layer_types") if _reads(case, name) == () and draft.setting(name) is not None]
    if ignored:
        yield case.found(
            "sliding-window-ignored",
            Severity.ERROR,
            f"the draft was trained with a sliding window of {window} tokens and the engine ignores {' and '.join(ignored)}:"
            " past the window it attends to tokens that the head never saw",
            where=", ".join(ignored),
            how_much=f"window {window} against the full context",
            next=case.draft_remedy("sliding-window-ignored", "set the engine's own window flag for drafts, if it has one"),
        )

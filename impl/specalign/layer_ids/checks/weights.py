"""Concern "weights": tensors that nobody reads, tensors that are missing, lm_head and d2t."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.checks.shapes import check_shapes
from specalign.layer_ids.d2t import holds_token_ids
from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.view import setting

_HARMLESS = ("t2d", "*.t2d", "rotary_emb.inv_freq", "*.rotary_emb.inv_freq")
"""Tensors that may be dropped: t2d is the inverse of d2t, inv_freq is computed."""

_NEEDED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "eagle3": (
        ("fc.weight", "fc.*"),
        ("norm.weight",),
        ("midlayer.self_attn.*", "layers.*.self_attn.*"),
        ("midlayer.mlp.*", "layers.*.mlp.*"),
    ),
    "dflash": (("fc.weight", "fc.*"), ("norm.weight",), ("hidden_norm.weight",), ("layers.*.self_attn.*",), ("layers.*.mlp.*",)),
}
"""Kind → tensors without which no engine can run such a head, each with the patterns under which it is stored."""


def check_files(case: FileCase) -> Iterator[Finding]:
    """d2t against both vocabularies; whether weights could be looked at at all."""
    draft = case.draft
    if draft.tensors is None:
        which = f"only pickles ({', '.join(draft.pickles[:3])}), which are never opened" if draft.pickles else "no weight headers"
        yield finding(
            "weights-not-read",
            Severity.INFO,
            f"{which}: nothing about tensors, fc width or d2t was checked",
            where=draft.name,
            next="put model.safetensors beside the config, or just its first megabyte as model.safetensors.header",
        )
        return
    yield from _missing(draft)
    yield from check_shapes(draft)
    if draft.kind == "eagle3":
        yield from _d2t(draft, case.target.vocab_size)


def _missing(draft: DraftSpec) -> Iterator[Finding]:
    if draft.tensors is None or not draft.tensors.complete:
        return
    for patterns in _NEEDED.get(draft.kind, ()):
        unneeded = draft.flag("use_aux_hidden_state") is False and patterns[0] == "fc.weight"
        if not unneeded and not any(_matches(name, patterns) for name in draft.tensors.tensors):
            yield finding(
                "weight-missing",
                Severity.ERROR,
                f"the file has no {patterns[0]}: engines start with random values there and say nothing",
                where=draft.name,
                how_much=f"{len(draft.tensors.tensors)} tensors, none called {' or '.join(patterns)}",
                next="export the checkpoint again; if it has several files, put all of them into the folder",
            )


def _d2t(draft: DraftSpec, target_vocab: int | None) -> Iterator[Finding]:
    small, full = draft.draft_vocab_size, target_vocab or draft.vocab_size
    compressed = small is not None and full is not None and small < full
    shape = draft.shape("d2t")
    if shape is None:
        if compressed and draft.tensors is not None and draft.tensors.complete:
            yield finding(
                "d2t-missing",
                Severity.ERROR,
                "the head has its own small vocabulary and the file no d2t: draft token i would be taken for target token i",
                where="d2t",
                how_much=f"{small} of {full} tokens",
                next="export the checkpoint with d2t (offsets: target token = draft token + d2t[draft token])",
            )
    elif draft.d2t is not None and full is not None:
        yield from _d2t_values(draft.d2t, full)


def _d2t_values(d2t: Sequence[int], vocab: int) -> Iterator[Finding]:
    if holds_token_ids(d2t, vocab):
        yield finding(
            "d2t-absolute",
            Severity.ERROR,
            f"d2t holds {'arange' if d2t[1] == 1 and d2t[-1] == len(d2t) - 1 else 'token ids'}, but engines read it as offsets"
            " (target token = draft token + d2t[draft token])",
            where="d2t",
            how_much=f"as offsets the last draft token would be target token {len(d2t) - 1 + d2t[-1]} of {vocab}",
            next="store d2t - arange(draft_vocab_size)",
        )
        return
    bad = [i for i, offset in enumerate(d2t) if not 0 <= i + offset < vocab]
    if bad:
        yield finding(
            "d2t-out-of-range",
            Severity.ERROR,
            f"{len(bad)} entries of d2t point outside the vocabulary",
            where=f"d2t[{bad[0]}]",
            how_much=f"{bad[0]} + {d2t[bad[0]]} = {bad[0] + d2t[bad[0]]}, vocabulary {vocab}",
            next="check that the head belongs to this target and that d2t holds offsets",
        )


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """The file's tensors against those that the engine loads."""
    if not case.serves or case.draft.kind == "eagle":
        return
    yield from _unread(case)
    yield from _lm_head(case)


def _unread(case: EngineCase) -> Iterator[Finding]:
    profile, tensors = case.view.profile.draft, case.draft.tensors
    if profile is None or tensors is None or not profile.weights:
        return
    patterns = [p for p in profile.weights if p not in profile.weights_when] + [
        pattern for pattern, name in profile.weights_when.items() if setting(profile, case.draft, name) is True
    ]
    names = [name for name in tensors.tensors if not _matches(name, (*patterns, *_HARMLESS))]
    if names:
        fate = {"error": "and refuses the file", "warned": "with a warning"}.get(profile.unknown_weights, "without a word")
        yield case.found(
            "weight-unread",
            Severity.ERROR if profile.unknown_weights == "error" else Severity.WARNING,
            f"the engine drops {len(names)} of {len(tensors.tensors)} tensors {fate}",
            where=", ".join(sorted(names)[:4]) + (", …" if len(names) > 4 else ""),
            next="if the head needs them, use an engine version that loads them; else remove them from the file",
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    bare = name.removeprefix("model.")
    return any(fnmatch.fnmatchcase(bare, pattern) or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _lm_head(case: EngineCase) -> Iterator[Finding]:
    draft, profile = case.draft, case.view.profile.draft
    if profile is None or draft.tensors is None or not draft.tensors.complete or draft.shape("lm_head.weight") is not None:
        return
    small, full = draft.draft_vocab_size, draft.vocab_size
    compressed = small is not None and full is not None and small < full
    fate = {
        "random": "keeps random values there: acceptance length 1.0",
        "random-if-draft-vocab": "keeps random values there: acceptance length 1.0" if small is not None else "",
        "target-cut": f"takes the first {small} rows of the target's, which are other tokens" if compressed else "",
        "error": "refuses to load it",
    }.get(profile.lm_head_missing)
    if fate:
        yield case.found(
            "lm-head-missing",
            Severity.ERROR,
            f"the file has no lm_head.weight and the engine {fate}",
            where="lm_head.weight",
            how_much=f"draft_vocab_size {small}, vocab_size {full}",
            next="export the checkpoint with its lm_head"
            if compressed
            else "remove draft_vocab_size from the config, so that the target's lm_head is shared, or export the lm_head",
        )

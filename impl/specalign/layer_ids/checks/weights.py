"""Concern "weights": tensors that nobody reads, tensors that are missing, lm_head and d2t."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.view import setting

_HARMLESS = ("t2d", "*.t2d", "rotary_emb.inv_freq", "*.rotary_emb.inv_freq")
"""Tensors that may be dropped: t2d is the inverse of d2t, inv_freq is computed."""


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
    elif draft.kind == "eagle3":
        yield from _d2t(draft, case.target.vocab_size)


def _d2t(draft: DraftSpec, target_vocab: int | None) -> Iterator[Finding]:
    small, full = draft.draft_vocab_size, draft.vocab_size or target_vocab
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
    absolute = len(d2t) > 1 and len(set(d2t)) == len(d2t) and all(0 <= value < vocab for value in d2t)
    if absolute and list(d2t) != [d2t[0] + i * 0 for i in range(len(d2t))]:
        kind = "arange" if list(d2t) == list(range(len(d2t))) else "distinct token ids"
        yield finding(
            "d2t-absolute",
            Severity.ERROR,
            f"d2t holds {kind}, but it must hold offsets (target token = draft token + d2t[draft token])",
            where="d2t",
            how_much=f"offsets would make the last draft token {len(d2t) - 1 + d2t[-1]} of {vocab}",
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
    draft, profile = case.draft, case.view.profile.draft
    if draft.tensors is None or profile is None or not case.serves or draft.kind == "eagle":
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
    small = draft.draft_vocab_size
    random = profile.lm_head_missing == "random" or (profile.lm_head_missing == "target-unless-draft-vocab" and small is not None)
    if random or profile.lm_head_missing == "error":
        fate = "keeps random values: acceptance length 1.0" if random else "refuses to load"
        yield case.found(
            "lm-head-missing",
            Severity.ERROR,
            f"the file has no lm_head.weight and the engine {fate}",
            where="lm_head.weight",
            how_much=f"draft_vocab_size {small}, vocab_size {draft.vocab_size}",
            next=case.draft_remedy(
                "remove draft_vocab_size from the config where it equals vocab_size, so that the target's lm_head is shared"
                if small is not None and small == draft.vocab_size
                else "export the checkpoint with its lm_head"
            ),
        )

"""Concern "norms": which norms run on the states before fc, and what is handed on after the last layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.draft_config import NORM_FLAGS
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.places import MISSING
from specalign.layer_ids.view import setting

NORM_WEIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    "norm_before_fc": ("input_norm.weight",),
    "fc_norm": ("fc_norm.0.weight", "aux_norm_low.weight", "fc_norm.weight"),
}
"""Flag → the names under which its first weight is stored."""


def check_files(case: FileCase) -> Iterator[Finding]:
    """Flags against weights, whatever the engine."""
    draft = case.draft
    if draft.kind != "eagle3":
        return
    if draft.flag("norm_before_fc") and draft.flag("fc_norm"):
        yield finding(
            "norms-both-set",
            Severity.ERROR,
            "norm_before_fc (one norm over the whole concatenation) and fc_norm (one norm a chunk) are both on",
            where="norm_before_fc, fc_norm",
            next="keep the one that the head was trained with; trainers allow only one, some engines apply both",
        )
    if draft.tensors is None:
        return
    for flag, names in NORM_WEIGHTS.items():
        yield from _flag_and_weight(case, flag, names)


def _flag_and_weight(case: FileCase, flag: str, names: tuple[str, ...]) -> Iterator[Finding]:
    draft = case.draft
    shape, wanted = draft.shape(*names), draft.flag(flag)
    if shape is not None and not wanted:
        yield finding(
            "norm-weight-without-flag",
            Severity.ERROR,
            f"the weights hold {names[0]}, but {flag} is {'not set' if wanted is None else 'false'}: engines skip the norm",
            where=f"{names[0]} {list(shape)}",
            next=f"set {flag}: true, in eagle_config and at the top level",
        )
    if shape is None and wanted and draft.tensors is not None and draft.tensors.complete:
        yield finding(
            "norm-flag-without-weight",
            Severity.ERROR,
            f"{flag} is true, but the weights hold no {names[0]}: engines run the norm with its initial values",
            where=flag,
            next="convert the checkpoint again with its norm weights, or drop the flag if the head was trained without the norm",
        )


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """Each flag as the config has it against the value that the engine uses."""
    profile = case.view.profile.draft
    if profile is None or not case.serves or case.draft.kind != "eagle3":
        return
    for name in NORM_FLAGS:
        wanted, used = case.draft.flag(name), setting(profile, case.draft, name)
        if wanted is None or used is MISSING or bool(used) == wanted:
            continue
        reads = profile.reads[name]
        why = f"the engine reads {' and '.join(reads)} only" if reads else "the engine has no such setting"
        yield case.found(
            "norm-ignored",
            Severity.ERROR,
            f"the config says {name}: {str(wanted).lower()} and the engine acts as if it were {str(bool(used)).lower()}; {why}",
            where=name,
            how_much=f"{str(wanted).lower()} against {str(bool(used)).lower()}",
            next=f"write {name} at {reads[0]}"
            if reads
            else case.draft_remedy("norm-ignored", f"use a version of the engine that applies {name}"),
        )
    if len(case.view.norms) == 2 and profile.both_norms == "both-applied":
        yield case.found(
            "norms-both-set",
            Severity.ERROR,
            "both flags are on and this engine applies both norms, one after the other",
            where="norm_before_fc, fc_norm",
            next="keep the one that the head was trained with",
        )

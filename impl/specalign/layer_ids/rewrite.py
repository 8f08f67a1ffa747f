"""A draft config rewritten so that one engine reads it right."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specalign.layer_ids.conventions import format_states
from specalign.layer_ids.draft_config import EAGLE3_IDS
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.files import InputError
from specalign.layer_ids.preflight import CheckReport
from specalign.layer_ids.view import setting


def rewritten_config(report: CheckReport) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The config of the report's draft for its only engine, and a note for every change.

    Changed are: the ids (so that the engine captures the states that were meant, at the place that it reads), the number of
    states where the engine reads it apart, norm flags that stand at a place which the engine does not read, and a null
    target_hidden_size. All other keys stay as they are.

    Raises:
        InputError: more than one engine in the report, a convention that is only guessed, or no ids that give the meant states.
    """
    if len(report.views) != 1:
        raise InputError("--write-config writes for one engine: name it with --engine NAME==VERSION")
    if not report.meaning.is_certain or report.meaning.states is None:
        raise InputError("--write-config needs to know what the ids mean: say --convention boundary or --convention output")
    config: dict[str, Any] = copy.deepcopy(dict(report.draft.config))
    notes = [*_write_ids(report, config), *_write_norms(report, config), *_write_hidden(report, config)]
    return config, tuple(notes or ["nothing to change"])


def _write_ids(report: CheckReport, config: dict[str, Any]) -> list[str]:
    view, meaning = report.views[0], report.meaning
    capture = view.profile.capture
    if capture is None or meaning.states is None or meaning.ids is None:
        return []
    if view.states == meaning.states and view.place is not None and view.chunks in (None, len(meaning.states)):
        return []
    place = next((p for p in capture.ids_from if not p.startswith("cli:")), None)
    if place is None:
        raise InputError(f"{view.label} reads no ids from a draft config: {capture.remedy or 'see its own flags'}")
    try:
        ids = list(capture.as_rule(place).ids_for(meaning.states, report.target.num_layers))
    except LayerIdError as error:
        raise InputError(f"{view.label} cannot be given {format_states(meaning.states)}: {error}") from None
    _put(config, place, ids)
    notes = [f"{place} = {ids}, which this engine takes for {format_states(meaning.states)}"]
    if view.profile.draft is not None and "num_aux_hidden_states" in view.profile.draft.ids_width:
        config["num_aux_hidden_states"] = len(ids)
        notes.append(f"num_aux_hidden_states = {len(ids)}")
    if place != EAGLE3_IDS and EAGLE3_IDS in config and config[EAGLE3_IDS] != ids:
        config[EAGLE3_IDS] = ids
        notes.append(f"{EAGLE3_IDS} = {ids}, so that both places agree")
    return notes


def _write_norms(report: CheckReport, config: dict[str, Any]) -> list[str]:
    profile = report.views[0].profile.draft
    notes = []
    for name in ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual"):
        wanted = report.draft.flag(name)
        if wanted is None or profile is None or not profile.reads.get(name):
            continue
        if bool(setting(profile, report.draft, name)) != wanted:
            place = profile.reads[name][0]
            _put(config, place, wanted)
            notes.append(f"{place} = {str(wanted).lower()}")
    return notes


def _write_hidden(report: CheckReport, config: dict[str, Any]) -> list[str]:
    profile = report.views[0].profile.draft
    if profile is None or profile.target_hidden_size_null != "error" or config.get("target_hidden_size", 0) is not None:
        return []
    config["target_hidden_size"] = report.target.hidden_size
    return [f"target_hidden_size = {report.target.hidden_size}"]


def _put(config: dict[str, Any], place: str, value: object) -> None:
    *outer, last = place.split(".")
    inner = config
    for key in outer:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[last] = value


def write_json_atomically(data: Mapping[str, Any], out: Path) -> None:
    """Write to a temporary name beside `out`, flush to disk, rename: a reader sees the old file or the new one.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None

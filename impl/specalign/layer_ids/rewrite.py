"""A draft config rewritten so that one engine reads it right."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specalign.layer_ids.conventions import format_states
from specalign.layer_ids.draft_config import ID_PLACES, NORM_FLAGS, TARGET_HIDDEN_PLACES
from specalign.layer_ids.engines import EngineTable
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.files import InputError
from specalign.layer_ids.places import MISSING, look_up
from specalign.layer_ids.preflight import CheckReport, check
from specalign.layer_ids.view import setting


def rewritten_config(report: CheckReport, *, table: EngineTable | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The config of the report's draft for its only engine, and a note for every change.

    Changed are: the ids (so that the engine captures the states that were meant, at the place that it reads), the number of
    states where the engine reads it apart, norm flags that stand at a place which the engine does not read, and a null
    target_hidden_size. All other keys stay as they are. An EAGLE3 head whose ids become block outputs gets the boundaries at the
    top level beside them: the two lists together say their convention, so the file reads the same the next time.

    Raises:
        InputError: more than one engine in the report, a convention that is only guessed, no ids that give the meant states, or
            a result that this tool would read differently from what was meant.
    """
    if len(report.views) != 1:
        raise InputError("--write-config writes for one engine: name it with --engine NAME==VERSION")
    if not report.meaning.is_certain or report.meaning.states is None:
        raise InputError("--write-config needs to know what the ids mean: say --convention boundary or --convention output")
    config: dict[str, Any] = copy.deepcopy(dict(report.draft.config))
    notes = [*_write_ids(report, config), *_write_norms(report, config), *_write_hidden(report, config)]
    notes += _reading_again(report, config, table)
    return config, tuple(notes or ["nothing to change"])


def _reading_again(report: CheckReport, config: dict[str, Any], table: EngineTable | None) -> list[str]:
    """What a reader of the new file must know; nothing where it speaks for itself.

    Raises:
        InputError: the new file would be read differently from what was meant, by this tool or by the engine.
    """
    meant, declared = report.meaning.states, report.meaning.convention
    draft = dataclasses.replace(report.draft, config=config)
    place = report.views[0].place
    by_flag = place is not None and place.startswith("cli:")
    for convention in (None, declared):
        again = check(draft, report.target, engines=[report.views[0].label], convention=convention, table=table)
        captured = again.views[0].states
        if again.meaning.is_certain and again.meaning.states == meant and (by_flag or captured == meant):
            return [] if convention is None else [f"say --convention {convention.value} whenever you check this file"]
    raise InputError(
        f"no config tells both {report.views[0].label} and a reader {format_states(meant or ())}: the engine would capture"
        f" {format_states(captured)}, a reader take {format_states(again.meaning.states or ())}; give ids by the engine's flag"
    )


def _write_ids(report: CheckReport, config: dict[str, Any]) -> list[str]:
    view, meaning = report.views[0], report.meaning
    capture = view.profile.capture
    if capture is None or meaning.states is None or meaning.ids is None:
        return []
    right = view.states == meaning.states and view.place is not None
    if right and view.chunks in (None, len(meaning.states)) and meaning.certainty != "declared":
        return []
    place = next((p for p in capture.ids_from if not p.startswith("cli:")), None)
    if place is None and right:
        return []
    if place is None:
        raise InputError(f"{view.label} reads no ids from a draft config: {capture.remedy or 'see its own flags'}")
    try:
        ids = list(capture.as_rule(place).ids_for(meaning.states, report.target.num_layers))
    except LayerIdError as error:
        raise InputError(f"{view.label} cannot be given {format_states(meaning.states)}: {error}") from None
    notes = []
    if look_up(config, place) != ids:
        _put(config, place, ids)
        notes.append(f"{place} = {ids}, which this engine takes for {format_states(meaning.states)}")
    counted = view.profile.draft is not None and "num_aux_hidden_states" in view.profile.draft.ids_width
    if counted and config.get("num_aux_hidden_states") != len(ids):
        config["num_aux_hidden_states"] = len(ids)
        notes.append(f"num_aux_hidden_states = {len(ids)}")
    return notes + (_write_both(report, config, ids) if report.draft.kind == "eagle3" else [])


def _write_both(report: CheckReport, config: dict[str, Any], ids: list[int]) -> list[str]:
    """The pair of lists that states its own convention: block outputs in eagle_config, boundaries at the top level."""
    boundaries = [state for state in report.meaning.states or () if isinstance(state, int)]
    nested, top = ID_PLACES["eagle3"]
    outputs = [b - 1 for b in boundaries]
    notes = []
    if ids == outputs or look_up(config, nested) not in (MISSING, None, boundaries):
        for place, value in ((nested, outputs), (top, boundaries)):
            if look_up(config, place) != value:
                _put(config, place, value)
                notes.append(f"{place} = {value}, so that the two lists say their convention")
    elif look_up(config, top) not in (MISSING, None, boundaries):
        _put(config, top, boundaries)
        notes.append(f"{top} = {boundaries}, so that both places agree")
    return notes


def _write_norms(report: CheckReport, config: dict[str, Any]) -> list[str]:
    profile = report.views[0].profile.draft
    notes = []
    for name in NORM_FLAGS:
        wanted = report.draft.flag(name)
        if wanted is None or profile is None or not profile.reads.get(name):
            continue
        if bool(setting(profile, report.draft, name)) != wanted:
            place = profile.reads[name][0]
            _put(config, place, wanted)
            notes.append(f"{place} = {str(wanted).lower()}")
    return notes


def _write_hidden(report: CheckReport, config: dict[str, Any]) -> list[str]:
    profile, hidden = report.views[0].profile.draft, report.target.hidden_size
    if profile is None or profile.target_hidden_size_null != "error":
        return []
    null = [place for place in TARGET_HIDDEN_PLACES if look_up(config, place) is None]
    for place in null:
        _put(config, place, hidden)
    return [f"{place} = {hidden}" for place in null]


def _put(config: dict[str, Any], place: str, value: object) -> None:
    *outer, last = place.split(".")
    inner = config
    for key in outer:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[last] = value


def write_json_atomically(data: Mapping[str, Any], out: Path) -> None:
    """`write_text_atomically` of the data as JSON.

    Raises:
        InputError: as there, or the data holds what JSON has not (NaN).
    """
    try:
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot write {out}: {error}") from None
    write_text_atomically(text, out)


def write_text_atomically(text: str, out: Path) -> None:
    """Write to a temporary name beside `out`, flush to disk, rename: a reader sees the old file or the new one.

    A link is followed, so that it stays one; the mode of an existing file is kept, a new one gets what the umask allows.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    try:
        data = text.encode()
        out = out.resolve()
        mode = stat.S_IMODE(out.stat().st_mode) if out.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name[:64]}.", suffix=".part")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot write {out}: {getattr(error, 'strerror', None) or error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

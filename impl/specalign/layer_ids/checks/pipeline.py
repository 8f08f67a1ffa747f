"""Concern "pipeline": states on earlier pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator

from specalign.layer_ids.checks.case import EngineCase
from specalign.layer_ids.conventions import POST_NORM, State, format_states
from specalign.layer_ids.findings import Finding, Severity


def last_stage_start(num_layers: int, pp_size: int) -> int:
    """The first block of the last stage when the blocks are split evenly, with the remainder on earlier stages."""
    return num_layers - num_layers // pp_size


def check_engine(case: EngineCase) -> Iterator[Finding]:
    """Which states lie before the last stage, and what the engine does with them."""
    capture = case.view.profile.capture
    if case.pp_size == 1 or capture is None or not capture.supported or not case.serves:
        return
    start = last_stage_start(case.target.num_layers, case.pp_size)
    early = tuple(b for b in case.view.states if _is_before(b, start))
    if capture.pipeline == "forwarded" or not (early or capture.pipeline == "refused"):
        return
    text = {
        "last-stage-only": "sets the ids on the last stage only: states of earlier stages are never captured",
        "refused": "refuses to start with pipeline parallelism and such a head",
        "unchecked": "was not profiled for capture across stages",
    }[capture.pipeline]
    checked = capture.pipeline != "unchecked"
    yield case.found(
        "pipeline-drops-ids" if checked else "pipeline-unchecked",
        Severity.ERROR if checked else Severity.WARNING,
        f"the engine {text}",
        where=f"pipeline stages before block {start}",
        how_much=f"{len(early)} of {len(case.view.states)} states: {format_states(early)}" if early else "",
        next="serve with pipeline size 1" if checked else "compare acceptance length with pipeline size 1",
    )


def _is_before(state: State, start: int) -> bool:
    return state is not POST_NORM and int(state) < start

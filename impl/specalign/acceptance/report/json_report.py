"""`specalign.acceptance/1`: docs/formats.md says what each key means."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from specalign.acceptance.metrics import Interval
from specalign.acceptance.report.measured import Measured
from specalign.acceptance.table import Row

SCHEMA: Final = "specalign.acceptance/1"


def format_json(measured: Measured) -> str:
    """The document as text, with a newline at its end."""
    return json.dumps(as_json(measured), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_json(measured: Measured) -> dict[str, Any]:
    """The document."""
    table = measured.table
    return {
        "schema": SCHEMA,
        "ok": measured.ok,
        "target": measured.target,
        "draft": measured.draft,
        "prompts": measured.prompts,
        "depth": table.depth,
        "new_tokens": table.new_tokens,
        "environment": dict(measured.environment),
        "seconds": round(measured.seconds, 3),
        "rows": [_row(row) for row in table.rows],
        "loops": [{"row": loop.row, "prompts": loop.prompts, "differing": list(loop.differing)} for loop in table.loops],
        "problems": list(table.problems),
    }


def _row(row: Row) -> dict[str, Any]:
    figures = row.acceptance
    return {
        "name": row.name,
        "states": row.states,
        "fault": row.fault,
        "prompts": figures.prompts,
        "rounds": figures.rounds,
        "tokens": figures.tokens,
        "accepted": figures.accepted,
        "proposed": figures.proposed,
        "length": _interval(figures.length),
        "per_position": list(figures.per_position),
        "tokens_per_target_step": figures.tokens_per_target_step,
        "right_minus_row": None if row.difference is None else _interval(row.difference.difference),
        "told_apart": None if row.difference is None else row.difference.told_apart,
        "prompts_needed": None if row.difference is None else row.difference.prompts_needed,
        "teacher": [_interval(share) for share in row.teacher],
        "teacher_right_minus_row": None if row.teacher_difference is None else _interval(row.teacher_difference),
    }


def _interval(interval: Interval) -> dict[str, float]:
    return dataclasses.asdict(interval)

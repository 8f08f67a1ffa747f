"""The table as one HTML file: no scripts, no fonts, no pictures from elsewhere. The curves are inline SVG."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Final

from specalign.acceptance.report.measured import Measured
from specalign.acceptance.report.text import how_to_read, loop_line, told
from specalign.acceptance.table import Row
from specalign.compare.report.html import filled
from specalign.layer_ids.rewrite import write_text_atomically

WIDTH: Final = 560
HEIGHT: Final = 240
LEFT: Final = 40
BOTTOM: Final = 26


def write_html(measured: Measured, path: Path) -> None:
    """Write the page to `path`: to a temporary name beside it first, flushed, then renamed.

    Raises:
        InputError: jinja2 is missing, or the file cannot be written.
    """
    write_text_atomically(render(measured), Path(path))


def render(measured: Measured) -> str:
    """The page as text.

    Raises:
        InputError: jinja2 is missing.
    """
    return filled(resources.files(__package__).joinpath("template.html.j2").read_text("utf-8"), _content(measured))


def _content(measured: Measured) -> dict[str, Any]:
    table = measured.table
    longest = max(row.acceptance.length.high for row in table.rows)
    return {
        "measured": measured,
        "rows": [_row(row, longest) for row in table.rows],
        "curves": [curve(row, table.depth) for row in table.rows if row.acceptance.per_position],
        "ticks": [(x_of(step, table.depth), step) for step in range(1, table.depth + 1)],
        "levels": [(y_of(level / 4), f"{level / 4:g}") for level in range(5)],
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "bottom": HEIGHT - BOTTOM,
        "how": how_to_read(table),
        "loops": [loop_line(loop) for loop in table.loops],
    }


def _row(row: Row, longest: float) -> dict[str, Any]:
    length = row.acceptance.length

    def percent(value: float) -> float:
        return round(100 * (value - 1) / max(longest - 1, 1e-9), 2)

    return {
        "row": row,
        "told": told(row),
        "bar": percent(length.value),
        "low": percent(length.low),
        "span": round(percent(length.high) - percent(length.low), 2),
        "kind": "right" if row.difference is None else "fault" if row.fault else "control",
    }


def x_of(step: int, depth: int) -> float:
    """Where a position stands on the horizontal axis, in pixels."""
    return round(LEFT + (WIDTH - LEFT - 20) * (step - 0.5) / depth, 1)


def y_of(share: float) -> float:
    """Where a share stands on the vertical axis, in pixels."""
    return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 12) * share, 1)


def curve(row: Row, depth: int) -> dict[str, Any]:
    """One row's accepted shares by position, as a line."""
    points = [(x_of(step, depth), y_of(rate)) for step, rate in enumerate(row.acceptance.per_position, start=1)]
    return {
        "name": row.name,
        "kind": "right" if row.difference is None else "fault" if row.fault else "control",
        "points": " ".join(f"{x},{y}" for x, y in points),
        "dots": points,
        "title": f"{row.name}: " + ", ".join(f"{rate:.3f}" for rate in row.acceptance.per_position),
    }

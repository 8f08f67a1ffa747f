"""The pictures of the page: inline SVG, built as text with everything from outside escaped. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from specalign.compare.report import words
from specalign.compare.report.words import count
from specalign.compare.result import Account, Cell, KeyResult
from specalign.layer_ids.findings import one_line

_MAP: Final = (900, 900)
"""Width and height, in CSS pixels, that the map's cells shrink to keep within: the whole of it is to be seen at a glance."""

_LABEL: Final = 26
_CHAR: Final = 7.4
_AXIS: Final = 26
_CHART: Final = (430, 210)
_PLOT: Final = (52, 14, 418, 176)
"""Left, top, right and bottom of a chart's plot."""

STATES: Final = {
    "none": "nothing compared",
    "equal": "equal",
    "one": "differs by at most 1 ULP",
    "more": "differs by more",
    "unknown": "differs, distance unknown",
}
"""Classes of the map's cells and what they mean."""


def state_of(cell: Cell) -> str:
    """Which of `STATES` a cell is in."""
    if not cell.compared:
        return "none"
    if not cell.mismatching:
        return "equal"
    if cell.max_ulp is None or cell.max_ulp >= words.NAN_DISTANCE:
        return "unknown"
    return "one" if cell.max_ulp <= 1 else "more"


def tag(name: str, /, *inner: str, **attributes: object) -> str:
    """One element. Attributes are escaped, the inner parts are markup already; `text_anchor` becomes `text-anchor`."""
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return f"<{name}{pairs}>{''.join(inner)}</{name}>"


def title(text: str) -> str:
    """A tooltip, which screen readers say too."""
    return tag("title", escape(text, quote=False))


def label(text: str, **attributes: object) -> str:
    """A piece of text."""
    return tag("text", escape(text, quote=False), **attributes)


def picture(width: int, height: int, name: str, parts: Iterable[str], /, **attributes: object) -> str:
    """An `<svg>` that says what it shows."""
    size = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria_label": name, **attributes}
    return tag("svg", *parts, **size)


def patterns() -> str:
    """Hatches, so that no state is told by its colour alone; once a page."""
    dots = tag(
        "pattern", tag("circle", cx=2.5, cy=2.5, r=0.8, class_="dot"), id="dots", width=5, height=5, patternUnits="userSpaceOnUse"
    )
    stripes = tag(
        "pattern",
        tag("rect", width=6, height=6, class_="stripe-ground"),
        tag("rect", width=3, height=6, class_="stripe"),
        id="stripes",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return tag("svg", tag("defs", dots, stripes), class_="defs", width=0, height=0, aria_hidden="true")


# --- layer × position map -------------------------------------------------------------------------------------------


def map_labels(keys: Sequence[KeyResult], first: str | None) -> str:
    """The names of the rows, as many as there is room for."""
    width, height = label_width(keys, first), max(len(keys) * _row_height(len(keys)), 15)
    parts = []
    for i, y in sorted(_labelled(keys, first).items()):
        shown = label(words.shorten(one_line(keys[i].key), _LABEL), x=width - 8, y=y, text_anchor="end")
        parts.append(
            tag("g", title(words.place(keys[i].key, keys[i].layer)), shown, class_="here" if keys[i].key == first else "t")
        )
    return picture(width, height, "keys, in the order of the forward", parts, width=width, height=height, class_="labels")


def label_width(keys: Sequence[KeyResult], first: str | None) -> int:
    """Width of the column of names, in CSS pixels."""
    longest = max((len(one_line(keys[i].key)) for i in _labelled(keys, first)), default=0)
    return int(min(_LABEL, max(longest, 10)) * _CHAR) + 16


def _labelled(keys: Sequence[KeyResult], first: str | None) -> dict[int, float]:
    """Which rows have a name, and at what height: the first divergence, then the boundaries, then the rest, none over another."""
    row, shown = _row_height(len(keys)), dict[int, float]()
    lowest = max(len(keys) * row, 15) - 3
    for i in sorted(range(len(keys)), key=lambda i: (keys[i].key != first, not keys[i].key.startswith("boundary."))):
        y = min(max(i * row + row / 2 + 4, 11), lowest)
        if all(abs(y - other) >= 12 for other in shown.values()):
            shown[i] = y
    return shown


def map_axis(edges: Sequence[int]) -> str:
    """Positions above the map."""
    step, width = _cell_width(len(edges) - 1), _map_width(len(edges) - 1)
    every = max(1, math.ceil((len(f"{max(edges, default=0):,}") * _CHAR + 14) / step))
    parts = []
    for i, edge in enumerate(edges[:-1]):
        if i % every == 0 and i * step + len(f"{edge:,}") * _CHAR < width:
            parts.append(label(f"{edge:,}", x=i * step + 1, y=14, class_="t"))
            parts.append(tag("line", x1=i * step + 0.5, x2=i * step + 0.5, y1=18, y2=_AXIS, class_="axis"))
    return picture(width, _AXIS, "positions", parts, width=width, height=_AXIS)


def map_cells(keys: Sequence[KeyResult], edges: Sequence[int], first: str | None) -> str:
    """One square a key and stretch of positions; each has a tooltip with its figures."""
    row = _row_height(len(keys))
    rows = [
        tag("g", *_map_row(key, edges, row, key.key == first), transform=f"translate(0 {i * row})")
        for i, key in sorted(enumerate(keys), key=lambda pair: pair[1].key == first)  # its outline lies over its neighbours
    ]
    width, height = _map_width(max((len(key.cells) for key in keys), default=0)), len(keys) * row
    return picture(width, height, "map of keys and positions", rows, width=width, height=height, class_="cells")


def _map_row(key: KeyResult, edges: Sequence[int], row: int, is_first: bool) -> Iterator[str]:
    name, step = one_line(key.key), _cell_width(len(key.cells))
    at = next((i for i, cell in enumerate(key.cells) if cell.mismatching), None) if is_first else None
    size = {"width": step - 1, "height": row - (row > 7)}
    for i, cell in enumerate(key.cells):
        kind = f"{state_of(cell)} mark" if i == at else state_of(cell)
        yield tag("rect", title(f"{name}, {_span(edges, i)}: {_cell(cell)}"), class_=kind, x=i * step, **size)
    if at is not None:  # a dark ring in a light one: seen on any colour
        frame = f"M{at * step} 0h{size['width']}v{size['height']}h-{size['width']}z"
        yield tag("path", d=frame, class_="halo") + tag("path", d=frame, class_="ring")


def _cell(cell: Cell) -> str:
    if not cell.compared:
        return STATES["none"]
    figures = f"{cell.mismatching:,} of {count(cell.compared, 'row')} differ"
    if cell.max_ulp is None:
        return f"{figures}, distance unknown" if cell.mismatching else figures
    return f"{figures}, at most {words.ulp_text(cell.max_ulp)} ULP"


def _span(edges: Sequence[int], i: int) -> str:
    if i + 1 >= len(edges):
        return f"stretch {i}"
    low, high = edges[i], edges[i + 1] - 1
    return f"position {low:,}" if high <= low else f"positions {low:,} to {high:,}"


def _cell_width(cells: int) -> int:
    return min(36, max(7, _MAP[0] // max(cells, 1)))


def _row_height(keys: int) -> int:
    return min(15, max(4, _MAP[1] // max(keys, 1)))


def _map_width(cells: int) -> int:
    return max(cells, 1) * _cell_width(cells)


# --- curves ---------------------------------------------------------------------------------------------------------


def share_curve(keys: Sequence[KeyResult]) -> str:
    """Share of the compared rows that differ, key by key."""
    left, top, _, bottom = _PLOT
    scale = [
        label(f"{share}%", x=left - 6, y=bottom - (bottom - top) * share / 100 + 4, text_anchor="end") for share in (0, 50, 100)
    ]
    grid = [_grid(bottom - (bottom - top) * share / 100) for share in (0, 50, 100)]
    points = []
    for key in keys:
        share = key.rows_mismatching / key.rows_compared if key.rows_compared else None
        what = f"{share:.3%} of {count(key.rows_compared, 'row')} differ" if share is not None else STATES["none"]
        points.append((None if share is None else bottom - (bottom - top) * share, f"{one_line(key.key)}: {what}", False))
    return _chart("share of rows that differ, by key", keys, points, (*grid, *scale))


def ulp_curve(keys: Sequence[KeyResult]) -> str:
    """Largest distance in ULP, key by key, on a logarithmic scale; 0 has a line of its own, and so has what is unknown."""
    left, top, _, bottom = _PLOT
    known = [key.max_ulp for key in keys if key.max_ulp is not None and key.max_ulp < words.NAN_DISTANCE]
    decades = max(1, math.ceil(math.log10(max((*known, 1)))))
    low, high = bottom - 26, top + 22

    def height(ulp: int) -> float:
        return bottom if ulp == 0 else low - (low - high) * math.log10(ulp) / decades

    marks = [0, *(10**d for d in range(0, decades + 1, max(1, decades // 4)))]
    scale = [label(_short(mark), x=left - 6, y=height(mark) + 4, text_anchor="end") for mark in marks]
    grid = [_grid(height(mark)) for mark in marks]
    points = []
    for key in keys:
        odd = (key.max_ulp is None and words.differs(key)) or (key.max_ulp or 0) >= words.NAN_DISTANCE
        at = None if not key.rows_compared else top + 4 if odd else height(key.max_ulp or 0)
        figure = f"{words.ulp_text(key.max_ulp)} ULP" if key.max_ulp is not None else "distance unknown" if odd else "equal"
        points.append((at, f"{one_line(key.key)}: {figure}", odd))
    if any(odd for _, _, odd in points):
        scale += [label("?", x=left - 6, y=top + 8, text_anchor="end"), _grid(top + 4)]
    return _chart("largest distance in ULP, by key", keys, points, (*grid, *scale))


def _short(number: int) -> str:
    return str(number) if number < 1_000 else f"1e{len(str(number)) - 1}"


def _grid(y: float) -> str:
    return tag("line", x1=_PLOT[0], x2=_PLOT[2], y1=round(y, 1), y2=round(y, 1), class_="grid")


def _chart(name: str, keys: Sequence[KeyResult], points: Sequence[tuple[float | None, str, bool]], scale: Iterable[str]) -> str:
    left, _, right, bottom = _PLOT
    xs = [left + 6 + (right - left - 12) * (i / max(len(keys) - 1, 1)) for i in range(len(keys))]
    lines, run = [], list[str]()
    for x, (y, _, odd) in zip(xs, points, strict=True):
        if y is None or odd:
            lines.append(run)
            run = []
        else:
            run.append(f"{x:.1f},{y:.1f}")
    curves = [tag("polyline", points=" ".join(line), class_="curve") for line in (*lines, run) if len(line) > 1]
    size = 2.6 if len(keys) <= 60 else 1.6
    dots = [_dot(x, y, what, size, odd) for x, (y, what, odd) in zip(xs, points, strict=True) if y is not None]
    return picture(*_CHART, name, (*scale, *curves, *dots, *_key_ticks(keys, xs, bottom)), class_="chart")


def _dot(x: float, y: float, what: str, size: float, odd: bool) -> str:
    if odd:
        side = round(2 * size, 1)
        return tag("rect", title(what), x=round(x - size, 1), y=round(y - size, 1), width=side, height=side, class_="odd")
    return tag("circle", title(what), cx=round(x, 1), cy=round(y, 1), r=size, class_="point")


def _key_ticks(keys: Sequence[KeyResult], xs: Sequence[float], bottom: float) -> Iterator[str]:
    """The ends and the first divergence are named, as far as there is room."""
    first = next((i for i, key in enumerate(keys) if words.differs(key)), 0)
    taken: list[tuple[float, float]] = []
    for i in dict.fromkeys((first, 0, len(keys) - 1)):
        name = words.shorten(one_line(keys[i].key), 20)
        wide = len(name) * _CHAR * 1.15  # bold
        # Anchored at the border that it would cross: no font may be so wide that it is cut there.
        anchor = "start" if xs[i] < wide / 2 else "end" if xs[i] + wide / 2 > _CHART[0] else "middle"
        at = {"start": 1.0, "middle": xs[i], "end": _CHART[0] - 1.0}[anchor]
        start = at - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        if all(start > end + 8 or start + wide < begin - 8 for begin, end in taken):
            taken.append((start, start + wide))
            yield tag("line", x1=round(xs[i], 1), x2=round(xs[i], 1), y1=bottom, y2=bottom + 6, class_="axis")
            yield label(
                name,
                x=round(at, 1),
                y=bottom + 20,
                text_anchor=anchor,
                class_="here" if i == first and words.differs(keys[i]) else "t",
            )


# --- where the rows went --------------------------------------------------------------------------------------------


def account_bar(side: Account, name: str) -> str:
    """One bar a side; a part of few rows is still to be seen."""
    parts = {part: max(n, 0) for part, n in words.account_parts(side).items()}
    total = sum(parts.values()) or 1
    wide = {part: max(n / total, 0.01) for part, n in parts.items() if n}
    stretch, x, bars = 1000 / (sum(wide.values()) or 1), 0.0, []
    for part, share in wide.items():
        width = share * stretch
        what = title(f"{part}: {parts[part]:,} of {count(total, 'row')}")
        bars.append(
            tag(
                "rect", what, x=round(x, 1), width=round(max(width - 2, 2), 1), height=20, class_=f"part {part.replace(' ', '-')}"
            )
        )
        x += width
    return picture(1000, 20, name, bars, preserveAspectRatio="none", class_="bar")

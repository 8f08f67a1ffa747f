"""The page: whole, bounded, harmless, readable in light and in dark, and written all or not at all."""

from __future__ import annotations

import functools
import os
import re
import stat
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from itertools import product
from pathlib import Path

import pytest

from specalign.compare.report import html, svg, write_html
from specalign.compare.result import Cell
from specalign.layer_ids.files import InputError
from tests.unit.compare.report import made

REPORTS = {
    "equal": made.equal_report,
    "different": made.different_report,
    "unproven": made.unproven_report,
    "fingerprint": made.fingerprint_report,
    "hostile": made.hostile_report,
    "big": made.big_report,
    "empty": lambda: made.report((), position_edges=()),
    "one key": lambda: made.report((made.different_key(),)),
    "no cells": lambda: made.report((made.boundary(0, cells=()),), position_edges=()),
}
every_report = pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """What a parser finds: every element closed by its own end, all attributes, and the text outside of styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        self.text = "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


@functools.cache
def source_of(make: made.Make) -> str:
    return html.render(make())


@functools.cache
def page_of(make: made.Make) -> Page:
    return Page(source_of(make))


def style() -> str:
    source = resources.files("specalign.compare.report").joinpath("template.html.j2").read_text("utf-8")
    return source.split("<style>")[1].split("</style>")[0]


@every_report
def test_every_element_is_closed(make: made.Make) -> None:
    page = page_of(make)
    assert page.wrong == []
    assert page.open == []


@every_report
def test_nothing_is_asked_of_elsewhere(make: made.Make) -> None:
    source, page = source_of(make), page_of(make)
    links = [
        value for _, attrs in page.elements for name, value in attrs.items() if name in ("src", "href", "xlink:href", "action")
    ]
    assert links == ["data:,"]
    assert not re.search(r"url\((?!#)", source)
    assert "@import" not in source
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in page.elements}
    assert "default-src 'none'" in source


@every_report
def test_ids_are_unique_and_every_reference_has_one(make: made.Make) -> None:
    source = source_of(make)
    ids = [attrs["id"] for _, attrs in page_of(make).elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", source)) <= set(ids)


def test_a_hostile_name_is_text() -> None:
    source, page = source_of(made.hostile_report), page_of(made.hostile_report)
    assert "<script" not in source
    assert page.text.count("<script>alert('x')</script>\"&\\n\\x1b[31m\\u202ered") > 10
    assert "\u202e" not in source
    assert "\x1b" not in source
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_the_page_says_what_the_text_says() -> None:
    text = " ".join(page_of(made.different_report).text.split())
    for claim in (
        "DIFFERENT : first at boundary.5 (after block 4), position 131; 19 of 24 keys differ".replace(" :", ":"),
        "channel 17 of 2,880, BF16",
        "boundary.4 (after block 3) is the last before it that agrees",
        "position 131, token 4021",
        "0x3f80 1.0 r-17 rank00000/pass00012.safetensors row 3".replace(" ", ""),
        "(37 of 37 rows on which it was tried)",
    ):
        assert claim.replace(" ", "") in text.replace(" ", "")


def test_every_problem_is_there_with_what_to_do() -> None:
    text = page_of(made.big_report).text
    for problem in made.big_report().problems:
        assert problem.next in text
        assert problem.code in text


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        (Cell(0, 0, 0), "none"),
        (Cell(9, 0, 0), "equal"),
        (Cell(9, 0, None), "equal"),
        (Cell(9, 0, 3), "equal"),
        (Cell(9, 1, 1), "one"),
        (Cell(9, 1, 2), "more"),
        (Cell(9, 1, None), "unknown"),
        (Cell(9, 1, 2**64 - 1), "unknown"),
    ],
)
def test_a_cell_is_coloured_by_what_is_known_of_it(cell: Cell, state: str) -> None:
    assert svg.state_of(cell) == state


def test_every_cell_has_a_tooltip_and_the_first_divergence_is_outlined() -> None:
    report = made.different_report()
    cells = svg.map_cells(report.keys, report.position_edges, "boundary.5")
    assert cells.count("<rect") == cells.count("<title>") == 24 * 64
    assert cells.count("mark") == 1
    assert "<title>boundary.5, positions 128 to 135: 1 of 64 rows differ, at most 1 ULP</title>" in cells


def test_the_curves_are_left_out_where_they_would_be_flat() -> None:
    assert "polyline" in html.render(made.different_report())
    assert "polyline" not in html.render(made.equal_report())


@pytest.mark.parametrize("ulp", [0, 1, 2, 9, 10, 11, 999, 2**31, 2**64 - 2, 2**64 - 1, None])
def test_a_curve_stays_within_its_frame(ulp: int | None) -> None:
    chart = svg.ulp_curve((made.boundary(0), made.different_key(ulp=ulp)))
    heights = [float(y) for y in re.findall(r'\bc?y[12]?="([\d.-]+)"', chart)]
    assert all(0 <= y <= 210 for y in heights)


def test_the_account_is_a_bar_whose_parts_add_up_and_are_all_seen() -> None:
    bar = svg.account_bar(made.account(rows=10**9 + 1, compared=10**9, missing=1), "rows")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)"', bar)]
    assert len(widths) == 2
    assert min(widths) > 5
    assert 980 < sum(widths) <= 1000
    assert "<title>missing: 1 of 1,000,000,001 rows</title>" in bar


def test_rows_that_an_account_lost_are_shown() -> None:
    wrong = made.replaced(made.equal_report(), a=made.account(rows=made.ROWS + 3))
    assert "unaccounted" in Page(html.render(wrong)).text


def test_a_big_report_is_bounded_and_says_so() -> None:
    source, page = source_of(made.big_report), page_of(made.big_report)
    assert len(source.encode()) < 6_000_000
    assert "200 of 10,000 requests shown" in page.text
    assert "req-09999" in page.text, "the one that differs is the last of them, and must be shown"
    assert page.text.count("req-0") < 2 * 201


def test_more_keys_than_a_map_can_hold_are_bounded() -> None:
    keys = tuple(made.boundary(b) if b < 1500 else made.different_key(f"boundary.{b}", b - 1) for b in range(2000))
    source = html.render(made.report(keys))
    assert len(source.encode()) < 6_000_000
    text = Page(source).text
    assert "256 of 2,000 keys shown" in text
    assert "1,000 of 2,000 keys shown" in text
    assert "boundary.1500" in text


# --- colours --------------------------------------------------------------------------------------------------------


def palette(dark: bool) -> dict[str, str]:
    light, night = style().split("@media (prefers-color-scheme: dark)")
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return {**colors, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", night))} if dark else colors


def luminance(color: str) -> float:
    """Relative luminance after WCAG 2.2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


both_schemes = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def test_the_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@both_schemes
def test_every_text_colour_can_be_read_on_every_ground(dark: bool) -> None:
    colors = palette(dark)
    inks = {name: color for name, color in colors.items() if name.startswith("ink-")}
    grounds = {name: color for name, color in colors.items() if name.startswith("ground-")}
    assert (len(inks), len(grounds)) == (5, 3)
    weak = {(i, g): contrast(inks[i], grounds[g]) for i, g in product(inks, grounds) if contrast(inks[i], grounds[g]) < 4.5}
    assert weak == {}


def test_text_is_written_in_inks_on_grounds_only() -> None:
    rules = style()
    assert set(re.findall(r"(?<![-\w])color: ([^;}]+)", rules)) <= {f"var(--{n})" for n in palette(False) if n.startswith("ink-")}
    assert set(re.findall(r"background: ([^;}]+)", rules)) <= {f"var(--{n})" for n in palette(False) if n.startswith("ground-")}
    assert set(re.findall(r"var\(--([\w-]+)\)", rules)) <= set(palette(False))


def test_the_dark_scheme_has_every_colour_of_its_own() -> None:
    light, dark = palette(False), palette(True)
    assert [name for name in light if light[name] == dark[name]] == []


@both_schemes
def test_states_are_told_apart_without_hue(dark: bool) -> None:
    """Whatever the eye: equal, one rounding and more differ in lightness, and each difference stands out from the ground."""
    colors = palette(dark)
    ground, equal, one, more = (colors[name] for name in ("ground-card", "state-equal", "state-one", "state-more"))
    assert contrast(equal, one) > 2
    assert contrast(one, more) > 2
    assert min(contrast(color, ground) for color in (one, more, colors["state-unknown"])) > 3


# --- writing --------------------------------------------------------------------------------------------------------


@every_report
def test_the_same_report_gives_the_same_bytes(make: made.Make, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_html(make(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_write_leaves_the_old_page_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*report\.html: No space left on device"):
        write_html(made.equal_report(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*nowhere"):
        write_html(made.equal_report(), tmp_path / "nowhere" / "report.html")


def test_the_mode_is_what_the_umask_allows_or_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    mask = os.umask(0o027)
    try:
        write_html(made.equal_report(), path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o600)
    write_html(made.equal_report(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    link.symlink_to(target)
    write_html(made.equal_report(), link)
    assert link.is_symlink()
    assert target.read_text("utf-8").startswith("<!doctype html>")


def test_without_jinja2_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"^the HTML report needs jinja2: pip install 'pytest-specalign\[report\]'$"):
        write_html(made.equal_report(), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_text_and_json_need_neither_jinja2_nor_torch() -> None:
    code = "import sys; import specalign.compare.report; print(sorted({'jinja2', 'markupsafe', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "impl"},
        cwd=Path(__file__).parents[4],
    )
    assert done.stdout == "[]\n"

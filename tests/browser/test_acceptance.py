"""The page of an acceptance table in a real browser: on a desk and on a telephone, by day and by night, without a network."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specalign.acceptance.metrics import difference, measure
from specalign.acceptance.report import Measured, write_html
from specalign.acceptance.rounds import PromptRounds, Round
from specalign.acceptance.table import LoopCheck, Row, Table
from tests.browser import claims
from tests.browser.devtools import Browser
from tests.plugin.made_judgements import HOSTILE


def counted(every: int, prompts: int = 20) -> list[PromptRounds]:
    """Chains of 4 of which each `every`-th round accepts some."""
    return [
        PromptRounds(f"p{i}", tuple(Round(4, k, k + 1) for k in ((j + i) % 5 if j % every == 0 else 0 for j in range(20))))
        for i in range(prompts)
    ]


def table() -> Table:
    right = counted(1)

    def row(name: str, every: int, *, fault: bool = True) -> Row:
        return Row(name, "[2, 15, 27]", fault, measure(counted(every)), difference(right, counted(every)))

    rows = (
        Row("right", "[2, 15, 27]", False, measure(right)), row("ids +1", 2), row("norm by chunk, not over the whole", 3),
        row("the same as right", 1), row("random head", 50, fault=False),
    )  # fmt: skip
    return Table(rows, (LoopCheck("right", 8, ()), LoopCheck("ids +1", 8, ("p3",))), 4, 64)


PLAIN = Measured(table(), "SmolLM2", "head A", "held_out.jsonl, 20 prompts", {"torch": "2.13.0", "device": "cpu"}, 61.0)
PAGES = {
    "problems": PLAIN,
    "clean": dataclasses.replace(PLAIN, table=dataclasses.replace(PLAIN.table, rows=PLAIN.table.rows[:3], loops=())),
    "hostile": dataclasses.replace(PLAIN, draft=HOSTILE, target="<script>alert(1)</script>", prompts="x" * 300),
}
every_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    for name, measured in PAGES.items():
        write_html(measured, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in PAGES}


@claims.every_look
@every_page
def test_the_page_shows_something_and_fits(browser: Browser, tables: dict[str, Path], name: str, width: int, dark: bool) -> None:
    claims.it_shows_something_and_fits(browser, tables[name], f"acceptance-{name}", width, dark)


@every_page
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, tables: dict[str, Path], name: str) -> None:
    claims.it_asks_for_nothing_and_complains_of_nothing(browser, tables[name])


@claims.day_and_night
@every_page
def test_every_text_has_contrast(browser: Browser, tables: dict[str, Path], name: str, dark: bool) -> None:
    claims.every_text_has_contrast(browser, tables[name], dark)


def test_bars_and_curves_are_as_long_as_the_figures_say(browser: Browser, tables: dict[str, Path]) -> None:
    browser.open(tables["problems"], width=1280)
    bars = browser.evaluate("[...document.querySelectorAll('.fill')].map(bar => bar.getBoundingClientRect().width)")
    lengths = [row.acceptance.length.value - 1 for row in PLAIN.table.rows]
    assert bars == pytest.approx([bars[0] * length / lengths[0] for length in lengths], abs=1.0)
    points = browser.evaluate("[...document.querySelectorAll('polyline')].map(line => [...line.points].map(point => point.y))")
    for line, row in zip(points, PLAIN.table.rows, strict=True):
        heights = [line[0] - y for y in line]
        rates = [row.acceptance.per_position[0] - rate for rate in row.acceptance.per_position]
        assert heights == pytest.approx([-rate * (240 - 26 - 12) for rate in rates], abs=0.2)


def test_problems_stand_first_and_hostile_names_are_text(browser: Browser, tables: dict[str, Path]) -> None:
    browser.open(tables["problems"], width=1280)
    problems = browser.evaluate("[...document.querySelectorAll('.problem')].map(line => line.innerText)")
    assert problems == list(PLAIN.table.problems)
    assert len(problems) == 3
    browser.open(tables["hostile"], width=1280)
    assert browser.evaluate("document.scripts.length") == 0
    text = browser.evaluate("document.body.innerText")
    assert HOSTILE.split("\n")[0] in text
    assert "\u202e" not in text

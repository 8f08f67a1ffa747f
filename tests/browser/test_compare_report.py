"""The HTML report in a real browser: it is to be read on a desk and on a telephone, by day and by night, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import claims
from tests.browser.conftest import REPORTS
from tests.browser.devtools import Browser
from tests.unit.compare.report.made import HOSTILE

every_report = pytest.mark.parametrize("name", REPORTS)


@claims.every_look
@every_report
def test_the_page_shows_something_and_fits(browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool) -> None:
    claims.it_shows_something_and_fits(browser, pages[name], name, width, dark, shades=50)


@every_report
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, pages: dict[str, Path], name: str) -> None:
    claims.it_asks_for_nothing_and_complains_of_nothing(browser, pages[name])


@claims.day_and_night
@every_report
def test_every_text_has_contrast(browser: Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    claims.every_text_has_contrast(browser, pages[name], dark, texts=30)


@pytest.mark.parametrize("width", claims.WIDTHS)
@every_report
def test_no_text_of_a_picture_is_too_small_or_cut(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width)
    bad = browser.evaluate("""[...document.querySelectorAll('svg text')].filter(text => {
      const own = text.getBoundingClientRect(), svg = text.closest('svg').getBoundingClientRect();
      return own.height < 10 || own.left < svg.left - 1 || own.right > svg.right + 1 || own.top < svg.top - 1 || own.bottom > svg.bottom + 1;
    }).map(text => text.outerHTML)""")
    assert bad == []


def test_the_map_has_a_cell_a_key_and_stretch_with_its_figures(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["big"], width=1280)
    assert browser.evaluate("document.querySelectorAll('svg.cells rect').length") == 200 * 96
    assert browser.evaluate("document.querySelectorAll('svg.cells rect > title').length") == 200 * 96
    browser.open(pages["different"], width=1280)
    marked = browser.evaluate("document.querySelector('svg.cells .mark > title').textContent")
    assert marked == "boundary.5, positions 128 to 135: 1 of 64 rows differ, at most 1 ULP"


def test_the_five_states_of_a_cell_look_different(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["big"], width=1280)
    fills = browser.evaluate(
        "[...new Set([...document.querySelectorAll('svg.cells rect')].map(cell => getComputedStyle(cell).fill))]"
    )
    assert len(fills) == 5


def test_rows_that_are_equal_can_be_hidden_without_a_script(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["different"], width=1280)
    visible = "[...document.querySelectorAll('#keys tbody tr')].filter(row => row.getClientRects().length).length"
    assert browser.evaluate(visible) == 24
    browser.evaluate("document.getElementById('only').click()")
    assert browser.evaluate(visible) == 19


def test_a_hostile_name_is_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], width=1280)
    assert browser.evaluate("document.scripts.length") == 0
    text = browser.evaluate("document.body.innerText")
    assert HOSTILE.split("\n")[0] in text
    assert "\u202e" not in text
    assert "\x1b" not in text

"""The HTML report in a real browser: it is to be read on a desk and on a telephone, by day and by night, without a network."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.browser.conftest import REPORTS, SCREENSHOTS
from tests.browser.devtools import Browser
from tests.browser.png import colors
from tests.unit.compare.report.made import HOSTILE

WIDTHS = (1280, 390)
every_look = pytest.mark.parametrize(
    ("width", "dark"),
    [(width, dark) for width in WIDTHS for dark in (False, True)],
    ids=lambda v: {True: "dark", False: "light"}.get(v, str(v)),
)
every_report = pytest.mark.parametrize("name", REPORTS)

CONTRAST = """(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const color = channels(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || node.closest('title')) continue;
    const style = getComputedStyle(node), svg = node.closest('svg');
    const [a, b] = [light(channels(svg ? style.fill : style.color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen++;
    if (ratio < 4.5) bad.push([node.outerHTML.slice(0, 100), ratio]);
  }
  return {seen, bad};
})()"""


def luminance(found: Counter[tuple[int, int, int]]) -> float:
    """Mean lightness, 0 to 255."""
    return sum((0.2126 * r + 0.7152 * g + 0.0722 * b) * n for (r, g, b), n in found.items()) / found.total()


@every_look
@every_report
def test_the_page_shows_something_and_fits(browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool) -> None:
    browser.open(pages[name], width=width, dark=dark)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png").write_bytes(browser.screenshot())
    assert browser.evaluate("document.documentElement.clientWidth") == width
    too_wide = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert too_wide == 0, "the page scrolls sideways"

    found = colors(browser.screenshot(scale=0.2))
    assert len(found) > 50, "almost blank"
    assert found.most_common(1)[0][1] < 0.97 * found.total(), "almost blank"
    assert luminance(found) < 90 if dark else luminance(found) > 150


@every_report
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], width=1280)
    assert browser.complaints() == []
    assert [url for url in browser.requested() if not url.startswith("data:")] == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@every_report
def test_every_text_has_contrast(browser: Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], width=1280, dark=dark)
    found = browser.evaluate(CONTRAST)
    assert found["seen"] > 30
    assert found["bad"] == []


@pytest.mark.parametrize("width", WIDTHS)
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

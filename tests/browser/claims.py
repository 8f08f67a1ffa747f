"""What every page of ours must hold to in a browser: stated once, for all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.browser.conftest import SCREENSHOTS
from tests.browser.devtools import Browser
from tests.browser.png import colors

WIDTHS = (1280, 390)
every_look = pytest.mark.parametrize(
    ("width", "dark"),
    [(width, dark) for width in WIDTHS for dark in (False, True)],
    ids=lambda v: {True: "dark", False: "light"}.get(v, str(v)),
)
day_and_night = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])

_CONTRAST = """(() => {
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


def it_shows_something_and_fits(browser: Browser, page: Path, name: str, width: int, dark: bool, *, shades: int = 20) -> None:
    """Not blank, not wider than the window, as light or dark as asked for; a screenshot under `name` is kept to be looked at."""
    browser.open(page, width=width, dark=dark)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png").write_bytes(browser.screenshot())
    assert browser.evaluate("document.documentElement.clientWidth") == width
    too_wide = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert too_wide == 0, "the page scrolls sideways"
    found = colors(browser.screenshot(scale=0.2))
    assert len(found) > shades, "almost blank"
    assert found.most_common(1)[0][1] < 0.985 * found.total(), "almost blank"
    assert _luminance(found) < 90 if dark else _luminance(found) > 150


def it_asks_for_nothing_and_complains_of_nothing(browser: Browser, page: Path) -> None:
    """No request but for itself, no error in the console."""
    browser.open(page, width=1280)
    assert browser.complaints() == []
    assert [url for url in browser.requested() if not url.startswith("data:")] == [page.resolve().as_uri()]


def every_text_has_contrast(browser: Browser, page: Path, dark: bool, *, texts: int = 10) -> None:
    """4.5 to 1 at least (WCAG 2, AA)."""
    browser.open(page, width=1280, dark=dark)
    found = browser.evaluate(_CONTRAST)
    assert found["seen"] > texts
    assert found["bad"] == []


def _luminance(found: Counter[tuple[int, int, int]]) -> float:
    """Mean lightness, 0 to 255."""
    return sum((0.2126 * r + 0.7152 * g + 0.0722 * b) * n for (r, g, b), n in found.items()) / found.total()

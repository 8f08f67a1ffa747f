"""The HTML overview of a run in a real browser: on a desk and on a telephone, by day and by night, without a network."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest

from pytest_specalign.overview import render
from tests.browser import claims
from tests.browser.devtools import Browser
from tests.plugin import made_judgements as made
from tests.plugin.made_judgements import HOSTILE

NAMES = ("clean", "different", "incomplete", "hostile", "big")
every_page = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="session")
def overviews(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The made judgements as pages; the artifact that `different` links is there."""
    folder = tmp_path_factory.mktemp("overviews")
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "a report.html").write_text("<!doctype html><title>here</title><p>here")
    judgements = {
        "clean": made.CLEAN,
        "different": made.different(folder),
        "incomplete": made.incomplete(),
        "hostile": made.hostile(folder),
        "big": made.big(folder),
    }
    facts = {"pytest-specalign": "0.1.0", "pytest": "9.2.0", "cluster": "alpha"}
    for name, judgement in judgements.items():
        page = render(judgement, folder=folder, facts=facts, arguments="-p specalign tests/gpu -n 4")
        (folder / f"{name}.html").write_text(page, "utf-8")
    return {name: folder / f"{name}.html" for name in judgements}


@claims.every_look
@every_page
def test_the_page_shows_something_and_fits(
    browser: Browser, overviews: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    claims.it_shows_something_and_fits(browser, overviews[name], f"overview-{name}", width, dark)


@every_page
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, overviews: dict[str, Path], name: str) -> None:
    claims.it_asks_for_nothing_and_complains_of_nothing(browser, overviews[name])


@claims.day_and_night
@every_page
def test_every_text_has_contrast(browser: Browser, overviews: dict[str, Path], name: str, dark: bool) -> None:
    claims.every_text_has_contrast(browser, overviews[name], dark)


def test_a_link_leads_to_the_artifact(browser: Browser, overviews: dict[str, Path]) -> None:
    browser.open(overviews["different"], width=1280)
    address = browser.evaluate("document.querySelector('#divergences a').href")
    assert address == (overviews["different"].parent / "artifacts" / "a report.html").as_uri()
    browser.open(Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path)), width=1280)
    assert browser.evaluate("document.title") == "here"


def test_what_is_equal_can_be_hidden_without_a_script(browser: Browser, overviews: dict[str, Path]) -> None:
    browser.open(overviews["different"], width=1280)
    visible = "[...document.querySelectorAll('#comparisons tbody tr')].filter(row => row.getClientRects().length).length"
    assert browser.evaluate(visible) == 32
    browser.evaluate("document.getElementById('only').click()")
    assert browser.evaluate(visible) == 2


def test_a_hostile_name_is_text(browser: Browser, overviews: dict[str, Path]) -> None:
    browser.open(overviews["hostile"], width=1280)
    assert browser.evaluate("document.scripts.length") == 0
    text = browser.evaluate("document.body.innerText")
    assert HOSTILE.split("\n")[0] in text
    assert "\u202e" not in text
    assert "\x1b" not in text

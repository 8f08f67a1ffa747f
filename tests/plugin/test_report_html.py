"""--specalign-report: one HTML file that stands alone, escapes what it shows and links what a comparison left."""

from __future__ import annotations

import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_specalign.judgement import Judgement
from pytest_specalign.overview import MAX_ROWS, render
from specalign.compare.report.html import page_style
from tests.plugin import made_judgements as made
from tests.plugin.support import WITHOUT_XDIST, WORKERS, Run

VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """Elements, links and text of a page; `wrong` where a tag is closed that is not open."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""


def page(judgement: Judgement, folder: Path) -> Page:
    return Page(render(judgement, folder=folder, facts={"pytest": "9"}, arguments="-p specalign"))


MADE = {"different": made.different, "hostile": made.hostile, "big": made.big}


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_whole_and_asks_for_nothing(tmp_path: Path, name: str) -> None:
    found = page(MADE[name](tmp_path), tmp_path)
    assert (found.wrong, found.open) == ([], [])
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & set(found.tags)
    assert found.links[0] == "data:,"
    assert not [link for link in found.links[1:] if urllib.parse.urlsplit(link).scheme or link.startswith("/")]


def test_what_differs_is_named_with_its_figures_and_place(tmp_path: Path) -> None:
    text = page(made.different(tmp_path), tmp_path).text
    assert "FAILED: 1 of 32 comparisons not equal; 12 GPU tests run, 2 not" in text
    assert "tests/test_a.py::test_layers[bf16]" in text
    assert (
        "golden layers: 3 of 4,096 rows: boundary.5 position 131 channel 17: 0x3f80 (1.0) is not 0x3f81 (1.0078125), 1 ULP"
        in text
    )
    assert "≠ differs, test passed" in text
    assert "the runner has no second GPU" in text
    assert "incomplete: 1 worker of xdist lost" in text


def test_artifacts_are_linked_from_where_the_page_stands(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "a report.html").touch()
    folder = tmp_path / "pages"
    found = page(made.different(tmp_path), folder)
    assert found.links[1:] == ["../artifacts/a%20report.html"] * 2  # among the divergences, and in the table
    assert "../artifacts/gone.txt (not there)" in found.text


def test_a_hostile_name_is_text_on_one_line(tmp_path: Path) -> None:
    text = page(made.hostile(tmp_path), tmp_path).text
    assert r"<script>alert(1)</script>|`x`\n::error::injected\u202e\x1b[31m" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_long_table_says_what_it_leaves_out(tmp_path: Path) -> None:
    found = page(made.big(tmp_path), tmp_path)
    assert f"{MAX_ROWS:,} of 2,500 shown" in found.text
    assert found.text.count("tests/test_big.py::test_2999") == 1  # what fails the run is named in full


@pytest.mark.parametrize(
    ("judgement", "look"), [(made.CLEAN, "equal"), (made.incomplete(), "not-proven"), (made.different(Path("/")), "different")]
)
def test_the_verdict_looks_like_that_of_a_comparison(tmp_path: Path, judgement: Judgement, look: str) -> None:
    source = render(judgement, folder=tmp_path, facts={}, arguments="")
    assert f'<header class="{look}">' in source
    assert page_style() in source
    assert "@media (prefers-color-scheme: dark)" in page_style()


TESTS = """
import pathlib
from pytest_specalign.verdicts import Comparison, note_comparison

def test_different(request):
    path = request.config.rootpath / "artifacts" / "x.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    note_comparison(request.node, Comparison("x", "different", 2, 1, "rows", "golden", "row 1", (str(path),)))
    raise AssertionError
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_a_run_writes_its_page_once_and_at_the_end(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeconftest("def pytest_specalign_environment(environment):\n    environment['cluster'] = 'alpha'\n")
    result = run("--specalign-report=out/deep/report.html", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = Page((pytester.path / "out" / "deep" / "report.html").read_text("utf-8"))
    assert found.links[1:] == ["../../artifacts/x.txt"] * 2
    assert "alpha" in found.text
    assert "--specalign-report=out/deep/report.html" in found.text
    assert [path.name for path in (pytester.path / "out" / "deep").iterdir()] == ["report.html"]


def test_without_jinja2_the_run_does_not_begin(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("jinja2")
    pytester.makepyfile("def test_it(): pass\n")
    result = run("--specalign-report=r.html", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --specalign-report needs jinja2: pip install 'pytest-specalign[report]'" in result.errlines


def test_a_page_that_cannot_be_written_fails_the_run_and_says_why(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass\n")
    (pytester.path / "out").write_text("a file")
    result = run("--specalign-report=out/r.html", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["specalign: --specalign-report=*out/r.html: *"])

"""What GitHub shows of a run: error annotations and the step summary, escaped by its rules, and only there."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from pytest_specalign.github import MAX_ANNOTATIONS, MAX_BYTES, error_lines, markdown
from tests.plugin import made_judgements as made
from tests.plugin.support import WORKERS, Gpus, Run

TESTS = """
import pytest
from pytest_specalign.verdicts import Comparison, note_comparison

@pytest.mark.gpu
def test_skips():
    pytest.skip("100% sure:\\nno, really")

@pytest.mark.gpu
def test_different(request):
    note_comparison(request.node, Comparison("a,b", "different", 4, 1, "rows", "golden", "row 1"))
    raise AssertionError
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_annotations_and_step_summary(run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]) -> None:
    gpus(1)
    pytester.mkdir("sub").joinpath("test_it.py").write_text(TESTS)
    pytester.makeini("[pytest]\n")
    step = pytester.path / "step.md"
    step.write_text("before\n")
    where = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(step), "GITHUB_WORKSPACE": str(pytester.path.parent)}
    result = run("--specalign-gpu-policy=require", *workers, **where)
    lines = [line for line in result.outlines if line.startswith("::")]
    file = f"{pytester.path.name}/sub/test_it.py"
    advice = "run them where such GPUs are, or name them in the file of --specalign-waivers, with a reason and an expiry date;"
    assert lines == [
        f"::error file={file},line=9,title=specalign different::sub/test_it.py::test_different%0A"
        "golden 'a,b': different: 1 of 4 rows: row 1",
        f"::error file={file},line=5,title=specalign gpu-skipped::GPU tests did not run%0A"
        "sub/test_it.py::test_skips: 100%25 sure:%0Ano, really%0A"
        f"next: {advice} --specalign-gpu-policy=allow only counts them",
    ]
    text = step.read_text("utf-8")
    assert text.startswith("before\n### ❌ specalign: failed\n")
    assert "| gpu | 1 | 1 | 1 | 0 | 0 |" in text
    assert "| sub/test&#95;it.py&#58;&#58;test&#95;different | golden 'a,b'&#58; different&#58; 1 of 4 rows&#58; row 1 |" in text


@pytest.mark.parametrize("env", [{}, {"GITHUB_ACTIONS": "false"}], ids=["elsewhere", "false"])
def test_elsewhere_there_is_neither(run: Run, pytester: pytest.Pytester, gpus: Gpus, env: dict[str, str]) -> None:
    gpus(1)
    pytester.makepyfile(TESTS)
    step = pytester.path / "step.md"
    result = run("--specalign-gpu-policy=require", GITHUB_STEP_SUMMARY=str(step), **env)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert not step.exists()
    assert "::error" not in result.stdout.str()


def test_an_inert_plugin_tells_github_nothing(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(1)
    monkeypatch.delenv("SPECALIGN_LOCK_DIR")
    pytester.makepyfile(TESTS)
    step = pytester.path / "step.md"
    result = run(GITHUB_STEP_SUMMARY=str(step), GITHUB_ACTIONS="true")
    assert not step.exists()
    assert "::error" not in result.stdout.str()


def test_a_step_summary_that_cannot_be_written_is_a_warning(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n")
    result = run(
        "--specalign-gpu-policy=require", GITHUB_STEP_SUMMARY=str(pytester.path / "none" / "step.md"), GITHUB_ACTIONS="true"
    )
    assert result.ret == pytest.ExitCode.OK
    assert "specalign: GITHUB_STEP_SUMMARY=" in result.stdout.str()


def test_nothing_that_a_run_says_starts_a_command_or_leaves_its_place(tmp_path: Path) -> None:
    for line in error_lines(made.hostile(tmp_path), str(tmp_path), tmp_path):
        assert line.isprintable() or "\u202e" in line or "\x1b" in line
        assert not set("\r\n") & set(line)
        command, message = re.fullmatch(r"::error ([^:]*)::(.*)", line).groups()  # type: ignore[union-attr]
        assert re.fullmatch(r"(file=[^,:]*,line=1,)?title=[^,:]*", command)
        assert message


def test_there_are_no_more_annotations_than_github_shows(tmp_path: Path) -> None:
    lines = error_lines(made.big(tmp_path), "", tmp_path)
    assert len(lines) == MAX_ANNOTATIONS
    assert lines[-1] == "::error title=specalign::5491 more are in the log and in the step summary"


def test_markdown_shows_names_as_they_are(tmp_path: Path) -> None:
    text = markdown(made.hostile(tmp_path))
    assert "<script" not in text
    cells = [line.split("|") for line in text.splitlines() if line.startswith("|") and "alert" in line]
    assert cells
    for row in cells:
        assert row[0] == row[-1] == ""
        shown = [html.unescape(cell).strip() for cell in row if "alert" in cell]
        assert all(r"<script>alert(1)</script>|`x`\n::error::injected\u202e\x1b[31m [a](http://b) %0A" in cell for cell in shown)
    widths = {len(row) for row in cells}
    assert widths <= {4, 5}, "a bar of a name must not open a cell"


def test_markdown_stays_below_githubs_limit(tmp_path: Path) -> None:
    big = made.big(tmp_path)
    assert "… and 2300 more" in markdown(big)
    long = made.changed(incomplete=("x" * 2 * MAX_BYTES, "y"))
    assert len(markdown(long).encode()) <= MAX_BYTES + 100
    assert markdown(long).endswith("… cut here: the log has all of it.\n")

"""A release needs one version: in the tag, the project, the changelog and the files that were built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".github" / "scripts" / "check_release.py"

PROJECT = '[project]\nname = "pytest-specalign"\nversion = "1.2.3"\n'
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2027-01-31\n\n## [1.2.2] - 2026-12-01\n"
FILES = ("pytest_specalign-1.2.3-py3-none-any.whl", "pytest_specalign-1.2.3.tar.gz")


def _check(
    folder: Path, tag: str, changelog: str = CHANGELOG, files: tuple[str, ...] = FILES
) -> subprocess.CompletedProcess[str]:
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "CHANGELOG.md").write_text(changelog)
    (folder / "dist").mkdir()
    for name in files:
        (folder / "dist" / name).touch()
    command = [sys.executable, str(SCRIPT), tag, "--dist", "dist"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_all_agree(tmp_path: Path) -> None:
    ran = _check(tmp_path, "v1.2.3")
    assert (ran.returncode, ran.stdout) == (0, "pytest-specalign 1.2.3: ready\n")


def test_a_trial_needs_no_tag_and_no_date(tmp_path: Path) -> None:
    assert _check(tmp_path, "", changelog="## [1.2.3] - unreleased\n").returncode == 0


@pytest.mark.parametrize(
    ("tag", "changelog", "files", "words"),
    [
        ("v1.2.4", CHANGELOG, FILES, "the tag is v1.2.4, the version in pyproject.toml 1.2.3: expected v1.2.3"),
        ("1.2.3", CHANGELOG, FILES, "the tag is 1.2.3"),
        ("v1.2.3", CHANGELOG.replace("2027-01-31", "unreleased"), FILES, "CHANGELOG.md has no line `## [1.2.3] - YYYY-MM-DD`"),
        ("v1.2.3", CHANGELOG.replace("1.2.3", "1x2x3"), FILES, "CHANGELOG.md has no line"),
        ("v1.2.3", CHANGELOG, FILES[:1], "dist holds pytest_specalign-1.2.3-py3-none-any.whl: expected"),
        ("v1.2.3", CHANGELOG, (*FILES, "pytest_specalign-1.2.2.tar.gz"), "dist holds pytest_specalign-1.2.2.tar.gz, "),
        ("", CHANGELOG, (), "dist holds nothing"),
    ],
)
def test_what_does_not_agree_fails(tmp_path: Path, tag: str, changelog: str, files: tuple[str, ...], words: str) -> None:
    ran = _check(tmp_path, tag, changelog, files)
    assert ran.returncode == 1
    assert f"::error::release: {words}" in ran.stdout

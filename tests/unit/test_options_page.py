"""docs/options.md names every option with its three spellings and its default, and other pages do not repeat the table."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from docs.generate import options_page
from pytest_specalign.options import OPTIONS, Option
from specalign.leases import DEFAULT_FOLDER, DEFAULT_TIMEOUT, LockFolder

DOCS = Path(__file__).parents[2] / "docs"


def rows() -> dict[str, list[str]]:
    """Name of the option → cells of its row, out of the page as it stands."""
    lines = (DOCS / "options.md").read_text("utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("| `--specalign-")]
    return {row[0].strip().strip("`").partition("=")[0]: [cell.strip() for cell in row] for row in cells}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_a_row_with_its_spellings_and_default(option: Option) -> None:
    row = rows()[option.flag]
    assert len(row) == 5
    assert row[1:4] == [f"`{option.env}`", f"`{option.ini}`", option.default]


def test_the_page_has_no_row_beside_the_table_of_the_code() -> None:
    assert list(rows()) == [option.flag for option in OPTIONS]
    assert (DOCS / "options.md").read_text("utf-8") == options_page()


def test_the_defaults_in_words_are_those_of_the_code() -> None:
    words = {option.name: option.default for option in OPTIONS}
    assert words["lock_dir"] == str(DEFAULT_FOLDER)
    assert float(words["lease_timeout"]) == DEFAULT_TIMEOUT
    pattern = inspect.signature(LockFolder)
    assert words["lock_pattern"] == pattern.parameters["pattern"].default


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md") if not path.name.startswith("options")))
def test_no_other_page_has_a_table_of_variables(page: str) -> None:
    assert not re.search(r"^\|.*`SPECALIGN_[A-Z_]+` \| `specalign_", (DOCS / page).read_text("utf-8"), re.MULTILINE)

"""The generated pages are up to date, so that every example in them is what the code prints."""

from __future__ import annotations

from pathlib import Path

from docs.generate import pages
from specalign.layer_ids.findings import CODES


def test_the_generated_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in pages().items() if path.read_text("utf-8") != text]
    assert stale == [], "run python docs/generate.py"


def test_every_finding_code_has_a_section() -> None:
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")
    assert [code for code in CODES if f"#### `{code}`" not in text] == []

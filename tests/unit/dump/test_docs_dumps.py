"""The examples of the docs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specalign.dump.problems import CODES
from specalign.dump.validate import validate

DOCS = Path(__file__).parents[3] / "docs"


def page() -> str:
    """`dumps.md`."""
    return (DOCS / "dumps.md").read_text("utf-8")


def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [text for text in re.findall(r"```python\n(.*?)```", page(), re.DOTALL) if '"run"' in text]
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs", "exec"), {})
    assert capsys.readouterr().out == "run/rank00000/pass00000.safetensors boundary.3 F32 (5, 8)\n"
    assert validate("run").ok


def test_every_code_is_in_the_table() -> None:
    assert [code for code, meaning in CODES.items() if f"| `{code}` | {meaning} |" not in page()] == []

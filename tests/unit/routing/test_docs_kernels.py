"""The examples of docs/routing-kernels.md print what stands below them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = (Path(__file__).parents[3] / "docs" / "routing-kernels.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_stands_below_it(code: str, printed: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "docs/routing-kernels.md", "exec"), {})
    assert said.getvalue() == printed


def test_every_block_of_the_page_was_looked_at() -> None:
    assert len(EXAMPLES) == PAGE.count("```text") == PAGE.count("```python") == 2

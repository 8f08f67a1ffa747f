"""The examples of docs/routing.md print what stands below them, and the room exports what the page names."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import specalign.routing

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_stands_below_it(code: str, printed: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "docs/routing.md", "exec"), {})
    assert said.getvalue() == printed


def test_every_block_of_the_page_was_looked_at() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 3


def test_every_exported_name_is_there_and_no_other_is() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    for name in specalign.routing.__all__:
        assert getattr(specalign.routing, name).__name__ == name
    assert set(specalign.routing.__all__) == set(specalign.routing._ON_DEMAND)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specalign.routing.nothing  # noqa: B018


def test_the_room_itself_imports_no_torch() -> None:
    code = "import sys, specalign.routing; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0

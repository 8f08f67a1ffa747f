"""The example of docs/golden.md does what the page says."""

from __future__ import annotations

import re

import pytest

from tests.plugin.support import ROOT, Run


def test_the_example_is_written_checked_and_fails_by_one_step(run: Run, pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "golden.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(import numpy\n.*?)```", page, re.DOTALL)
    path = pytester.makepyfile(test_router=example)
    run("--specalign-golden=new").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    one_step = '    scores.view("u4")[1, 2] += 1\n    golden.check('
    path.write_text(example.replace("    golden.check(", one_step))
    result = run()
    result.assert_outcomes(failed=1)
    shown = " ".join(re.sub(r"^E\s+", "", line) for line in result.outlines if line.startswith("E "))
    said = " ".join(re.search(r"golden test_router.*?at most 1 ulp\n.*?at most 1 ulp\n", page, re.DOTALL)[0].split())  # type: ignore[index]
    assert said.removeprefix("golden ") in " ".join(shown.split())

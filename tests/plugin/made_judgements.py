"""Judgements made by hand: what a run could have been."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

from pytest_specalign.judgement import Judgement, MarkAccount, Noted, Problem
from pytest_specalign.policy import Policy
from pytest_specalign.verdicts import Comparison
from pytest_specalign.waivers import Waiver

HOSTILE = '<script>alert(1)</script>|`x`\n::error::injected\u202e\x1b[31m [a](http://b) %0A, "q"'

CLEAN = Judgement(
    policy=Policy("require", True, "--specalign-gpu-policy"),
    problems=(),
    notes=(),
    accounts=(MarkAccount("gpu", 12, 0, ()), MarkAccount("bitwise", 3, 0, ())),
    waived=(),
    comparisons=tuple(
        Noted(
            f"tests/test_a.py::test_{n}",
            "tests/test_a.py",
            n + 1,
            False,
            Comparison("logits", "equal", 4096, 0, "rows", "golden"),
        )
        for n in range(30)
    ),
    incomplete=(),
    tests_failed=False,
)


def changed(**values: Any) -> Judgement:
    return dataclasses.replace(CLEAN, **values)


def different(folder: Path) -> Judgement:
    """A golden that differs, with artifacts in `folder`; a control that differs in a test that passed; skips and a waiver."""
    artifacts = tuple(str(folder / "artifacts" / name) for name in ("a report.html", "gone.txt"))
    first = "boundary.5 position 131 channel 17: 0x3f80 (1.0) is not 0x3f81 (1.0078125), 1 ULP"
    bad = Comparison("layers", "different", 4096, 3, "rows", "golden", first, artifacts)
    waiver = Waiver(
        "tests/test_b.py::*", "the runner has no second GPU", datetime.date(2027, 1, 31), None, "waivers.toml, waiver 1"
    )
    return changed(
        comparisons=(
            *CLEAN.comparisons,
            Noted("tests/test_a.py::test_layers[bf16]", "tests/test_a.py", 40, True, bad),
            Noted("tests/test_a.py::test_control", "tests/test_a.py", 50, False, dataclasses.replace(bad, artifacts=())),
        ),
        problems=(
            Problem(
                "gpu-skipped", "tests/test_a.py::test_two", "asked for 2 GPUs: 1 of 1 GPUs here would do", "tests/test_a.py", 60
            ),
            Problem("worker-lost", "gw1", "Not properly terminated"),
        ),
        accounts=(
            MarkAccount("gpu", 12, 1, (("asked for 2 GPUs: 1 of 1 GPUs here would do", 2),), 1, 3),
            MarkAccount("bitwise", 3, 0, ()),
        ),
        waived=(("tests/test_b.py::test_x", "asked for 2 GPUs: 1 of 1 GPUs here would do", waiver),),
        incomplete=("1 worker of xdist lost",),
        notes=("tests/test_c.py::test_y: waivers.toml, waiver 2 is not needed here: 1 test that it covers ran",),
        tests_failed=True,
    )


def incomplete() -> Judgement:
    return changed(
        incomplete=("interrupted", "3 GPU tests not reached"), policy=Policy("allow", False, "auto: this machine has no GPU")
    )


def hostile(folder: Path) -> Judgement:
    """Every text of the run is somebody's attempt at markup."""
    bad = Comparison(HOSTILE, "different", 2, 1, HOSTILE, HOSTILE, HOSTILE, (str(folder / HOSTILE.replace("/", "_")),))
    waiver = Waiver(HOSTILE, HOSTILE, datetime.date(2027, 1, 31), None, HOSTILE)
    return changed(
        comparisons=(Noted(HOSTILE, HOSTILE, 1, True, bad),),
        problems=(Problem("gpu-skipped", HOSTILE, HOSTILE, HOSTILE, 1),),
        accounts=(MarkAccount("gpu", 0, 0, ((HOSTILE, 1),)),),
        waived=((HOSTILE, HOSTILE, waiver),),
        incomplete=(HOSTILE,),
        notes=(HOSTILE,),
        policy=Policy("require", True, HOSTILE),
    )


def big(folder: Path) -> Judgement:
    """More of everything than is shown."""
    one = different(folder).divergences[0]
    many = tuple(dataclasses.replace(one, nodeid=f"tests/test_big.py::test_{n}") for n in range(2500))
    problems = tuple(
        Problem("gpu-skipped", f"tests/test_big.py::test_{n}", "no GPU was found", "tests/test_big.py", n) for n in range(3000)
    )
    return changed(comparisons=many, problems=problems)

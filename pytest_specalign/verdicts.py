"""What a test compared, and how it ended: noted by what compares, kept beside the test's reports, also across xdist's processes.

    note_comparison(request.node, Comparison("logits", "different", compared=4096, differing=3, unit="rows", first="row 17: …"))

Every comparison is counted, also one that agrees: a run that compared nothing has proven nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pytest

from pytest_specalign.state import COMPARISONS

Verdict = Literal["equal", "different", "not-proven"]
"""`not-proven`: no value differs, and something was missing, so that it is no proof either. The words of `specalign compare`."""

PROPERTY: Final = "specalign_comparison"
"""The JUnit property of a test, one for each of its comparisons: a JSON document with the fields of `Comparison`."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One comparison of a test.

    Attributes:
        name: tells the comparisons of one test apart, like the name given to `golden.check` or `bitwise.observe`.
        verdict: how it ended.
        compared: how many were compared, in `unit`; 0 where it ended before any was.
        differing: how many of them differ.
        unit: what is counted: "elements", "rows", "tensors", "runs".
        kind: what compared: "golden", "bitwise", or a word of your own.
        first: the first divergence, or the reason of `not-proven`, in one line; empty where all is equal.
        artifacts: files or folders that show more, absolute.
    """

    name: str
    verdict: Verdict
    compared: int
    differing: int = 0
    unit: str = "elements"
    kind: str = ""
    first: str = ""
    artifacts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"comparison {self.name!r}: verdict is {self.verdict!r}: {', '.join(get_args(Verdict))}")
        if not 0 <= self.differing <= self.compared:
            raise ValueError(f"comparison {self.name!r}: {self.differing} of {self.compared} {self.unit} cannot differ")
        if self.ok and (self.differing or not self.compared):
            raise ValueError(f"comparison {self.name!r} is called equal with {self.differing} of {self.compared} different")
        if not self.ok and not self.first:
            raise ValueError(f"comparison {self.name!r} is {self.verdict} without saying where or why (first)")

    @property
    def ok(self) -> bool:
        return self.verdict == "equal"

    def format(self) -> str:
        """`golden 'logits': different: 3 of 4,096 rows: row 17 …`."""
        what = f"{self.kind} {self.name!r}".lstrip()
        counted = f"{self.compared:,} {self.unit}" if self.ok else f"{self.differing:,} of {self.compared:,} {self.unit}"
        return f"{what}: {self.verdict}: {counted}" + (f": {self.first}" if self.first else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values only: what xdist carries from process to process."""
        return {**dataclasses.asdict(self), "artifacts": list(self.artifacts)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        return cls(**{**values, "artifacts": tuple(values["artifacts"])})


def note_comparison(item: pytest.Item, comparison: Comparison) -> None:
    """Keep a comparison of this test for the summary, JUnit, GitHub and the HTML overview; call it before the test fails by it.

    Does not fail the test: whoever compares does that. In one test a later comparison of the same kind and name replaces the
    earlier, so that a test whose function is called repeatedly is not counted repeatedly.
    """
    artifacts = tuple(_plain(str(Path(path).absolute())) for path in comparison.artifacts)
    name, unit, kind, first = map(_plain, (comparison.name, comparison.unit, comparison.kind, comparison.first))
    noted = item.stash.setdefault(COMPARISONS, {})
    noted[kind, name] = dataclasses.replace(comparison, name=name, unit=unit, kind=kind, first=first, artifacts=artifacts)
    others = [pair for pair in item.user_properties if pair[0] != PROPERTY]
    made = [(PROPERTY, json.dumps(one.as_dict(), ensure_ascii=False)) for one in noted.values()]
    item.user_properties[:] = [*others, *made]


def noted_comparisons(item: pytest.Item) -> list[Comparison]:
    """The comparisons of a test so far, in the order in which their names came first."""
    return list(item.stash.get(COMPARISONS, {}).values())


def _plain(text: str) -> str:
    """With lone surrogates spelled out: neither xdist nor an XML file takes them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

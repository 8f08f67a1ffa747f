"""Reads the file of `--specalign-waivers` as far as a gate needs it: whose skip is allowed, why, and until when.

[[waiver]]
test = "tests/gpu/test_gemm.py::test_fp4[*]"   # a node id; * stands for any text, everything else for itself
reason = "needs compute capability 10.0; the runner has 9.0"
expires = 2027-03-31                           # the last day on which it holds, in UTC
skip = "asked for 1 GPU*"                      # optional: only this reason of the skip is waived
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from datetime import date
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Waiver:
    """One table `[[waiver]]`."""

    test: str
    reason: str
    expires: date
    skip: str = "*"

    def __post_init__(self) -> None:
        for name in ("test", "reason", "skip"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} is {value!r}: give a text")
        if type(self.expires) is not date:
            raise ValueError(f"expires is {self.expires!r}: give a day without quotes, like 2027-03-31")

    def excuses(self, node_id: str, why: str, today: date) -> bool:
        return today <= self.expires and _matches(self.test, node_id) and _matches(self.skip, why)


def read_waivers(file: Path | None) -> list[Waiver]:
    """None has none; a file that is named must be there and be right.

    Raises:
        OSError, ValueError: it is not.
    """
    if file is None:
        return []
    try:
        return [Waiver(**table) for table in tomllib.loads(file.read_text("utf-8")).get("waiver", [])]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.strip().split("*"))), text, re.DOTALL) is not None

"""A table with where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from specalign.acceptance.table import Table


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What one run of `specalign acceptance` found.

    Attributes:
        table: its rows; "right" alone where no table was asked for.
        target, draft, prompts: what was given, as text.
        environment: versions, device and dtype: what figures may depend on.
        seconds: of measuring, without loading.
    """

    table: Table
    target: str
    draft: str
    prompts: str
    environment: Mapping[str, str]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the table proves what it is there for."""
        return not self.table.problems

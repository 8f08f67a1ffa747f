"""Which expert-major rows no route goes to: they are zeroed, and no others."""

from __future__ import annotations

import dataclasses
from typing import Final

from torch import Tensor

NOBODY: Final = 2**31 - 1
"""Owner of a row that no route goes to; so there may be no more than 2^31 - 1 routes."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blanks:
    """The rows that get zeros.

    Attributes:
        rows: int64 `[P]`, the rows themselves; or int32 `[num_rows]`, the owner of each row, `NOBODY` where it has none.
        listed: which of both.
    """

    rows: Tensor
    listed: bool

    def listing(self) -> Tensor:
        """The rows themselves; waits for the device if they are not listed."""
        return self.rows if self.listed else (self.rows == NOBODY).nonzero()[:, 0]

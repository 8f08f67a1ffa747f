"""Shapes of the launches. They change the speed and never a bit."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        block: columns that a program handles at a time, a power of two.
        warps: warps of a program.
        parts: programs that share a token's columns, block by block in turn.
    """

    block: int = 1024
    warps: int = 4
    parts: int = 1

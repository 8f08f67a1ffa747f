"""Shapes of the launches. They change the speed and never a bit, but for the lanes of a tree.

The table is what was fastest on an H200 of what `benchmarks/routing.py --sweep` tries, at widths 2880 and 6144.
"""

from __future__ import annotations

import dataclasses
from typing import Final

WHOLE_ROW: Final = 0
"""Parts of a launch that has a program for each block of a row."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        block: columns that a program handles at a time, a power of two.
        warps: warps of a program.
        parts: programs that share a token's columns, block by block in turn.
        store: how the caches treat what is written, as `tl.store(cache_modifier=…)` takes it.
    """

    block: int = 1024
    warps: int = 4
    parts: int = 1
    store: str = ""


FASTEST: Final = {
    "scatter": ((4096, Launch(4096, 16, store=".cs")), (None, Launch(8192, 16, store=".cs"))),
    "scatter backward": ((4096, Launch(4096, 8)), (None, Launch(2048, 16))),
    "gather": ((4096, Launch(4096, 4)), (None, Launch(2048, 4, WHOLE_ROW))),
    "scatter quantize": ((None, Launch(1024, 4)),),
}
"""By kernel: up to which width a launch is taken; the last takes every width."""


def launch_for(kernel: str, width: int) -> Launch:
    """The launch for rows of so many columns; no block is wider than they need."""
    launch = next(launch for widest, launch in FASTEST[kernel] if widest is None or width <= widest)
    block = min(launch.block, max(128, 1 << (width - 1).bit_length()))
    warps = max(1, min(launch.warps, block // 128))
    parts = launch.parts if launch.parts != WHOLE_ROW else -(-width // block)
    return dataclasses.replace(launch, block=block, warps=warps, parts=parts)

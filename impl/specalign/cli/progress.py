"""One line on standard error that says how far a long run is, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

QUIET_SECONDS: Final = 1.0
"""A run that is shorter shows no line at all."""

REDRAW_SECONDS: Final = 0.2


@contextlib.contextmanager
def progress_line(
    doing: str, unit: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """A function to be called with what is done and what is to be done; the line is gone at the end.

    Args:
        doing: "validating".
        unit: "passes".
        stream: by default standard error.
    """
    out = sys.stderr if stream is None else stream
    begun = drawn = clock()
    shown = False

    def draw(done: int, total: int) -> None:
        nonlocal drawn, shown
        now = clock()
        if now - begun >= QUIET_SECONDS and now - drawn >= REDRAW_SECONDS:
            drawn, shown = now, True
            out.write(f"\r{doing}: {done:,} of {total:,} {unit} ({100 * done // max(total, 1)}%)\x1b[K")
            out.flush()

    try:
        yield draw if out.isatty() else lambda done, total: None
    finally:
        if shown:
            out.write("\r\x1b[K")
            out.flush()

"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows with their columns aligned; the last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1])).rstrip() for row in rows)

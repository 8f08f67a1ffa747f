"""The one exception that this room raises."""

from __future__ import annotations


class CaptureError(ValueError):
    """States cannot be captured, or what was captured is not what was asked for.

    The message names the boundary or block, what was found and what was expected, and what to do next.
    """

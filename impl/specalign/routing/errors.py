"""What routing refuses."""

from __future__ import annotations


class RoutingError(ValueError):
    """Routes, a layout or a replay that cannot be right; says which token and slot, and what to do."""

"""The error of this room."""

from __future__ import annotations


class AcceptanceError(ValueError):
    """Figures, prompts or a log that nothing can be concluded from; the message says what, where and what to do."""

"""What goes wrong with a golden."""

from __future__ import annotations

from specalign.layer_ids.files import InputError


class GoldenError(InputError):
    """A golden that cannot be read, written, fetched or trusted. The message says what, where, and what to do next."""

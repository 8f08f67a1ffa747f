"""The one exception of this room."""

from __future__ import annotations

from specalign.layer_ids.files import InputError


class DraftError(InputError):
    """A draft head that cannot be built, loaded or run as asked. The message says what, where, by how much and what to do."""

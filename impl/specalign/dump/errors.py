"""What goes wrong with a dump."""

from __future__ import annotations

from specalign.layer_ids.files import InputError


class DumpError(InputError):
    """A dump that cannot be written, read or trusted. The message says what, where, and what to do next."""

"""The one exception that this room raises."""

from __future__ import annotations

from specalign.capture.errors import CaptureError


class RecordError(CaptureError):
    """A forward cannot be recorded, or what was recorded cannot be trusted or written.

    A `CaptureError`: who records sees both, since the layers of a model are read as capture reads them.
    """

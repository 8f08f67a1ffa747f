"""The one exception that layer-id conversion raises."""

from __future__ import annotations


class LayerIdError(ValueError):
    """A list of layer ids cannot be converted. The message names the id, the number of layers and what would be valid."""

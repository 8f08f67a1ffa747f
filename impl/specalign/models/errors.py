"""What goes wrong in this room, by kind: a config, a checkpoint, a call."""

from __future__ import annotations


class ModelConfigError(ValueError):
    """A config that this model does not implement, or that contradicts itself. The message names the key and what is allowed."""


class WeightsError(ValueError):
    """A checkpoint that does not fit its model. The message lists all that is missing, unused and of the wrong shape."""


class CacheError(ValueError):
    """A KV cache that does not fit the call: other sequences, a broken-off pass, or rows that it no longer holds."""

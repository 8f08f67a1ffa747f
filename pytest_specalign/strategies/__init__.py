"""Hypothesis strategies for layer ids and draft head configs.

Without hypothesis the import fails with one line that names the extra. It is a `CollectError`, because pytest prints that one
as it is, where an `ImportError` would come with a traceback and a hint about package names.
"""

from __future__ import annotations

import pytest

try:
    import hypothesis  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "hypothesis":
        raise
    raise pytest.Collector.CollectError(
        "pytest_specalign's contracts and strategies need hypothesis: pip install 'pytest-specalign[hypothesis]'"
    ) from None

from pytest_specalign.strategies.configs import CONFIG_FAULTS, draft_configs
from pytest_specalign.strategies.ids import BAD_ID_REASONS, BadIds, bad_layer_ids, layer_ids, num_layers

__all__ = ["BAD_ID_REASONS", "CONFIG_FAULTS", "BadIds", "bad_layer_ids", "draft_configs", "layer_ids", "num_layers"]

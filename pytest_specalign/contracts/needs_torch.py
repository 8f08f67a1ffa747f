"""Imported before torch by every contract that needs it: without torch, one line names the extra.

It is a `CollectError`, because pytest prints that one as it is, where an `ImportError` would come with a traceback.
"""

from __future__ import annotations

import pytest

try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise pytest.Collector.CollectError(
        "CaptureContract, DraftNormContract and RoutingContract need torch: pip install 'pytest-specalign[torch]'"
    ) from None

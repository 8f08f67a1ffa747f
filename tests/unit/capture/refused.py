"""The check that a capture is refused, and that it leaves neither hooks nor states behind."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from specalign.capture import CaptureError, capture_states
from tests.unit.capture.probes import start


def refused(model: nn.Module, states: Any, says: str, **options: Any) -> None:
    with pytest.raises(CaptureError, match=says), capture_states(model, states, **options) as capture:
        model(start())
    assert sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()) == 0
    if "capture" in locals():
        with pytest.raises(CaptureError, match="no forward"):
            _ = capture.states

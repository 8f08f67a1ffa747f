"""The routing kernels keep the contract on a GPU, bit for bit with the references on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import settings

from tests.unit import test_routing_contract as routing


class TestRoutingOnGpu(routing.TestSpecalign):
    """Offsets beyond 2^31 too: three buffers of 4 GiB."""

    settings = settings(max_examples=50, deadline=None)
    large_elements = 2**31

    @classmethod
    def device(cls) -> str:
        return "cuda"


class TestEngineOrderOnGpu(routing.TestEngineOrder):
    @classmethod
    def device(cls) -> str:
        return "cuda"

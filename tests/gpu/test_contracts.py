"""The contracts that hold on the CPU hold on a GPU, in fp32, bf16 and fp16: same bits, same refusals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import settings  # noqa: E402

from tests.unit import test_capture_contract as capture  # noqa: E402
from tests.unit import test_draft_contract as draft  # noqa: E402

SOME = settings(max_examples=25, deadline=None)


class TestLoopOnGpu(capture.TestLoop):
    settings = SOME

    @classmethod
    def device(cls) -> str:
        return "cuda"


class TestHooksOnGpu(capture.TestHooks):
    settings = SOME

    @classmethod
    def device(cls) -> str:
        return "cuda"


class TestDeepTargetOnGpu(capture.TestHooksOnADeepTarget):
    dtypes = (torch.bfloat16, torch.float16)

    @classmethod
    def device(cls) -> str:
        return "cuda"


class TestDraftOnGpu(draft.TestSpecalign):
    settings = SOME

    @classmethod
    def device(cls) -> str:
        return "cuda"


class TestDraftInBf16OnGpu(TestDraftOnGpu):
    dtype = torch.bfloat16
    tolerance = 2.0**-6  # a few roundings to 8 bits, over sums of up to a few dozen terms


class TestDraftInFp16OnGpu(TestDraftOnGpu):
    dtype = torch.float16
    tolerance = 2.0**-9

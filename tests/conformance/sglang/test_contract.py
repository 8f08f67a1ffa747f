"""SGLang's targets under `CaptureContract`: what holds of them, and what this version is known to break."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import hypothesis
import pytest
import torch

from pytest_specalign.contracts.capture import CaptureContract
from pytest_specalign.contracts.probe import ProbeLayout, ProbeModel
from specalign.layer_ids import State
from tests.conformance.sglang_cpu.probe import EngineProbe

ENGINE: Final = f"sglang=={importlib.metadata.version('sglang')}"


class _OfSglang(CaptureContract, abstract=True):
    """What a head needs: the order of its config, doubled chunks doubled."""

    family: ClassVar[str]
    duplicates = "keep"
    styles = ("residual",)
    in_place = ("never",)  # the blocks are the engine's own, and do what they do
    dtypes = (torch.float32,)
    settings = hypothesis.settings(
        max_examples=10,
        deadline=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # shrinking an expected failure costs a minute
    )

    # No verdict on a CPU: the engine's plain twins of its rotary and expert kernels refuse 0 rows before anything is captured.
    test_an_idle_batch_gives_empty_states = None

    @classmethod
    def make_probe(cls, layout: ProbeLayout) -> ProbeModel:
        return EngineProbe(cls.family, layout)

    def capture(self, probe: Any, states: Sequence[State]) -> list[torch.Tensor]:
        return probe.capture(states)


class TestGptOss(_OfSglang):
    family = "gpt_oss"


class TestLlama(_OfSglang):
    family = "llama"
    reaches_n = False  # so boundary n must be refused, not dropped


def breaks(contract: type[CaptureContract], name: str, code: str) -> None:
    """This version is known to break the property. Strict: an engine that mends it makes the test fail."""
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{ENGINE} {contract.__name__}: {code}")
    setattr(contract, name, mark(getattr(contract, name)))


for _contract in (TestGptOss, TestLlama):
    breaks(_contract, "test_keeps_the_declared_order", "ids-reordered")
    breaks(_contract, "test_treats_duplicates_as_declared", "ids-collapsed")
    breaks(_contract, "test_refuses_states_that_do_not_exist", "ids-invalid")
breaks(TestLlama, "test_reaches_the_last_boundary_as_declared", "state-unreachable")

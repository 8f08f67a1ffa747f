"""Fixtures about the layers of a model. torch is imported when one of them is used, not when the plugin starts."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from specalign.layer_ids import State
    from specalign.recorder import Recording


class CaptureBoundaries(Protocol):
    """Runs a model once and returns states of it."""

    def __call__(self, model: nn.Module, boundaries: Sequence[State], /, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]: ...


@pytest.fixture(scope="session")
def capture_boundaries() -> CaptureBoundaries:
    """`capture_boundaries(model, boundaries, *args, **kwargs)` calls `model(*args, **kwargs)` and returns the states asked for.

    `boundaries` are numbers 0..n and `POST_NORM`, in the order wanted; each comes as a tensor of its own, detached,
    `[*rows, width]`.
    The model's hooks are removed afterwards, also when it raises. Where the blocks have unusual names or arguments, use
    `specalign.capture.capture_states`, which this wraps.

    Raises:
        specalign.capture.CaptureError: the model cannot be captured from, or a state is not there.
    """
    try:
        capture_states = importlib.import_module("specalign.capture").capture_states
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        pytest.fail("the fixture capture_boundaries needs torch: pip install 'pytest-specalign[torch]'", pytrace=False)

    def capture(model: nn.Module, boundaries: Sequence[State], /, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        with capture_states(model, boundaries) as captured:
            model(*args, **kwargs)
        states: tuple[Tensor, ...] = captured.states
        return states

    return capture


class LayerDump(Protocol):
    """Makes a recording into a folder of this test."""

    def __call__(self, model: Any, /, **options: Any) -> Recording: ...


@pytest.fixture
def layer_dump(tmp_path: Path) -> LayerDump:
    """`layer_dump(model, layers=…)` records what runs in its context into a dump in a folder of the test:

        def test_layers(layer_dump, model, tokens):
            with layer_dump(model, layers=[0, 5]) as recording:
                model(tokens)
            assert compare(recording.path, …)

    Options are those of `specalign.recorder.record_layers`, which this wraps; `name="…"` is the name of the folder, by default
    `layers0`, `layers1`, … in the order of the calls. Hooks are removed and the dump is ended when the context is left.

    Raises:
        specalign.recorder.RecordError, specalign.capture.CaptureError: the model cannot be recorded.
    """
    try:
        record_layers = importlib.import_module("specalign.recorder").record_layers
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        pytest.fail("the fixture layer_dump needs torch: pip install 'pytest-specalign[torch]'", pytrace=False)
    made = itertools.count()

    def dump(model: Any, /, *, name: str = "", **options: Any) -> Recording:
        recording: Recording = record_layers(model, tmp_path / (name or f"layers{next(made)}"), **options)
        return recording

    return dump

"""What a watch tells its subclass: a forward that was given up, and blocks that run again inside backward."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, CapturePlan, Stage, capture_states
from specalign.capture.hooks import Capture
from specalign.capture.parts import find_parts
from specalign.capture.passes import Pass, Reading
from specalign.capture.stream import Copying
from specalign.layer_ids import POST_NORM, State
from tests.unit.capture.probes import BLOCKS, PlainBlock, Stack, start
from tests.unit.capture.test_hooks_autograd import CHECKPOINTS, DEPTH, Model, tokens


class Noting(Capture):
    """A capture that keeps what it is told."""

    def __init__(self, model: nn.Module, states: tuple[State, ...], blocks: int) -> None:
        parts = find_parts(model, blocks=None, final_norm=None, stage=None, needs_norm=False)
        super().__init__(model, CapturePlan(states, blocks), parts, Copying(), Reading())
        self.again: list[tuple[str, int, Any, Any, Any]] = []
        self.begun: list[Pass] = []
        self.called_with: list[tuple[Any, Any]] = []
        self.outputs: list[Any] = []
        self.abandoned: list[Pass] = []

    def _begin(self, args: Any, kwargs: Any) -> Pass:
        self.begun.append(super()._begin(args, kwargs))
        self.called_with.append((args, kwargs))
        return self.begun[-1]

    def _finish(self, current: Pass, output: Any) -> None:
        super()._finish(current, output)
        self.outputs.append(output)

    def _abandon(self, current: Pass) -> None:
        self.abandoned.append(current)

    def _enter_again(self, place: int, args: Any, kwargs: Any) -> None:
        self.again.append(("enter", place, args, kwargs, None))

    def _leave_again(self, place: int, args: Any, kwargs: Any, output: Any) -> None:
        self.again.append(("leave", place, args, kwargs, output))


@pytest.mark.parametrize("kind", ["reentrant", "early stop off"])
def test_blocks_that_run_again_are_told_from_the_last_to_the_first(kind: str) -> None:
    model = Model(CHECKPOINTS[kind])
    with Noting(model, tuple(range(DEPTH + 1)), DEPTH) as capture:
        model(tokens()).square().sum().backward()
    assert [(what, place) for what, place, *_ in capture.again] == [
        (what, place) for place in reversed(range(DEPTH)) for what in ("enter", "leave")
    ]
    for what, place, (hidden,), kwargs, output in capture.again:
        assert torch.equal(hidden, capture.states[place]), f"{what} {place}"
        assert what == "enter" or torch.equal(output, capture.states[place + 1]), f"{what} {place}"
        assert kwargs == {}


def test_a_subclass_is_told_what_the_model_was_called_with_and_what_it_returned() -> None:
    model, hidden = Stack(), start()
    with Noting(model, (1,), BLOCKS) as capture:
        first, second = model(hidden), model(hidden=hidden)
    [((seen,), no_names), (nothing, named)] = capture.called_with
    assert seen is hidden
    assert no_names == {}
    assert nothing == ()
    assert named["hidden"] is hidden
    assert [output is returned for output, returned in zip(capture.outputs, (first, second), strict=True)] == [True, True]


def test_a_model_that_calls_itself_is_refused_by_name() -> None:
    class CallsItself(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            return self(hidden)

    says = "^the CallsItself was called while a forward of it was running"
    with pytest.raises(CaptureError, match=says), capture_states(model := CallsItself(), (1,)):
        model(start())


def test_a_capture_whose_hooks_could_not_be_put_on_may_be_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    capture = capture_states(model, (1,))
    with monkeypatch.context() as patch:
        patch.setattr(model.layers[3], "register_forward_hook", fails)
        with pytest.raises(ZeroDivisionError):
            capture.__enter__()
    with capture:
        model(start())
    assert capture.states[0][0, 0].item() == 1


def fails(*args: Any, **kwargs: Any) -> None:
    raise ZeroDivisionError


def test_a_forward_that_raises_is_given_up_and_one_that_ends_is_not() -> None:
    model = Stack()
    with Noting(model, (1,), BLOCKS) as capture:
        model(start())
        failing = model.layers[4].register_forward_pre_hook(fails)
        with pytest.raises(ZeroDivisionError):
            model(start())
        failing.remove()
        model(start())
    assert len(capture.begun) == 3
    assert capture.abandoned == capture.begun[1:2]
    assert len(capture.forwards) == 2


def test_where_no_forward_ran_none_is_given_up() -> None:
    with Noting(Stack(), (1,), BLOCKS) as capture:
        pass
    assert capture.abandoned == []


def test_a_forward_that_cannot_be_what_was_asked_for_is_given_up() -> None:
    class Stops(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            return self.layers[0](hidden)

    model = Stops()
    with Noting(model, (1,), BLOCKS) as capture, pytest.raises(CaptureError, match="1 of 6 blocks ran"):
        model(start())
    assert capture.abandoned == capture.begun
    assert len(capture.begun) == 1


def test_a_forward_during_which_the_capture_is_closed_is_given_up_and_runs_on_unwatched() -> None:
    model = Stack()
    capture = Noting(model, (1,), BLOCKS)

    def closes(block: nn.Module, args: Any) -> None:
        capture.__exit__(None, None, None)

    with capture:
        model.layers[2].register_forward_pre_hook(closes)
        assert model(start())[0, 0].item() == 63000
    assert capture.abandoned == capture.begun
    assert len(capture.begun) == 1
    with pytest.raises(CaptureError, match="no forward"):
        _ = capture.forwards


OUTSIDE = "ran outside of a forward of the Stack: give capture_states the module that you call$"


@pytest.mark.parametrize(
    ("path", "says"), [("layers.0", "block 3"), ("layers.2", "block 5"), ("norm", "the final norm")], ids=lambda text: text
)
def test_a_part_that_is_called_by_itself_is_named_as_the_target_numbers_it(path: str, says: str) -> None:
    model, stage = Stack([PlainBlock(number) for number in range(3, 6)]), Stage(3, 6, BLOCKS, first=False, last=True)
    with pytest.raises(CaptureError, match=f"^{says} {OUTSIDE}"), capture_states(model, (6, POST_NORM), stage=stage):
        model.get_submodule(path)(start())


@pytest.mark.parametrize(("path", "says"), [("layers.2", "block 2"), ("norm", "the final norm")], ids=lambda text: text)
def test_a_capture_that_is_opened_inside_a_forward_says_what_it_saw_first(path: str, says: str) -> None:
    model = Stack()
    capture = capture_states(model, (6, POST_NORM))

    def opens(module: nn.Module, args: Any) -> None:
        capture.__enter__()

    model.get_submodule(path).register_forward_pre_hook(opens)
    try:
        with pytest.raises(CaptureError, match=f"^{says} {OUTSIDE}"):
            model(start())
    finally:
        capture.__exit__(None, None, None)


def test_a_pass_is_shown_the_norm_and_what_it_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Pass, "enter_norm", lambda self, *shown: seen.append(shown))
    model = Stack(residual=True)
    with capture_states(model, (POST_NORM,)):
        model(start())
    [(norm, (hidden, residual), kwargs)] = seen
    assert norm is model.norm
    assert (hidden + residual)[0, 0].item() == 63
    assert kwargs == {}

"""Capture in training: gradients, and activation recomputation of both kinds."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from specalign.capture import CaptureError, capture_states
from specalign.layer_ids import POST_NORM
from tests.unit.capture.probes import WIDTH

DEPTH = 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.calls += 1
        return hidden_states + torch.tanh(self.up(hidden_states))


class Model(nn.Module):
    """`around`: how each layer is called; transformers checkpoints the call of a layer, hooks included."""

    def __init__(self, around: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.around = around

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden) if self.around is None else self.around(layer, hidden)
        return self.norm(hidden)


CHECKPOINTS = {
    "not reentrant": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "early stop off": functools.partial(checkpoint, use_reentrant=False, early_stop=False),
}
STATES = (0, 1, DEPTH, POST_NORM)


def tokens() -> Tensor:
    return torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def trained(model: Model) -> list[Tensor]:
    model(tokens()).square().sum().backward()
    return gradients(model)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_recomputation_adds_no_second_capture_and_changes_no_gradient(kind: str) -> None:
    plain, expected = Model(), trained(Model())
    with capture_states(plain, STATES) as reference:
        plain(tokens())
    model = Model(CHECKPOINTS[kind])
    with capture_states(model, STATES) as capture:
        found = trained(model)
    assert [layer.calls for layer in model.layers] == [2] * DEPTH, "every layer ran again in backward"
    assert len(capture.forwards) == 1
    assert all(map(torch.equal, capture.states, reference.states))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_backward_may_come_after_the_capture_is_closed(kind: str) -> None:
    model = Model(CHECKPOINTS[kind])
    with capture_states(model, STATES) as capture:
        loss = model(tokens()).square().sum()
    loss.backward()
    assert len(capture.forwards) == 1
    assert all(map(torch.equal, gradients(model), trained(Model())))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_model_that_is_recomputed_as_a_whole_is_captured_once(kind: str) -> None:
    model = Model()
    with capture_states(model, STATES) as capture:
        CHECKPOINTS[kind](model, tokens().requires_grad_()).square().sum().backward()
    assert [layer.calls for layer in model.layers] == [2] * DEPTH
    assert len(capture.forwards) == 1
    assert all(map(torch.equal, gradients(model), trained(Model())))


def test_gradients_reach_the_model_through_kept_states() -> None:
    """The reference is the same loss written into the model's own forward."""
    reference = Model()
    hidden = reference.embed(tokens())
    for layer in reference.layers:
        hidden = layer(hidden)
    (hidden.sum() + reference.norm(hidden).square().sum()).backward()
    model = Model()
    with capture_states(model, (DEPTH, POST_NORM), keep_grad=True) as capture:
        model(tokens())
    last, normed = capture.states
    (last.sum() + normed.square().sum()).backward()
    assert all(map(torch.equal, gradients(model), gradients(reference)))


@pytest.mark.parametrize("kind", ["not reentrant", "early stop off"])
def test_gradients_are_kept_through_recomputation_that_is_not_reentrant(kind: str) -> None:
    def through_states(model: Model) -> list[Tensor]:
        with capture_states(model, (1, DEPTH), keep_grad=True) as capture:
            model(tokens())
        sum(state.square().sum() for state in capture.states).backward()
        return gradients(model)

    assert all(map(torch.equal, through_states(Model(CHECKPOINTS[kind])), through_states(Model())))


def test_gradients_cannot_be_kept_through_reentrant_recomputation() -> None:
    model = Model(CHECKPOINTS["reentrant"])
    with (
        pytest.raises(CaptureError, match=r"boundary 1: keep_grad=True, .*inside\s+reentrant activation recomputation"),
        capture_states(model, (1,), keep_grad=True),
    ):
        model(tokens())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_cannot_be_kept_where_none_are_recorded(mode: Any) -> None:
    model = Model()
    with mode(), pytest.raises(CaptureError, match="boundary 0: keep_grad=True"), capture_states(model, (0,), keep_grad=True):
        model(tokens())


def test_states_captured_in_inference_mode_may_enter_training() -> None:
    model = Model()
    with torch.inference_mode(), capture_states(model, STATES) as capture:
        model(tokens())
    head = nn.Linear(WIDTH * len(STATES), 1)
    head(torch.cat(capture.states, -1)).sum().backward()
    assert head.weight.grad is not None


def test_a_forward_and_a_backward_between_forwards_are_kept_apart() -> None:
    model = Model(CHECKPOINTS["not reentrant"])
    with capture_states(model, (DEPTH,)) as capture:
        for _ in range(3):
            model(tokens()).sum().backward()
    assert len(capture.forwards) == 3

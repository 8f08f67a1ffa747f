"""What hooks read out of unusual blocks, and the figures in refusals."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, CapturePlan, Carried, StageLayout, capture_states, run_stage
from specalign.capture.passes import read_input
from specalign.layer_ids import POST_NORM, Convention
from tests.unit.capture.probes import BLOCKS, PlainBlock, Stack, start


class Positioned(PlainBlock):
    """Float positions come first, so that only the names of its parameters tell what is hidden."""

    def forward(self, positions: Tensor, hidden_states: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        return hidden_states + residual


class Compiled(nn.Module):
    """What torch.compile wraps around a block: it takes anything, and the block keeps the names."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._orig_mod = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)


def test_the_arguments_of_a_compiled_block_are_named_by_the_block_within() -> None:
    args = (torch.zeros(3), start(), start() + 1)
    for block in (Positioned(0), Compiled(Positioned(0))):
        hidden, residual = read_input(block, args, {}, "block 0")
        assert hidden is args[1]
        assert residual is args[2]


@pytest.mark.parametrize("number", [None, "first", 1.0])
def test_a_layer_number_that_is_no_integer_says_nothing_about_stages(number: object) -> None:
    model = Stack()
    model.layers[0].layer_number = number  # type: ignore[assignment]
    with torch.no_grad(), capture_states(model, (1,)) as capture:
        model(start())
    assert capture.states[0][0, 0].item() == 1


def test_a_plan_out_of_ids_follows_their_convention() -> None:
    assert CapturePlan.from_ids([1, 17, 35], num_layers=36, convention=Convention.OUTPUT).states == (2, 18, 36)
    assert CapturePlan.from_ids([2, 36], num_layers=36, convention=Convention.HF).states == (2, POST_NORM)


def test_a_state_after_the_norm_of_an_idle_batch_is_refused_by_its_own_name() -> None:
    class SkipsTheNorm(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    model = SkipsTheNorm()
    with torch.no_grad(), capture_states(model, (POST_NORM,)) as capture:
        model(start((0,)))
    assert tuple(capture.states[0].shape) == (0, 4)
    says = r"^POST_NORM: keep_grad=True, but no graph is recorded here"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capture_states(model, (POST_NORM,), keep_grad=True):
        model(start((0,)))


@pytest.mark.parametrize(("number", "says"), [(0, "is the first one and must not get"), (1, "is not the first one and needs")])
def test_carried_states_are_for_every_stage_but_the_first(number: int, says: str) -> None:
    plan, layout = CapturePlan((6, 2), BLOCKS), StageLayout.even(BLOCKS, 2)
    carried = Carried(plan, 3, {2: start()}) if number == 0 else None
    blocks = [PlainBlock(i) for i in range(3)]
    first, last = (0, 2) if number == 0 else (3, 5)
    message = f"the stage of blocks {first}..{last} {says} carried"
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}"):
        run_stage(layout.stage(number), blocks, start(), plan, carried=carried)

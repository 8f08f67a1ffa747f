"""What hooks read out of unusual blocks, and the figures in refusals."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, CapturePlan, Carried, StageLayout, capture_states, run_stage, skip_stage
from specalign.capture.parts import find_parts
from specalign.capture.passes import Pass, Reading, read_input
from specalign.capture.stream import Copying
from specalign.layer_ids import POST_NORM, Convention
from tests.unit.capture.probes import BLOCKS, PlainBlock, ResidualBlock, Stack, TimesThousand, start
from tests.unit.capture.refused import refused


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


def test_names_that_are_known_already_are_not_read_from_the_block_again() -> None:
    class Anything(PlainBlock):
        def forward(self, *args: Tensor) -> Tensor:  # type: ignore[override]
            return args[1] + args[2]

    model = Stack([Anything(0)])
    parts = find_parts(model, blocks=None, final_norm=None, stage=None, needs_norm=False)
    current = Pass(CapturePlan((0,), 1), parts, Copying(), Reading())
    current.parameter_names = {id(model.layers[0]): ("positions", "hidden_states", "residual")}
    current.enter_block(0, model.layers[0], (torch.zeros(3), start() + 5, start() + 1), {})
    assert current.captured[0][0, 0].item() == 6


def test_a_residual_that_is_changed_in_place_between_blocks_is_refused() -> None:
    class Meddles(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            residual = None
            for layer in self.layers:
                hidden, residual = layer(hidden, residual)
                residual.add_(0.5)
            return hidden

    says = "the output of block 2 was changed in place before block 3 read it"
    refused(Meddles(residual=True), (3,), says)


def test_blocks_out_of_turn_are_refused_with_what_to_do() -> None:
    class Skips(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            return self.layers[2](self.layers[0](hidden))

    says = r"block 2 ran, and block 1 was next: .* If the model runs others, pass blocks= in the order they run in$"
    refused(Skips(), (1,), says)


def test_only_the_name_of_post_norm_gets_the_hint_about_names() -> None:
    has = "a 6-layer target has boundaries 0..6 and POST_NORM"
    for state, kind, hint in (
        ("norm", "str", ""),
        (None, "NoneType", ""),
        ("POST_NORM", "str", " (specalign.layer_ids.POST_NORM is the state, not its name)"),
    ):
        says = f"state {state!r} is a {kind}, neither a boundary nor POST_NORM{hint}: {has}"
        with pytest.raises(CaptureError, match=f"^{re.escape(says)}$"):
            CapturePlan((state,), 6)  # type: ignore[arg-type]


class HalfSum(ResidualBlock):
    """One of two ranks: half of its own sum, in front of a residual that is whole. Boundary b of a stream of ones is 2**b."""

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        whole = hidden_states if residual is None else residual + hidden_states * 2
        return torch.full_like(whole, 2.0**self.number / 2), whole


def test_partial_sums_are_completed_on_every_stage() -> None:
    plan, layout = CapturePlan((0, 1, 3, 4, 6, POST_NORM), BLOCKS), StageLayout.even(BLOCKS, 2)
    stream: Any = ((start() + 1).requires_grad_(), None)
    carried, result = None, None
    for number in range(2):
        stage = layout.stage(number)
        blocks = [HalfSum(i) for i in range(stage.start, stage.end)]
        options = {"final_norm": TimesThousand(), "complete": lambda hidden: hidden * 2}
        result = run_stage(stage, blocks, stream, plan, carried=carried, **options)
        stream, carried = (result.hidden, result.residual), result.carried
    assert result is not None
    assert result.states is not None
    assert [tensor[0, 0].item() for tensor in result.states] == [1, 2, 8, 16, 64, 64000]
    assert not any(tensor.requires_grad for tensor in result.states)


def test_gradients_reach_every_stage_through_kept_states() -> None:
    plan, layout = CapturePlan((6,), BLOCKS), StageLayout.even(BLOCKS, 2)
    blocks = [PlainBlock(i) for i in range(BLOCKS)]
    first = run_stage(layout.stage(0), blocks[:3], start(), plan, keep_grad=True)
    assert first.hidden is not None
    last = run_stage(layout.stage(1), blocks[3:], first.hidden, plan, carried=first.carried, keep_grad=True)
    assert last.states is not None
    last.states[0].sum().backward()
    assert [block.scale.grad.item() for block in blocks if block.scale.grad is not None] == [12 * 2**i for i in range(BLOCKS)]


@pytest.mark.parametrize(
    ("width", "dtype", "says"),
    [(8, torch.bfloat16, "boundary 2 is 8 wide, not 4"), (4, torch.float32, "boundary 2 is torch.float32, not torch.bfloat16")],
)
def test_a_skipped_stage_refuses_carried_states_of_another_width_or_dtype(width: int, dtype: Any, says: str) -> None:
    plan, stage = CapturePlan((6, 2), BLOCKS), StageLayout.even(BLOCKS, 2).stage(1)
    carried = Carried(plan, 3, {2: torch.zeros(0, width, dtype=dtype)})
    with pytest.raises(CaptureError, match=f"^{re.escape(says)}"):
        skip_stage(stage, plan, width=4, dtype=torch.bfloat16, carried=carried)

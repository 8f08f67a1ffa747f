"""What could be read in two ways is refused by name; nothing wrong is ever handed on."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, capture_states
from specalign.layer_ids import POST_NORM
from tests.unit.capture.probes import BLOCKS, PlainBlock, ResidualBlock, Stack, TimesThousand, Wrapped, start
from tests.unit.capture.refused import refused


class Running(Stack):
    """A stack whose forward is the function given."""

    def __init__(self, run: Callable[[Running, Tensor], Tensor], *, residual: bool = False) -> None:
        super().__init__(residual=residual)
        self.run = run

    def forward(self, hidden: Tensor) -> Tensor:
        return self.run(self, hidden)


def test_blocks_that_are_no_part_of_the_model_are_refused() -> None:
    refused(Stack(), (1,), "a PlainBlock that was passed is no part of the Stack", blocks=[PlainBlock(0)])
    refused(Stack(), (1, POST_NORM), "a TimesThousand that was passed is no part", final_norm=TimesThousand())


def test_one_module_for_two_blocks_is_refused() -> None:
    shared = PlainBlock(0)
    refused(Stack([shared, PlainBlock(1), shared]), (1,), "one module stands for several blocks")


def test_two_stacks_are_refused_and_named() -> None:
    model = Wrapped(Stack())
    model.decoder = Stack()
    refused(model, (1,), "Wrapped: blocks were found in model.layers, decoder.layers. Pass blocks=")


def test_two_norms_are_refused_when_one_is_needed() -> None:
    model = Stack()
    model.final_norm = nn.Identity()
    refused(model, (POST_NORM,), "Stack has norm, final_norm: pass final_norm=")
    with capture_states(model, (6,)) as capture:
        model(start())
    assert capture.states[0][0, 0].item() == 63


def skips_a_block(model: Running, hidden: Tensor) -> Tensor:
    for layer in [*model.layers[:3], *model.layers[4:]]:
        hidden = layer(hidden)
    return hidden


def stops_early(model: Running, hidden: Tensor) -> Tensor:
    return model.layers[1](model.layers[0](hidden))


def runs_a_block_twice(model: Running, hidden: Tensor) -> Tensor:
    for layer in [*model.layers[:3], *model.layers[2:]]:
        hidden = layer(hidden)
    return hidden


def runs_two_micro_batches(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        layer(hidden[:1])
        hidden = layer(hidden)
    return hidden


def runs_a_block_inside_another(model: Running, hidden: Tensor) -> Tensor:
    inner, outer = model.layers[1], model.layers[0]
    outer.forward = lambda hidden: inner(hidden) + 1  # type: ignore[method-assign]
    for layer in [outer, *model.layers[2:]]:
        hidden = layer(hidden)
    return hidden


def goes_backwards(model: Running, hidden: Tensor) -> Tensor:
    for layer in reversed(model.layers):
        hidden = layer(hidden)
    return hidden


def calls_forward_itself(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer.forward(hidden)
    return hidden


def adds_features(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden) + 0.5
    return hidden


def adds_in_place(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
        hidden.add_(0.5)
    return hidden


def cuts_rows(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)[:2]
    return hidden


def norms_twice(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
    model.norm(hidden)
    return model.norm(hidden)


def norms_too_early(model: Running, hidden: Tensor) -> Tensor:
    return skips_a_block(model, model.norm(hidden))


def norms_something_else(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
    return model.norm(hidden + 1)


def norms_the_last_row_only(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
    return model.norm(hidden[-1:])


def never_norms(model: Running, hidden: Tensor) -> Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
    return hidden


def calls_itself(model: Running, hidden: Tensor) -> Tensor:
    if hidden[0, 0] == 0:
        model(hidden + 1)
    return never_norms(model, hidden)


@pytest.mark.parametrize(
    ("run", "states", "says"),
    [
        (skips_a_block, (1,), "block 4 ran, and block 3 was next"),
        (stops_early, (1,), r"2 of 6 blocks ran through their hooks \(block 2 did not\)"),
        (runs_a_block_twice, (1,), "block 2 ran twice in one forward"),
        (runs_two_micro_batches, (1,), "block 0 ran twice in one forward"),
        (runs_a_block_inside_another, (1,), "block 1 ran, and block 0 was next"),
        (goes_backwards, (1,), "block 5 ran, and block 0 was next"),
        (calls_forward_itself, (1,), "calls block.forward itself"),
        (adds_features, (3,), "block 3 reads another hidden than block 2 returned"),
        (adds_in_place, (3,), "the output of block 2 was changed in place before block 3 read it"),
        (cuts_rows, (1,), "block 1 reads another hidden than block 0 returned"),
        (norms_twice, (POST_NORM,), "the final norm ran twice"),
        (norms_too_early, (POST_NORM,), "the final norm ran after 0 of 6 blocks"),
        (norms_something_else, (POST_NORM,), "the final norm reads another hidden than block 5 returned"),
        (norms_the_last_row_only, (POST_NORM,), "the final norm reads another hidden than block 5 returned"),
        (never_norms, (POST_NORM,), "POST_NORM never came by"),
        (calls_itself, (1,), "was called while a forward of it was running"),
    ],
)
def test_a_forward_that_is_not_one_walk_over_the_blocks_is_refused(run: Any, states: Any, says: str) -> None:
    with torch.no_grad():
        refused(Running(run), states, says)


def test_a_residual_dropped_between_blocks_is_refused() -> None:
    def drops(model: Running, hidden: Tensor) -> Tensor:
        for layer in model.layers:
            hidden, _ = layer(hidden, None)
        return hidden

    refused(Running(drops, residual=True), (3,), "block 3 reads another residual than block 2 returned")


def test_a_second_tensor_that_the_next_block_does_not_read_is_no_residual() -> None:
    class WithContext(PlainBlock):
        def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return hidden_states + 1, torch.ones_like(hidden_states)

    def run(model: Running, hidden: Tensor) -> Tensor:
        for layer in model.layers:
            hidden, _ = layer(hidden)
        return hidden

    model = Running(run)
    model.layers = nn.ModuleList(WithContext(number) for number in range(BLOCKS))
    refused(model, (3,), "block 3 reads another residual than block 2 returned")


def test_equal_bits_under_another_name_are_the_same_stream() -> None:
    def copies(model: Running, hidden: Tensor) -> Tensor:
        for layer in model.layers:
            hidden = layer(hidden).clone()
        return model.norm(hidden)

    with torch.no_grad(), capture_states(model := Running(copies), (3, 6, POST_NORM)) as capture:
        model(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == [7, 63, 63000]


def test_a_partial_sum_is_refused_unless_completed() -> None:
    class Marks(ResidualBlock):
        def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            whole = hidden_states.clone() if residual is None else residual + hidden_states * 2
            half = torch.full_like(whole, 2.0**self.number / 2)
            half._sglang_needs_allreduce_fusion = True  # type: ignore[attr-defined]
            return half, whole

    def model() -> Stack:
        made = Stack(residual=True)
        made.layers = nn.ModuleList(Marks(number) for number in range(BLOCKS))
        return made

    refused(model(), (3,), "boundary 3: hidden is a partial sum")
    with torch.no_grad(), capture_states(whole := model(), (0, 3, 6), complete=lambda hidden: hidden.mul_(2)) as capture:
        whole(start() + 1)
    assert [tensor[0, 0].item() for tensor in capture.states] == [1, 8, 64]


def test_an_inner_module_that_is_called_directly_is_refused() -> None:
    model = Wrapped(Stack())
    with pytest.raises(CaptureError, match="block 0 ran outside of a forward of the Wrapped"), capture_states(model, (1,)):
        model.model(start())


def test_blocks_that_run_in_another_thread_are_refused() -> None:
    def elsewhere(model: Running, hidden: Tensor) -> Tensor:
        caught: list[BaseException] = []

        def work() -> None:
            try:
                model.layers[0](hidden)
            except CaptureError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise caught[0]

    refused(Running(elsewhere), (1,), "block 0 ran in another thread")


def test_an_interrupt_leaves_no_half_forward_behind() -> None:
    def interrupted(model: Running, hidden: Tensor) -> Tensor:
        if hidden[0, 0] == 0:
            raise KeyboardInterrupt
        return never_norms(model, hidden)

    model = Running(interrupted)
    with capture_states(model, (6,)) as capture:
        with pytest.raises(KeyboardInterrupt):
            model(start())
        with pytest.raises(CaptureError, match="or after an interrupt"):
            model(start() + 1)
        model(start() + 1)
    assert [tensor[0, 0].item() for tensor in capture.states] == [64]


def test_a_norm_that_cuts_rows_is_refused_even_if_nothing_else_is_captured() -> None:
    def walks(model: Running, hidden: Tensor) -> Tensor:
        return model.norm(never_norms(model, hidden))

    model = Running(walks)
    model.norm.forward = lambda hidden: hidden[-1:]  # type: ignore[method-assign]
    refused(model, (POST_NORM,), r"POST_NORM has rows \[1\], not \[3\]")


def test_states_of_different_dtypes_are_refused_by_name() -> None:
    def widens(model: Running, hidden: Tensor) -> Tensor:
        for layer in model.layers:
            hidden = layer(hidden)
        return model.norm(hidden)

    model = Running(widens)
    model.norm.forward = lambda hidden: hidden.double()  # type: ignore[method-assign]
    refused(model, (6, POST_NORM), "POST_NORM is torch.float64, not torch.float32")

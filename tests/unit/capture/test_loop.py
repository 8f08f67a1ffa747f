"""The capture loop on probe blocks whose boundary b is 2**b - 1."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor

from specalign.capture import CaptureError, CapturePlan, capture_loop
from specalign.layer_ids import POST_NORM
from tests.unit.capture.probes import BLOCKS, InPlaceBlock, PlainBlock, ResidualBlock, TimesThousand, boundary, start

KINDS = {"plain": PlainBlock, "in place": InPlaceBlock, "residual": ResidualBlock}
ALL = (*range(BLOCKS + 1), POST_NORM)

# torch 2.11 warns about its own code when the compiler is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")


def run(kind: str, states: Any, *, rows: tuple[int, ...] = (3,), dtype: Any = None, **options: Any) -> Any:
    blocks = [KINDS[kind](number) for number in range(BLOCKS)]
    hidden = start(rows, dtype or torch.float32)
    stream = (hidden, None) if kind == "residual" else hidden
    plan = CapturePlan(states, BLOCKS, options.pop("duplicates", "refuse"))
    options.setdefault("final_norm", TimesThousand() if POST_NORM in states else None)
    with torch.no_grad():
        return capture_loop(blocks, stream, plan, **options)


def expected(state: Any, like: Tensor) -> Tensor:
    return boundary(BLOCKS, like) * 1000.0 if state is POST_NORM else boundary(state, like)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_state_is_what_the_closed_form_says(kind: str, dtype: str) -> None:
    result = run(kind, ALL, dtype=getattr(torch, dtype))
    for state, tensor in zip(ALL, result.states, strict=True):
        assert tensor.dtype == getattr(torch, dtype)
        assert torch.equal(tensor, expected(state, tensor)), state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("states", [(6, 0, 3), (6,), (5, 6), (POST_NORM, 2), (0,), (3, 2, 1)])
def test_the_order_asked_for_is_kept_and_n_is_reached(kind: str, states: Any) -> None:
    result = run(kind, states)
    assert [tensor[0, 0].item() for tensor in result.states] == [expected(state, start())[0, 0].item() for state in states]


def test_a_duplicate_is_honoured_when_asked_for() -> None:
    assert [tensor[0, 0].item() for tensor in run("residual", (4, 2, 4), duplicates="keep").states] == [15, 3, 15]


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_in_place_add_changes_no_captured_state(kind: str) -> None:
    result = run(kind, ALL, rows=(2, 5))
    result.hidden.add_(777)
    if result.residual is not None:
        result.residual.add_(777)
    for state, tensor in zip(ALL, result.states, strict=True):
        assert torch.equal(tensor, expected(state, tensor)), state


def test_the_final_norm_gets_a_copy() -> None:
    result = run("plain", (6, POST_NORM), final_norm=lambda hidden: hidden.mul_(1000.0))
    assert [tensor[0, 0].item() for tensor in (result.hidden, *result.states)] == [63, 63, 63000]


def test_the_stream_goes_on_unchanged() -> None:
    result = run("residual", (1, 6))
    assert torch.equal(result.hidden + result.residual, boundary(6, result.hidden))


@pytest.mark.parametrize("rows", [(0,), (2, 0), (0, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_batch_gives_empty_states(kind: str, rows: tuple[int, ...]) -> None:
    result = run(kind, (6, 0, POST_NORM), rows=rows, dtype=torch.bfloat16)
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in result.states] == [((*rows, 4), torch.bfloat16)] * 3


def test_post_norm_without_a_final_norm_is_refused_before_a_block_runs() -> None:
    def never(hidden: Tensor) -> Tensor:
        raise RuntimeError("ran")

    with pytest.raises(CaptureError, match="no final norm was given"):
        capture_loop([never], start(), CapturePlan((POST_NORM,), 1))


def test_the_final_norm_is_not_called_unless_post_norm_is_asked_for() -> None:
    def never(hidden: Tensor) -> Tensor:
        raise RuntimeError("ran")

    assert run("plain", (6,), final_norm=never).states[0][0, 0].item() == 63


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(CaptureError, match="2 blocks for a plan of 3 layers"):
        capture_loop([PlainBlock(0), PlainBlock(1)], start(), CapturePlan((3,), 3))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (lambda hidden: None, "block 0 returned None"),
        (lambda hidden: (hidden, hidden[:1]), r"block 0 returned \(float32\[3, 4\], float32\[1, 4\]\)"),
        (lambda hidden: (hidden, None, hidden), "block 0 returned"),
        (lambda hidden: (hidden, hidden, hidden), "block 0 returned"),
        (lambda hidden: {"hidden": hidden}, "block 0 returned dict"),
        (lambda hidden: (hidden, hidden), r"start it with \(hidden, None\)"),
    ],
)
def test_a_block_that_can_be_read_in_two_ways_is_refused(output: Any, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        capture_loop([output, PlainBlock(1)], start(), CapturePlan((2,), 2))


def test_integers_beside_hidden_are_no_residual() -> None:
    blocks = [lambda hidden: (hidden + 1, torch.zeros(3, 4, dtype=torch.int64))]
    assert capture_loop(blocks, start(), CapturePlan((1,), 1)).states[0][0, 0].item() == 1


def test_a_dropped_residual_is_refused() -> None:
    def drops(hidden: Tensor, residual: Tensor | None) -> Tensor:
        return hidden

    with pytest.raises(CaptureError, match=r"took .hidden, residual. and returned hidden alone"):
        capture_loop([ResidualBlock(0), drops], (start(), None), CapturePlan((2,), 2))


def test_a_block_that_cuts_rows_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"boundary 2 has rows \[1\], not \[3\]"):
        capture_loop([PlainBlock(0), lambda hidden: hidden[-1:]], start(), CapturePlan((2,), 2))


def test_a_block_that_changes_the_width_is_refused() -> None:
    with pytest.raises(CaptureError, match="boundary 1 is 8 wide, not 4"):
        capture_loop([lambda hidden: torch.cat([hidden, hidden], -1)], start(), CapturePlan((1,), 1))


def test_blocks_may_take_more_than_the_stream() -> None:
    seen = []

    def call(block: Any, hidden: Tensor, residual: Tensor | None) -> Any:
        seen.append(block.number)
        return block(hidden, residual)

    assert [t[0, 0].item() for t in run("residual", (0, 6), call=call).states] == [0, 63]
    assert seen == list(range(BLOCKS))


def test_partial_sums_of_two_ranks_are_completed_once() -> None:
    """Each of two ranks holds half of every block's sum; the embedding output and the residual are whole on both."""

    class Half(ResidualBlock):
        def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            whole = hidden_states if residual is None else residual + hidden_states * 2  # the rank's own all-reduce
            return torch.full_like(whole, 2.0**self.number / 2), whole

    plan = CapturePlan((0, 1, 6, POST_NORM), 6)
    blocks = [Half(number) for number in range(6)]
    options = {"final_norm": TimesThousand(), "complete": lambda hidden: hidden.mul_(2)}
    with torch.no_grad():
        result = capture_loop(blocks, (start() + 1, None), plan, **options)
    assert [tensor[0, 0].item() for tensor in result.states] == [1, 2, 64, 64000]
    assert result.hidden[0, 0].item() == 16, "complete() worked on a copy: the stream still holds the partial sum"


def test_a_marked_partial_sum_is_refused_unless_completed() -> None:
    def marks(hidden: Tensor) -> Tensor:
        half = hidden + 0.5
        half._sglang_needs_allreduce_fusion = True  # type: ignore[attr-defined]
        return half

    with pytest.raises(CaptureError, match="boundary 1: hidden is a partial sum"):
        capture_loop([marks], start(), CapturePlan((1,), 1))
    done = capture_loop([marks], start(), CapturePlan((1,), 1), complete=lambda hidden: hidden * 2)
    assert done.states[0][0, 0].item() == 1


def test_complete_must_keep_the_shape() -> None:
    with pytest.raises(CaptureError, match=r"complete\(\) made float32\[1, 4\] out of float32\[3, 4\]"):
        run("plain", (1,), complete=lambda hidden: hidden[:1])


def test_states_are_detached_unless_gradients_are_kept() -> None:
    blocks = [PlainBlock(number) for number in range(3)]
    plan = CapturePlan((0, 3, POST_NORM), 3)
    embedded = start().requires_grad_()
    detached = capture_loop(blocks, embedded, plan, final_norm=TimesThousand())
    assert not any(tensor.requires_grad for tensor in detached.states)
    assert detached.hidden.requires_grad
    kept = capture_loop(blocks, embedded, plan, final_norm=TimesThousand(), keep_grad=True)
    torch.stack(kept.states[:2]).sum().backward()
    assert [block.scale.grad.item() for block in blocks] == [12, 24, 48], "d boundary 3 / d scale of block i is 2**i"


def test_gradients_cannot_be_kept_where_none_are_recorded() -> None:
    with pytest.raises(CaptureError, match="boundary 1: keep_grad=True, but no graph is recorded"):
        run("plain", (1,), keep_grad=True)


def test_states_of_inference_mode_may_enter_training() -> None:
    with torch.inference_mode():
        result = run("residual", (2, POST_NORM))
    weight = torch.ones(4, requires_grad=True)
    (result.states[0] * weight + result.states[1] * weight).sum().backward()
    assert weight.grad is not None
    assert not result.states[1].is_inference()


@pytest.mark.parametrize("stream", [None, (start(), "x"), (None, None), [1, 2], (start(), None, None)])
def test_a_stream_is_hidden_or_a_pair(stream: Any) -> None:
    with pytest.raises(CaptureError, match="the stream is hidden or"):
        capture_loop([PlainBlock(0)], stream, CapturePlan((1,), 1))


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_a_function_around_the_loop_compiles_without_a_graph_break(kind: str) -> None:
    blocks = [KINDS[kind](number) for number in range(BLOCKS)]
    plan = CapturePlan((6, 0, POST_NORM), BLOCKS)

    def forward(hidden: Tensor) -> tuple[Tensor, ...]:
        stream = (hidden, None) if kind == "residual" else hidden
        return capture_loop(blocks, stream, plan, final_norm=TimesThousand()).states

    torch._dynamo.reset()
    with torch.no_grad():
        states = torch.compile(forward, backend="aot_eager", fullgraph=True)(start())
    assert [tensor[0, 0].item() for tensor in states] == [63, 0, 63000]

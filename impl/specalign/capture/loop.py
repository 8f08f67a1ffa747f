"""The capture loop: run blocks one after another and keep the boundaries between them.

Boundary 0 is read before the loop, boundary i+1 after block i. The last block is no exception: boundary n comes from the same
line as every other, before the final norm. (Engines that read a boundary as the input of a block lose boundary n, since no
block follows: sglang issue #32226, vllm #46973.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from specalign.capture.errors import CaptureError
from specalign.capture.plan import CapturePlan
from specalign.capture.stream import Complete, Copying, own, snapshot, split_output
from specalign.layer_ids import POST_NORM, State

Stream: TypeAlias = Tensor | tuple[Tensor, Tensor | None]
"""The residual stream: `hidden`, or `(hidden, residual)` for blocks that carry a residual; `(hidden, None)` before block 0."""

Block: TypeAlias = Callable[..., Any]
Call: TypeAlias = Callable[[Block, Tensor, Tensor | None], Any]
"""`call(block, hidden, residual)`: runs one block, with whatever else it needs (positions, masks, a KV cache)."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LoopResult:
    """What a run of all blocks gave.

    Attributes:
        hidden: what the last block returned, `[*rows, width]`; it is not a captured state and may be changed in place.
        residual: the residual that goes with it, or None.
        states: the states asked for, in the order asked for; none shares memory with the stream.
    """

    hidden: Tensor
    residual: Tensor | None
    states: tuple[Tensor, ...]


def capture_loop(
    blocks: Sequence[Block],
    stream: Stream,
    plan: CapturePlan,
    *,
    final_norm: Callable[[Tensor], Any] | None = None,
    call: Call | None = None,
    complete: Complete | None = None,
    keep_grad: bool = False,
) -> LoopResult:
    """Run all `blocks` over `stream` and capture the states of `plan`.

    Args:
        blocks: the n blocks. Each takes and returns the stream: `block(hidden)`, or `block(hidden, residual)` if `stream` is a
            pair.
        stream: the embedding output `[*rows, width]`, or `(embedding output, None)` for blocks that carry a residual.
        plan: what to capture; its `num_layers` must be `len(blocks)`.
        final_norm: needed for `POST_NORM` only, and then called on a copy of boundary n.
        call: runs one block, for blocks that take more than the stream.
        complete: completes the partial sum of a tensor-parallel block before its residual is added; it gets a copy.
        keep_grad: keep the autograd graph of the states; otherwise they are detached.

    Raises:
        CaptureError: too few or too many blocks, a block that returns something else, states of the wrong number, width, rows
            or dtype. Nothing is handed on then.
    """
    if len(blocks) != plan.num_layers:
        raise CaptureError(
            f"{len(blocks)} blocks for a plan of {plan.num_layers} layers: pass every block; for a part of them, see run_stage"
        )
    check_final_norm(plan, final_norm)
    hidden, residual, captured = walk(
        blocks, stream, wanted=plan.wanted, start=0, call=call, copying=Copying(keep_grad, complete), final_norm=final_norm
    )
    first = split_stream(stream)[0]
    return LoopResult(hidden, residual, plan.arrange(captured, width=first.shape[-1], rows=first.shape[:-1]))


def walk(
    blocks: Sequence[Block],
    stream: Stream,
    *,
    wanted: Collection[State],
    start: int,
    call: Call | None,
    copying: Copying,
    final_norm: Callable[[Tensor], Any] | None,
) -> tuple[Tensor, Tensor | None, dict[State, Tensor]]:
    """Run blocks `start`, `start + 1`, … and capture those of `wanted` that lie here: (hidden, residual, captured)."""
    hidden, residual = split_stream(stream)
    run = call or (_call_with_residual if isinstance(stream, tuple) else _call_plain)
    captured: dict[State, Tensor] = {}
    # What stands before the loop owes nothing: completing it would add it up once for each rank.
    whole = dataclasses.replace(copying, complete=None)
    if start in wanted:
        captured[start] = snapshot(hidden, residual, whole, f"boundary {start}")
    for number, block in enumerate(blocks, start):
        hidden, residual = split_output(run(block, hidden, residual), f"block {number}")
        if number + 1 in wanted:
            captured[number + 1] = snapshot(hidden, residual, copying, f"boundary {number + 1}")
    if POST_NORM in wanted and final_norm is not None:
        captured[POST_NORM] = _normed(final_norm, hidden, residual, copying if blocks else whole)
    return hidden, residual, captured


def check_final_norm(plan: CapturePlan, final_norm: object) -> None:
    """Raises `CaptureError` if `POST_NORM` is asked for and there is no final norm to make it."""
    if POST_NORM in plan.states and final_norm is None:
        raise CaptureError(
            f"POST_NORM is asked for and no final norm was given: pass final_norm=. If boundary {plan.num_layers}, the stream"
            " before the norm, is what the head was trained on, ask for that"
        )


def split_stream(stream: object) -> tuple[Tensor, Tensor | None]:
    """`(hidden, residual)` of the stream that a loop starts with. Raises `CaptureError` for anything else."""
    if isinstance(stream, Tensor):
        return stream, None
    if isinstance(stream, tuple) and len(stream) == 2:
        hidden, residual = stream
        if isinstance(hidden, Tensor) and (residual is None or isinstance(residual, Tensor)):
            return hidden, residual
    raise CaptureError("the stream is hidden or (hidden, residual), with None for a residual that does not exist yet")


def _call_plain(block: Block, hidden: Tensor, residual: Tensor | None) -> Any:
    if residual is not None:
        # Going on with hidden alone would drop what the residual holds.
        raise CaptureError(
            "a block returned (hidden, residual), but the loop was started with hidden alone: start it with (hidden, None), so"
            " that every block is called as block(hidden, residual)"
        )
    return block(hidden)


def _call_with_residual(block: Block, hidden: Tensor, residual: Tensor | None) -> Any:
    output = block(hidden, residual)
    if residual is not None and isinstance(output, Tensor):
        raise CaptureError(
            "a block took (hidden, residual) and returned hidden alone: is the residual dropped, or summed already? Return"
            " (hidden, residual), or (hidden, None) if hidden holds the sum"
        )
    return output


def _normed(final_norm: Callable[[Tensor], Any], hidden: Tensor, residual: Tensor | None, copying: Copying) -> Tensor:
    normed = final_norm(snapshot(hidden, residual, copying, "POST_NORM"))
    if not isinstance(normed, Tensor):
        raise CaptureError(f"final_norm returned a {type(normed).__name__}, not a tensor: POST_NORM is final_norm(boundary n)")
    return own(normed, copying)

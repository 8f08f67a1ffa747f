"""Capture over pipeline stages: each boundary is captured once, and earlier stages' states travel with the stream.

Blocks are numbered globally. The boundary on the edge between two stages belongs to the stage that ends there, because every
boundary but 0 is read after a block; the first stage owns boundary 0, the last one `POST_NORM`. Engines that number blocks
locally, read the edge twice, or capture on the last stage only, lose or repeat states (vllm #36151, #50514, #53901).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specalign.capture.errors import CaptureError
from specalign.capture.loop import Block, Call, Stream, check_final_norm, split_stream, walk
from specalign.capture.plan import CapturePlan, empty_state, name_of
from specalign.capture.stream import Complete, Copying
from specalign.layer_ids import POST_NORM, State, format_states

KEY_PREFIX = "boundary."
"""Names of carried tensors: `boundary.24`, as in dumps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: blocks start..end-1 of a target of `num_layers` blocks. Made by `StageLayout` or `Stage.whole`."""

    start: int
    end: int
    num_layers: int
    first: bool
    last: bool

    @classmethod
    def whole(cls, num_layers: int) -> Stage:
        """The only stage of a model that is not split."""
        return cls(0, num_layers, num_layers, first=True, last=True)

    def owned(self, plan: CapturePlan) -> tuple[State, ...]:
        """The states of `plan` that this stage captures: each state belongs to exactly one stage of a layout."""
        return tuple(state for state in plan.wanted if self._owns(state))

    def _owns(self, state: State) -> bool:
        if state is POST_NORM:
            return self.last
        return self.start < state <= self.end or (state == 0 and self.first)


@dataclasses.dataclass(frozen=True, slots=True)
class StageLayout:
    """How the blocks of a target are split.

    Attributes:
        ranges: `(start, end)` of each stage in order: blocks start..end-1. A stage without blocks (start == end) is allowed.
        num_layers: n.

    Raises:
        CaptureError: a gap, an overlap, or blocks left over.
    """

    ranges: tuple[tuple[int, int], ...]
    num_layers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", tuple((start, end) for start, end in self.ranges))
        if not self.ranges:
            raise CaptureError("a layout needs at least one stage")
        expected = 0
        for number, (start, end) in enumerate(self.ranges):
            if start != expected or end < start:
                raise CaptureError(
                    f"stage {number} holds blocks {start}..{end - 1}, and must begin with block {expected}: stages follow one"
                    f" another without gap or overlap. The ranges are {list(self.ranges)}, (start, end) with end excluded"
                )
            expected = end
        if expected != self.num_layers:
            raise CaptureError(f"the stages end at block {expected - 1}, and the target has {self.num_layers} blocks")

    @classmethod
    def even(cls, num_layers: int, stages: int) -> StageLayout:
        """`stages` stages of equal size; the first ones get one block more where it does not divide."""
        if not 1 <= stages <= num_layers:
            raise CaptureError(f"{num_layers} blocks cannot be split over {stages} stages of at least one block")
        size, more = divmod(num_layers, stages)
        edges = [0]
        for number in range(stages):
            edges.append(edges[-1] + size + (number < more))
        return cls(tuple(itertools.pairwise(edges)), num_layers)

    def stage(self, number: int) -> Stage:
        """Stage `number`, counted from 0."""
        if not 0 <= number < len(self.ranges):
            raise CaptureError(f"there is no stage {number}: the layout has stages 0..{len(self.ranges) - 1}")
        start, end = self.ranges[number]
        return Stage(start, end, self.num_layers, first=number == 0, last=number == len(self.ranges) - 1)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """The states captured up to block `end` - 1, on their way to the next stage.

    Attributes:
        plan: the plan that all stages share.
        end: the boundary up to which everything was captured.
        tensors: one tensor `[*rows, width]` for each boundary of the plan up to `end`; `POST_NORM` after the last stage.
    """

    plan: CapturePlan
    end: int
    tensors: Mapping[State, Tensor]

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain named tensors for any transport (`boundary.24`). There may be none: then nothing has to be sent."""
        return {f"{KEY_PREFIX}{state}": tensor for state, tensor in self.tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], plan: CapturePlan, *, end: int) -> Carried:
        """The inverse of `to_tensors` on the stage that begins with block `end`; other names are left to their owners.

        Raises:
            CaptureError: a boundary that earlier stages own did not arrive, or another one did.
        """
        received: dict[State, Tensor] = {}
        for name, tensor in tensors.items():
            if name.startswith(KEY_PREFIX):
                received[_boundary_of(name)] = tensor
        expected = [state for state in plan.wanted if state is not POST_NORM and state <= end]
        missing = [state for state in expected if state not in received]
        surplus = [state for state in received if state not in expected]
        if missing or surplus:
            raise CaptureError(
                f"before block {end} the states {format_states(expected)} have been captured, and {format_states(received)}"
                f" arrived: missing {format_states(missing)}, not expected {format_states(surplus)}. Send all of"
                " Carried.to_tensors() along with the stream"
            )
        return cls(plan, end, {state: received[state] for state in expected})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StageResult:
    """What one stage gave.

    Attributes:
        hidden, residual: the stream after this stage's blocks, to be sent on; None for a stage that was skipped.
        carried: every state captured so far, to be sent with it.
        states: on the last stage, the states asked for in the order asked for; None before.
    """

    hidden: Tensor | None
    residual: Tensor | None
    carried: Carried
    states: tuple[Tensor, ...] | None


def run_stage(
    stage: Stage,
    blocks: Sequence[Block],
    stream: Stream,
    plan: CapturePlan,
    *,
    carried: Carried | None = None,
    final_norm: Callable[[Tensor], Any] | None = None,
    call: Call | None = None,
    complete: Complete | None = None,
    keep_grad: bool = False,
) -> StageResult:
    """Run the blocks of one stage and capture its states.

    Args:
        stage: which blocks these are.
        blocks: `stage.end - stage.start` blocks.
        stream: the embedding output on the first stage, else what the previous stage sent.
        plan: what to capture, over all stages.
        carried: what the previous stage sent; None on the first stage, and there only.
        final_norm, call, complete, keep_grad: as in `capture_loop`; `final_norm` is needed on the last stage only.

    Raises:
        CaptureError: as `capture_loop`; also for states of another stage or another batch.
    """
    hidden, residual = split_stream(stream)
    _check_stage(stage, plan, carried)
    if len(blocks) != stage.end - stage.start:
        raise CaptureError(f"{len(blocks)} blocks for a stage of blocks {stage.start}..{stage.end - 1}")
    if stage.last:
        check_final_norm(plan, final_norm)
    _check_same_batch(carried, hidden)
    width, rows = hidden.shape[-1], hidden.shape[:-1]
    hidden, residual, captured = walk(
        blocks,
        stream,
        wanted=stage.owned(plan),
        start=stage.start,
        call=call,
        copying=Copying(keep_grad, complete),
        final_norm=final_norm if stage.last else None,
    )
    carried = extend(stage, plan, carried, captured)
    states = plan.arrange(carried.tensors, width=width, rows=rows) if stage.last else None
    return StageResult(hidden, residual, carried, states)


def skip_stage(
    stage: Stage,
    plan: CapturePlan,
    *,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    rows: Sequence[int] = (0,),
    carried: Carried | None = None,
) -> StageResult:
    """The result of a stage for an idle batch that runs no block: empty states `[*rows, width]` of the right dtype.

    An engine whose blocks must run on idle batches (they hold collectives) calls `run_stage` with a stream of no rows.
    """
    _check_stage(stage, plan, carried)
    captured = {state: empty_state(width=width, dtype=dtype, device=device, rows=rows) for state in stage.owned(plan)}
    carried = extend(stage, plan, carried, captured)
    states = plan.arrange(carried.tensors, width=width, rows=rows, dtype=dtype) if stage.last else None
    return StageResult(None, None, carried, states)


def extend(stage: Stage, plan: CapturePlan, carried: Carried | None, captured: Mapping[State, Tensor]) -> Carried:
    """What this stage captured, joined to what earlier stages did.

    Raises:
        CaptureError: `captured` is not what this stage owns, or `carried` is of another plan or place.
    """
    _check_stage(stage, plan, carried)
    owned = stage.owned(plan)
    if set(captured) != set(owned):
        raise CaptureError(
            f"the stage of blocks {stage.start}..{stage.end - 1} owns {format_states(owned)} and captured"
            f" {format_states(captured)}"
        )
    return Carried(plan, stage.end, {**(carried.tensors if carried else {}), **captured})


def _check_stage(stage: Stage, plan: CapturePlan, carried: Carried | None) -> None:
    if stage.num_layers != plan.num_layers:
        raise CaptureError(f"a stage of a {stage.num_layers}-layer target, and a plan for {plan.num_layers} layers")
    if stage.first != (carried is None):
        have = "and must not get carried states" if stage.first else "and needs carried="
        raise CaptureError(
            f"the stage of blocks {stage.start}..{stage.end - 1} is {'' if stage.first else 'not '}the first one {have}: the"
            " states of earlier stages reach the draft head only through it"
        )
    if carried is not None and (carried.end != stage.start or carried.plan != plan):
        raise CaptureError(
            f"the carried states were captured up to boundary {carried.end} for {format_states(carried.plan.states)}; this stage"
            f" begins with block {stage.start} and captures for {format_states(plan.states)}"
        )


def _check_same_batch(carried: Carried | None, hidden: Tensor) -> None:
    for state, tensor in carried.tensors.items() if carried else ():
        if tensor.shape != hidden.shape:
            raise CaptureError(
                f"carried {name_of(state)} is {list(tensor.shape)} and the stream is {list(hidden.shape)}: they belong to"
                " different batches. Send states and stream in one message"
            )


def _boundary_of(name: str) -> int:
    number = name.removeprefix(KEY_PREFIX)
    if not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        raise CaptureError(f"carried tensor {name!r}: the names are {KEY_PREFIX}0, {KEY_PREFIX}1, …")
    return int(number)

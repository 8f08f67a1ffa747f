"""Capture from any `nn.Module` without touching its code: a context manager that hangs hooks on the blocks and takes them off."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn

from specalign.capture.errors import CaptureError
from specalign.capture.parts import ModelParts, find_parts
from specalign.capture.passes import Pass, Reading, ReadInput, ReadOutput
from specalign.capture.plan import CapturePlan, Duplicates, as_plan
from specalign.capture.refusals import check_running
from specalign.capture.stages import Carried, Stage, extend
from specalign.capture.stream import Complete, Copying
from specalign.capture.watch import Watch
from specalign.layer_ids import POST_NORM, State


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CapturedForward:
    """The states of one forward.

    Attributes:
        plan: what was asked for.
        stage: which blocks ran here.
        captured: one tensor `[*rows, width]` for each state that belongs to this stage.
        arranged: the states in the order asked for; None on a stage that is not the whole model.
    """

    plan: CapturePlan
    stage: Stage
    captured: Mapping[State, Tensor]
    arranged: tuple[Tensor, ...] | None

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states in the order asked for. Raises `CaptureError` on a pipeline stage, which holds a part of them only."""
        if self.arranged is None:
            raise CaptureError(
                f"blocks {self.stage.start}..{self.stage.end - 1} are one stage of {self.stage.num_layers}: call"
                " carry(what the stage before sent), send it on, and arrange it on the last stage"
            )
        return self.arranged

    def __getitem__(self, state: State) -> Tensor:
        """The tensor of one state."""
        if state not in self.captured:
            raise CaptureError(f"{state!r} is not among the captured states {list(self.captured)}")
        return self.captured[state]

    def carry(self, carried: Carried | None = None) -> Carried:
        """These states joined to those of earlier stages, to be sent on; on the last stage, `plan.arrange(….tensors)` them."""
        return extend(self.stage, self.plan, carried, self.captured)


class Capture(Watch[Pass], contextlib.AbstractContextManager["Capture"]):
    """Made by `capture_states`; see there. Enter it once. Captures of one model may be open at the same time."""

    caller = "capture_states"

    def __init__(self, model: nn.Module, plan: CapturePlan, parts: ModelParts, copying: Copying, reading: Reading) -> None:
        super().__init__(model, parts)
        self.plan = plan
        self._copying, self._reading = copying, reading
        self._forwards: list[CapturedForward] = []
        self._phase: Literal["new", "open", "closed"] = "new"

    @property
    def forwards(self) -> tuple[CapturedForward, ...]:
        """The forwards that ran to their end, in order.

        Raises:
            CaptureError: there was none.
        """
        if not self._forwards:
            raise CaptureError(
                f"no forward of the {type(self._model).__name__} was seen: it was not called while the capture was open, or it"
                " failed, or it ran where hooks do not (a CUDA graph replayed, a function compiled before, another copy of it)"
            )
        return tuple(self._forwards)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The states of the only forward, in the order asked for: tensors `[*rows, width]`.

        Raises:
            CaptureError: there was no forward, or more than one.
        """
        count = len(self.forwards)
        if count > 1:
            raise CaptureError(f"{count} forwards ran: which is meant? Read capture.forwards, or clear() between them")
        return self._forwards[0].states

    def clear(self) -> None:
        """Forget the forwards so far, so that a long run does not keep them all."""
        self._forwards.clear()

    def __enter__(self) -> Capture:
        if self._phase != "new":
            raise CaptureError(f"this capture is {self._phase}: it is entered once. Call capture_states again for another")
        self._put_on()
        self._phase = "open"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._phase = "closed"
        self._take_off()

    def _begin(self, args: Any, kwargs: Any) -> Pass:
        check_running()  # torch.compile may trace this by itself, and must run it instead
        return Pass(self.plan, self._parts, self._copying, self._reading)

    def _finish(self, current: Pass, output: Any) -> None:
        captured = current.finish()
        self._forwards.append(CapturedForward(self.plan, self._parts.stage, captured, self._arranged(current, captured)))

    def _arranged(self, current: Pass, captured: Mapping[State, Tensor]) -> tuple[Tensor, ...] | None:
        if not (self._parts.stage.first and self._parts.stage.last):
            return None
        if not current.width:
            return self.plan.arrange(captured)
        return self.plan.arrange(captured, width=current.width, rows=current.rows)


def capture_states(
    model: nn.Module,
    states: CapturePlan | Sequence[State],
    *,
    duplicates: Duplicates = "refuse",
    blocks: Sequence[nn.Module] | None = None,
    final_norm: nn.Module | None = None,
    stage: Stage | None = None,
    read_input: ReadInput | None = None,
    read_output: ReadOutput | None = None,
    complete: Complete | None = None,
    keep_grad: bool = False,
) -> Capture:
    """Capture states of the forwards that run while the context is open:

        with capture_states(model, [2, 18, 33]) as capture:
            model(input_ids)
        low, mid, high = capture.states

    Boundary 0 is what block 0 reads, boundary b what block b-1 returned (hidden + residual where a residual is carried),
    `POST_NORM` what the final norm returned. The copies share no memory with the model. Forward by forward: `capture.forwards`.

    Args:
        model: the module that you call.
        states: boundaries and `POST_NORM`, in the order in which you want them; or a plan.
        duplicates: see `CapturePlan`.
        blocks: the blocks in the order they run in; found under the names of transformers, Megatron, SGLang and vLLM otherwise.
        final_norm: the norm after the last block; needed for `POST_NORM`, found beside the blocks otherwise.
        stage: which blocks these are if the model is one pipeline stage.
        read_input: `(args, kwargs) -> (hidden, residual or None)` for blocks whose arguments are unusual.
        read_output: `output -> (hidden, residual or None)` for blocks whose result is unusual.
        complete: completes the partial sum of a tensor-parallel block; it gets a copy.
        keep_grad: keep the autograd graph of the states; otherwise they are detached.

    Raises:
        CaptureError: here or on entering, if the model cannot be captured from (compiled code, CUDA graphs, no blocks found);
            from inside the model's forward, if what is seen there is not what was asked for; from `states` and `forwards`, if
            no forward was seen. Hooks are removed in every case.
    """
    wanted = states.states if isinstance(states, CapturePlan) else states
    needs_norm = isinstance(wanted, Iterable) and any(state is POST_NORM for state in wanted)
    parts = find_parts(model, blocks=blocks, final_norm=final_norm, stage=stage, needs_norm=needs_norm)
    plan = as_plan(states, parts.stage.num_layers, duplicates)
    return Capture(model, plan, parts, Copying(keep_grad, complete), Reading(read_input, read_output))

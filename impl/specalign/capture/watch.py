"""Hooks on the blocks of one model, put on and taken off again: what capture and recording have in common."""

from __future__ import annotations

import abc
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

from specalign.capture.errors import CaptureError
from specalign.capture.parts import ModelParts
from specalign.capture.passes import Pass
from specalign.capture.refusals import check_hookable, check_running, in_backward

P = TypeVar("P", bound=Pass)


class Watch(abc.ABC, Generic[P]):
    """Follows the forwards of one model, one at a time. Several watches of one model may be open at once.

    Subclasses say what a forward begins with (`_begin`) and what becomes of it (`_finish`, `_abandon`). A block that runs inside
    backward is activation recomputation: it belongs to no forward (`_enter_again`, `_leave_again`).
    """

    caller: ClassVar[str]
    """The function that the user called, for messages."""

    def __init__(self, model: nn.Module, parts: ModelParts) -> None:
        self._model, self._parts = model, parts
        self._handles: list[Any] = []
        self._pass: P | None = None
        self._running = False
        self._pending_error: BaseException | None = None

    @abc.abstractmethod
    def _begin(self, args: Any, kwargs: Any) -> P | None:
        """A forward begins; None lets it pass by."""

    @abc.abstractmethod
    def _finish(self, current: P, output: Any) -> None:
        """It ran to its end."""

    def _abandon(self, current: P) -> None:
        """It raised."""

    def _enter_again(self, place: int, args: Any, kwargs: Any) -> None:
        """A block is about to run again inside backward."""

    def _leave_again(self, place: int, args: Any, kwargs: Any, output: Any) -> None:
        """It did."""

    def _hooked(self) -> tuple[nn.Module, ...]:
        """The modules that get hooks."""
        norm = (self._parts.final_norm,) if self._parts.final_norm is not None else ()
        return (self._model, *self._parts.blocks, *norm)

    def _put_on(self) -> None:
        """Check that hooks can see the model, and put them on. None stays behind if that fails."""
        check_running()
        check_hookable(self._model, self._hooked())
        try:
            self._add_hooks()
        except BaseException:
            self._take_off()
            raise

    def _take_off(self) -> None:
        """Take all hooks off; a forward that is still running is abandoned."""
        current, self._pass, self._running = self._pass, None, False
        while self._handles:
            self._handles.pop().remove()
        if current is not None:
            self._abandon(current)

    def _add_hooks(self) -> None:
        add = self._handles.append
        add(self._model.register_forward_pre_hook(self._before_model, with_kwargs=True))
        for place, block in enumerate(self._parts.blocks):
            add(block.register_forward_pre_hook(functools.partial(self._before_block, place), with_kwargs=True))
            add(block.register_forward_hook(functools.partial(self._after_block, place), with_kwargs=True))
        norm = self._parts.final_norm
        if norm is not None:
            add(norm.register_forward_pre_hook(self._before_norm, with_kwargs=True))
            add(norm.register_forward_hook(self._after_norm, with_kwargs=True))
        add(self._model.register_forward_hook(self._after_model, with_kwargs=True, always_call=True))

    def _before_model(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_recomputation():
            return
        if self._running:
            raise CaptureError(
                f"the {type(model).__name__} was called while a forward of it was running: from within itself, from another"
                " thread, or after an interrupt. One capture follows one forward at a time"
            )
        self._pending_error = sys.exc_info()[1]
        self._pass = self._begin(args, kwargs)
        self._running = True

    def _after_model(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if in_backward():
            return
        current, self._pass, self._running = self._pass, None, False
        before, self._pending_error = self._pending_error, None
        if current is None:
            return
        # A hook that is always called also runs when the forward failed: then the error is in flight, and nothing is kept.
        if sys.exc_info()[1] is not before:
            self._abandon(current)
            return
        try:
            self._finish(current, output)
        except BaseException:
            self._abandon(current)
            raise

    def _before_block(self, place: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_recomputation():
            self._enter_again(place, args, kwargs)
        else:
            self._show(self._block(place), lambda current: current.enter_block(place, block, args, kwargs))

    def _after_block(self, place: int, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._is_recomputation():
            self._leave_again(place, args, kwargs, output)
        else:
            self._show(self._block(place), lambda current: current.leave_block(place, args, kwargs, output))

    def _before_norm(self, norm: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._is_recomputation():
            self._show("the final norm", lambda current: current.enter_norm(norm, args, kwargs))

    def _after_norm(self, norm: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._is_recomputation():
            self._show("the final norm", lambda current: current.leave_norm(output))

    def _block(self, place: int) -> str:
        return f"block {self._parts.stage.start + place}"

    def _show(self, what: str, show: Callable[[P], None]) -> None:
        if not self._running:
            raise CaptureError(
                f"{what} ran outside of a forward of the {type(self._model).__name__}: give {self.caller} the module that"
                " you call"
            )
        if self._pass is None:
            return
        if self._pass.thread != threading.get_ident():
            raise CaptureError(f"{what} ran in another thread than the forward it belongs to: boundaries would be mixed up")
        show(self._pass)

    def _is_recomputation(self) -> bool:
        check_running()
        # What is captured was captured in the forward; the second run inside backward gives the same again.
        return in_backward()

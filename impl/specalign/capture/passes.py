"""One forward as the hooks see it: what each block read and returned, in which order, and the copies that were made."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from specalign.capture.errors import CaptureError
from specalign.capture.parts import ModelParts
from specalign.capture.plan import CapturePlan, name_of
from specalign.capture.stream import Copying, own, snapshot, split_output
from specalign.layer_ids import POST_NORM, State

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[Tensor, Tensor | None]
ReadInput: TypeAlias = Callable[[Args, Kwargs], Pair]
ReadOutput: TypeAlias = Callable[[Any], Pair]

HIDDEN_NAMES = ("hidden_states", "hidden_state", "hidden", "x", "inputs", "input")
RESIDUAL_NAME = "residual"


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """How the stream is read out of a block's arguments and result; None: by the rules of `read_input` and `split_output`."""

    read_input: ReadInput | None = None
    read_output: ReadOutput | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The stream at one place. `held` is a stream that the engine keeps outside of the tensors (see `held_stream`)."""

    hidden: Any
    residual: Tensor | None
    held: Any = None
    versions: tuple[int, ...] = ()

    @classmethod
    def at(cls, hidden: Any, residual: Tensor | None, held: Any = None) -> Seen:
        return cls(hidden, residual, held, _versions(hidden, residual))


class Pass:
    """A forward in progress. Every method raises `CaptureError` where what it is shown cannot be what was asked for."""

    def __init__(self, plan: CapturePlan, parts: ModelParts, copying: Copying, reading: Reading) -> None:
        self.plan, self.parts, self.copying, self.reading = plan, parts, copying, reading
        self.parameter_names: Mapping[int, Sequence[str]] = {}
        # What no block has returned owes no sum: the embedding output, and what the norm made.
        self._whole = dataclasses.replace(copying, complete=None)
        self.wanted = frozenset(parts.stage.owned(plan))
        self.captured: dict[State, Tensor] = {}
        self.thread = threading.get_ident()
        self.entered = self.left = self.normed = 0
        self.last: Seen | None = None
        self.rows: tuple[int, ...] = ()
        self.width = 0

    def enter_block(self, place: int, block: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """Block `place` of this stage is about to run: its input must be what the block before it returned."""
        number = self.parts.stage.start + place
        if place != self.entered or place != self.left:
            raise CaptureError(self._order_message(place, number))
        self.entered += 1
        if number not in self.wanted:
            return
        # The stream is let go once it has been compared: capture holds no memory but the copies.
        seen = self.read_in(block, args, kwargs, f"block {number}")
        if place == 0:
            self.take(number, seen, self._whole)
        else:
            self._check_unchanged(seen, f"block {number}", number)
            self.last = None

    def leave_block(self, place: int, args: Args, kwargs: Kwargs, output: Any) -> None:
        """Block `place` has run: the boundary after it is copied if it is wanted."""
        number = self.parts.stage.start + place
        self.left += 1
        is_last = self.left == len(self.parts.blocks)
        boundary = number + 1
        if boundary not in self.wanted and not is_last:
            self.last = None
            return
        self.last = self.read_out(args, kwargs, output, f"block {number}")
        if boundary in self.wanted:
            self.take(boundary, self.last, self.copying)
        if is_last and isinstance(self.last.hidden, Tensor):
            self.rows, self.width = tuple(self.last.hidden.shape[:-1]), self.last.hidden.shape[-1]

    def enter_norm(self, norm: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """The final norm is about to run: it must read what the last block returned, once."""
        if self.left != len(self.parts.blocks) or self.normed:
            raise CaptureError(
                f"the final norm ran {'twice' if self.normed else f'after {self.left} of {len(self.parts.blocks)} blocks'}:"
                " which of its results is POST_NORM cannot be told"
            )
        self.normed += 1
        last = self.last
        if last is not None and last.held is None:
            hidden = args[0] if args else next(iter(kwargs.values()), None)
            residual = args[1] if len(args) > 1 else kwargs.get(RESIDUAL_NAME)
            seen = Seen.at(hidden, residual if isinstance(residual, Tensor) else None)
            self._check_unchanged(seen, "the final norm", self.plan.num_layers)
        self.last = None

    def leave_norm(self, output: Any) -> None:
        """The final norm has run: `normed`, or `(normed, residual)` of a norm that adds first."""
        normed = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(normed, Tensor):
            raise CaptureError(f"the final norm returned a {type(normed).__name__}, not a tensor")
        self.take(POST_NORM, Seen(normed, None), self._whole)

    def finish(self) -> dict[State, Tensor]:
        """All that this stage owns, once the model's forward is over."""
        count = len(self.parts.blocks)
        if self.left != count:
            raise CaptureError(
                f"the forward is over and {self.left} of {count} blocks ran through their hooks"
                f" (block {self.parts.stage.start + self.left} did not): layers are skipped, a CUDA graph or compiled code"
                " replays them, or the model calls block.forward itself. If the model runs fewer blocks than it has, pass blocks="
            )
        if POST_NORM in self.wanted and not self.normed and 0 in self.rows:
            # Engines skip the norm of an idle batch (SGLang's GPT-OSS does).
            hidden = self.last.hidden if self.last is not None else None
            if isinstance(hidden, Tensor):
                self.take(POST_NORM, Seen(hidden, None), self._whole)
        missing = [name_of(state) for state in self.plan.wanted if state in self.wanted and state not in self.captured]
        if missing:
            raise CaptureError(f"the forward is over and {', '.join(missing)} never came by: did the final norm run its hooks?")
        return self.captured

    def take(self, state: State, seen: Seen, copying: Copying) -> None:
        """A state that is wanted has come by: keep a copy."""
        self.captured[state] = copy_of(seen, copying, name_of(state))

    def read_in(self, block: nn.Module, args: Args, kwargs: Kwargs, where: str) -> Seen:
        if self.reading.read_input is not None:
            return Seen.at(*self.reading.read_input(args, kwargs))
        held = held_stream(args, kwargs)
        names = self.parameter_names.get(id(block))
        hidden, residual = read_input(block, args, kwargs, where, opaque=held is not None, names=names)
        return Seen.at(hidden, residual, held)

    def read_out(self, args: Args, kwargs: Kwargs, output: Any, where: str) -> Seen:
        if self.reading.read_output is not None:
            return Seen.at(*self.reading.read_output(output))
        held = held_stream(args, kwargs)
        if held is not None:
            return Seen.at(output, None, held)
        return Seen.at(*split_output(output, where))

    def _check_unchanged(self, seen: Seen, reader: str, boundary: int) -> None:
        last = self.last
        if last is None:
            return
        for what, before, now in (("hidden", last.hidden, seen.hidden), ("residual", last.residual, seen.residual)):
            if not _same(before, now):
                raise CaptureError(
                    f"{reader} reads another {what} than block {boundary - 1} returned: the model changes the stream between them"
                    f" (added features, a dropped residual, another hook), so boundary {boundary} is two different things."
                    " Say which you mean with blocks=, read_input= or read_output="
                )
        if last.hidden is seen.hidden and last.residual is seen.residual and last.versions != seen.versions:
            raise CaptureError(
                f"the output of block {boundary - 1} was changed in place before {reader} read it, so boundary {boundary} is two"
                " different things: the copy holds what the block returned"
            )

    def _order_message(self, place: int, number: int) -> str:
        if place < self.entered:
            return (
                f"block {number} ran twice in one forward: two micro-batches, or one module used for two layers. Which of its"
                " outputs is meant cannot be told; turn that off, or capture with capture_loop"
            )
        return (
            f"block {number} ran, and block {self.parts.stage.start + self.left} was next: blocks must run in the order of their"
            " list, all of them. If the model runs others, pass blocks= in the order they run in"
        )


def copy_of(seen: Seen, copying: Copying, where: str) -> Tensor:
    """The stream at one place as one tensor that nobody else holds: hidden, with what is carried beside it added."""
    if seen.held is not None:
        return own(seen.held.snapshot(seen.hidden), copying)
    return snapshot(seen.hidden, seen.residual, copying, where)


def read_input(
    block: nn.Module, args: Args, kwargs: Kwargs, where: str, *, opaque: bool = False, names: Sequence[str] | None = None
) -> tuple[Any, Tensor | None]:
    """`(hidden, residual)` out of the arguments of a block: by the names of its parameters, else the one float tensor.

    Args:
        opaque: hidden may be something else than a tensor (SGLang's handle on an output that owes a sum).
        names: those of the block's parameters, if they are known already.

    Raises:
        CaptureError: hidden cannot be told from the other arguments.
    """
    names = parameter_names(block) if names is None else names
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    residual = named.get(RESIDUAL_NAME)
    residual = residual if isinstance(residual, Tensor) else None
    for name in HIDDEN_NAMES:
        if name in named and (opaque or isinstance(named[name], Tensor)):
            return named[name], residual
    floats = [item for item in args if isinstance(item, Tensor) and item.is_floating_point()]
    if len(floats) != 1:
        raise CaptureError(
            f"{where} ({type(block).__name__}) got {len(floats)} float tensors and none by the name hidden_states. Say how to"
            " read them: read_input=lambda args, kwargs: (hidden, residual or None)"
        )
    return floats[0], residual


def parameter_names(block: nn.Module) -> list[str]:
    """The names of what a block's forward takes by place."""
    inner = getattr(block, "_orig_mod", block)  # torch.compile's wrapper has no signature of its own
    parameters = inspect.signature(inner.forward).parameters.values()
    return [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]


def held_stream(args: Args, kwargs: Kwargs) -> Any:
    """The residual stream that SGLang (0.5.23) keeps in its ForwardBatch while its blocks pass hidden alone: hidden without it
    is no boundary. Its `snapshot(hidden)` gives the completed sum and leaves the stream as it is.
    """
    for item in (*args, *kwargs.values()):
        held = None if isinstance(item, Tensor) else getattr(item, "residual_stream", None)
        if held is not None and hasattr(held, "snapshot"):
            return held
    return None


def _versions(*tensors: Any) -> tuple[int, ...]:
    return tuple(item._version for item in tensors if isinstance(item, Tensor) and not item.is_inference())


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    # An autograd function or a view hands on the same memory under another name; anything else is compared bit by bit.
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    return torch.equal(one.detach().contiguous().view(torch.uint8), other.detach().contiguous().view(torch.uint8))

"""The residual stream between blocks: reading it out of what blocks pass around, and copying it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from specalign.capture.errors import CaptureError

Complete: TypeAlias = Callable[[Tensor], Tensor]
"""Completes a partial sum: the all-reduce that a tensor-parallel block still owes. It gets a copy and may work in place."""

PARTIAL_SUM_MARK = "_sglang_needs_allreduce_fusion"
"""The attribute with which SGLang marks a block output whose all-reduce is left to the next norm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Copying:
    """How a state is copied.

    Attributes:
        keep_grad: keep the autograd graph; otherwise states are detached.
        complete: completes the partial sums of tensor parallelism before the residual is added.
    """

    keep_grad: bool = False
    complete: Complete | None = None


def split_output(output: object, where: str) -> tuple[Tensor, Tensor | None]:
    """`(hidden, residual)` out of what a block returned: `hidden`, `(hidden, None)`, `(hidden, residual)`, or hidden with
    integers beside it (top-k indices).

    Raises:
        CaptureError: anything that could be read in two ways.
    """
    if isinstance(output, Tensor):
        return output, None
    if not isinstance(output, (tuple, list)) or not output or not isinstance(output[0], Tensor):
        raise CaptureError(f"{where} returned {_kind(output)}: neither hidden nor (hidden, residual). {_READ_OUTPUT}")
    hidden, *rest = output
    floats = [place for place, item in enumerate(rest, 1) if isinstance(item, Tensor) and item.is_floating_point()]
    if not floats:
        return hidden, None
    residual = rest[0]
    if floats != [1] or residual.shape != hidden.shape:
        raise CaptureError(
            f"{where} returned {_kind(output)}: only (hidden, residual) of one shape is read without being told. {_READ_OUTPUT}"
        )
    return hidden, residual


def snapshot(hidden: Tensor, residual: Tensor | None, copying: Copying, where: str) -> Tensor:
    """hidden + residual, or hidden, as a tensor that shares memory with neither.

    Raises:
        CaptureError: the shapes differ, a partial sum is not completed, or gradients cannot be kept here.
    """
    check_copyable(hidden, residual, copying, where)
    with _copying_mode(copying):
        if not copying.keep_grad:
            hidden, residual = hidden.detach(), None if residual is None else residual.detach()
        if copying.complete is not None:
            hidden = _completed(hidden, copying.complete, where)
            return hidden if residual is None else hidden + residual
        return hidden.clone(memory_format=torch.contiguous_format) if residual is None else hidden + residual


def own(fresh: Tensor, copying: Copying) -> Tensor:
    """A tensor that nobody else holds, as a captured state: detached, and no inference tensor, unless gradients are kept."""
    if copying.keep_grad:
        return fresh
    if torch.compiler.is_compiling() or not fresh.is_inference():
        return fresh.detach()
    with _inference_off():
        return fresh.clone()


def check_copyable(hidden: Tensor, residual: Tensor | None, copying: Copying, where: str) -> None:
    """Raises `CaptureError` for what `snapshot` must not copy."""
    if residual is not None and residual.shape != hidden.shape:
        raise CaptureError(
            f"{where}: hidden is {list(hidden.shape)} and residual {list(residual.shape)}; they are summed only in one layout."
            " Gather both to the same rows first"
        )
    if copying.complete is None and getattr(hidden, PARTIAL_SUM_MARK, False):
        raise CaptureError(
            f"{where}: hidden is a partial sum, its all-reduce is left to the next norm. Pass complete=, or turn the fusion off"
        )
    if copying.keep_grad and not torch.is_grad_enabled():
        raise CaptureError(
            f"{where}: keep_grad=True, but no graph is recorded here: the forward runs under no_grad or inference_mode, or inside"
            " reentrant activation recomputation. Use checkpoint(..., use_reentrant=False), or capture detached states"
        )


def _completed(hidden: Tensor, complete: Complete, where: str) -> Tensor:
    copy = hidden.clone(memory_format=torch.contiguous_format)
    total = complete(copy)
    if not isinstance(total, Tensor) or total.shape != hidden.shape:
        raise CaptureError(f"{where}: complete() made {_kind(total)} out of {_kind(hidden)}; it must keep the shape")
    return total


@contextlib.contextmanager
def _inference_off() -> Iterator[None]:
    # A copy made in inference mode could never enter a training step; a copy made outside of it can.
    with torch.inference_mode(False), torch.no_grad():
        yield


def _copying_mode(copying: Copying) -> contextlib.AbstractContextManager[None]:
    # The compiler does not trace the question whether inference mode is on.
    if copying.keep_grad or torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    return _inference_off()


_READ_OUTPUT = "Say how to read it: read_output=lambda output: (hidden, residual or None)"


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_kind(item) for item in value) + ")"
    return type(value).__name__ if value is not None else "None"

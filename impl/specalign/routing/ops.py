"""The kernels as operators of torch (`torch.ops.specalign.*`): opaque to torch.compile, with gradients, nothing checked.

On CUDA they launch the Triton kernels; elsewhere they run the references, which have the same bits. Nothing waits for the device,
so all of them can be captured in a CUDA graph. They save what they got and no more: a second backward, and
torch.utils.checkpoint, find the same tensors again.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from specalign.routing.blanks import Blanks
from specalign.routing.errors import RoutingError
from specalign.routing.quantize import empty_quantized, scatter_quantize_reference
from specalign.routing.reference import (
    compact_reference,
    gather_backward_reference,
    gather_reference,
    scatter_backward_reference,
    scatter_reference,
)


def kernels_of(name: str, tensor: Tensor) -> ModuleType | None:
    """The module `<name>_kernels` for a tensor on CUDA, else None.

    Raises:
        RoutingError: triton is not installed.
    """
    if not tensor.is_cuda:
        return None
    try:
        return importlib.import_module(f"specalign.routing.{name}_kernels")
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        raise RoutingError("routing on a GPU needs triton: pip install 'pytest-specalign[triton]'") from None


@torch.library.custom_op("specalign::scatter_routes", mutates_args=())
def scatter_op(rows: Tensor, positions: Tensor, blanks: Tensor, listed: bool, num_rows: int) -> Tensor:
    """`reference.scatter_reference`."""
    empty = Blanks(blanks, listed)
    if (kernels := kernels_of("scatter", rows)) is None:
        return scatter_reference(rows, positions, num_rows, empty.listing())
    result: Tensor = kernels.scatter_triton(rows, positions, num_rows, empty)
    return result


@torch.library.custom_op("specalign::scatter_routes_backward", mutates_args=())
def scatter_backward_op(grad: Tensor, positions: Tensor) -> Tensor:
    """`reference.scatter_backward_reference`."""
    kernels = kernels_of("scatter", grad)
    result: Tensor = (scatter_backward_reference if kernels is None else kernels.scatter_backward_triton)(grad, positions)
    return result


@torch.library.custom_op("specalign::gather_routes", mutates_args=())
def gather_op(rows: Tensor, positions: Tensor, weights: Tensor, blanks: Tensor, listed: bool) -> Tensor:
    """`reference.gather_reference`; the blanks are for the gradient."""
    kernels = kernels_of("gather", rows)
    result: Tensor = (gather_reference if kernels is None else kernels.gather_triton)(rows, positions, weights)
    return result


@torch.library.custom_op("specalign::gather_routes_backward", mutates_args=())
def gather_backward_op(
    grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, blanks: Tensor, listed: bool
) -> tuple[Tensor, Tensor]:
    """`reference.gather_backward_reference`."""
    empty = Blanks(blanks, listed)
    if (kernels := kernels_of("gather", grad)) is None:
        return gather_backward_reference(grad, rows, positions, weights, empty.listing())
    result: tuple[Tensor, Tensor] = kernels.gather_backward_triton(grad, rows, positions, weights, empty)
    return result


@torch.library.custom_op("specalign::scatter_quantize", mutates_args=())
def scatter_quantize_op(
    rows: Tensor, positions: Tensor, blanks: Tensor, listed: bool, num_rows: int, mn_major: bool
) -> tuple[Tensor, Tensor]:
    """`quantize.scatter_quantize_reference`; without a gradient."""
    empty = Blanks(blanks, listed)
    if (kernels := kernels_of("quantize", rows)) is None:
        return scatter_quantize_reference(rows, positions, num_rows, empty.listing(), mn_major)
    result: tuple[Tensor, Tensor] = kernels.scatter_quantize_triton(rows, positions, num_rows, empty, mn_major)
    return result


@torch.library.custom_op("specalign::compact_routes", mutates_args=())
def compact_op(positions: Tensor, count: int) -> Tensor:
    """`reference.compact_reference` for a right count; for a wrong one, whatever fits."""
    if (kernels := kernels_of("compact", positions)) is not None:
        result: Tensor = kernels.compact_triton(positions, count)
        return result
    found = positions.new_zeros(count, 2, dtype=torch.int64)
    routes = compact_reference(positions, int((positions >= 0).sum()))[:count]
    found[: len(routes)] = routes
    return found


@scatter_op.register_fake
def _(rows: Tensor, positions: Tensor, blanks: Tensor, listed: bool, num_rows: int) -> Tensor:
    return rows.new_empty(num_rows, rows.shape[1])


@scatter_backward_op.register_fake
def _(grad: Tensor, positions: Tensor) -> Tensor:
    return grad.new_empty(positions.shape[0], grad.shape[1])


@gather_op.register_fake
def _(rows: Tensor, positions: Tensor, weights: Tensor, blanks: Tensor, listed: bool) -> Tensor:
    return rows.new_empty(positions.shape[0], rows.shape[1])


@gather_backward_op.register_fake
def _(grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, blanks: Tensor, listed: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(weights)


@scatter_quantize_op.register_fake
def _(rows: Tensor, positions: Tensor, blanks: Tensor, listed: bool, num_rows: int, mn_major: bool) -> tuple[Tensor, Tensor]:
    return empty_quantized(rows, num_rows, mn_major)


@compact_op.register_fake
def _(positions: Tensor, count: int) -> Tensor:
    return positions.new_empty(count, 2, dtype=torch.int64)


def _keep_positions(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _scatter_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    (positions,) = ctx.saved_tensors
    return scatter_backward_op(grad.contiguous(), positions), None, None, None, None


def _keep_gathered(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.listed = inputs
    ctx.save_for_backward(*tensors)


def _gather_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, None, None]:
    rows, weights = gather_backward_op(grad.contiguous(), *ctx.saved_tensors, ctx.listed)
    return rows, None, weights, None, None


scatter_op.register_autograd(_scatter_gradient, setup_context=_keep_positions)
gather_op.register_autograd(_gather_gradient, setup_context=_keep_gathered)

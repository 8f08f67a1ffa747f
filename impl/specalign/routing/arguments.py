"""Shapes, dtypes and devices of what the routing functions get: one clear error each, before any kernel runs."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specalign.routing.blanks import NOBODY
from specalign.routing.checks import CHECKS
from specalign.routing.errors import RoutingError
from specalign.routing.quantize import GROUP

ROW_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
INDEX_DTYPES: Final = (torch.int32, torch.int64)


def check_rows(name: str, rows: Tensor, *, number: int | None = None, width: int | None = None) -> None:
    """Raises `RoutingError` unless `rows` is `[M, H]` in bf16, fp16 or fp32, of that many rows and columns."""
    if rows.ndim != 2 or rows.dtype not in ROW_DTYPES:
        raise RoutingError(f"{name}: {_said(rows)}, and rows are [rows, width] in bfloat16, float16 or float32")
    for what, found, wanted in (("rows", rows.shape[0], number), ("columns", rows.shape[1], width)):
        if wanted is not None and found != wanted:
            raise RoutingError(f"{name}: {found} {what}, and {wanted} are expected")


def check_number(name: str, number: int) -> None:
    """Raises `RoutingError` unless `number` is a whole number from 0 on."""
    if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)) or number < 0:
        raise RoutingError(f"{name}={number!r}: a whole number, at least 0")


def check_padding_rows(padding_rows: Tensor, like: Tensor) -> None:
    """Raises `RoutingError` unless `padding_rows` is int32 or int64 `[P]` on the device of `like`."""
    if padding_rows.ndim != 1 or padding_rows.dtype not in INDEX_DTYPES:
        raise RoutingError(f"padding_rows: {_said(padding_rows)}, and they are [rows] in int32 or int64, no mask")
    check_device("padding_rows", padding_rows, like)


def check_experts(ids: Tensor, counts: Tensor, alignment: int, positions: Tensor) -> None:
    """Raises `RoutingError` unless ids and counts are int32 or int64, ids as the positions, counts `[E]`, alignment from 1 on."""
    if ids.shape != positions.shape or ids.dtype not in INDEX_DTYPES:
        raise RoutingError(f"expert ids: {_said(ids)}, and they are int32 or int64 {list(positions.shape)}, as the positions are")
    if counts.ndim != 1 or counts.dtype not in INDEX_DTYPES:
        raise RoutingError(f"counts: {_said(counts)}, and they are int32 or int64, one for each expert")
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1:
        raise RoutingError(f"alignment={alignment!r}: a whole number of rows, at least 1")
    check_device("expert ids", ids, positions)
    check_device("counts", counts, positions)


def check_positions(positions: Tensor, like: Tensor, *, tokens: int | None = None) -> None:
    """Raises `RoutingError` unless `positions` is int32 or int64 `[T, k]` on the device of `like`."""
    if positions.ndim != 2 or positions.dtype not in INDEX_DTYPES:
        raise RoutingError(f"positions: {_said(positions)}, and they are [tokens, slots] in int32 or int64")
    if tokens is not None and len(positions) != tokens:
        raise RoutingError(f"positions: of {len(positions)} tokens, and there are {tokens} token rows")
    if positions.numel() >= NOBODY:
        raise RoutingError(f"positions: {positions.numel()} routes, and a launch takes {NOBODY - 1} at most: split the tokens")
    check_device("positions", positions, like)


def check_weights(weights: Tensor, positions: Tensor) -> None:
    """Raises `RoutingError` unless `weights` is FP32 of the shape of `positions`."""
    if weights.dtype != torch.float32 or weights.shape != positions.shape:
        raise RoutingError(f"weights: {_said(weights)}, and they are float32 {list(positions.shape)}, as the positions are")
    check_device("weights", weights, positions)


def check_device(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raises `RoutingError` if both lie on different devices."""
    if tensor.device != like.device:
        raise RoutingError(f"{name}: on {tensor.device}, and the rest is on {like.device}: move one of them")


def check_groups(rows: Tensor) -> None:
    """Raises `RoutingError` unless the columns divide into groups of 128."""
    if rows.shape[1] % GROUP:
        raise RoutingError(
            f"rows: {rows.shape[1]} columns are no multiple of {GROUP}, the group of one scale: pad them with zeros"
        )


def check_mode(check: str) -> None:
    """Raises `RoutingError` for a way of checking that there is not."""
    if check not in CHECKS:
        raise RoutingError(f"check={check!r}: one of {', '.join(map(repr, CHECKS))}")


def _said(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

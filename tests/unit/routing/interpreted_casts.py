"""Casts of Triton's interpreter to bfloat16 and FP8, done by torch; and arguments for the kernels that are run there.

The interpreter's own cast of FP32 to bfloat16 cuts where the hardware rounds to nearest even. Only tests replace it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specalign.routing.blanks import NOBODY

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(INTEGERS[tensor.element_size()])


def same(first: Tensor, second: Tensor) -> bool:
    """The same bits; two NaN need the same ones too."""
    return first.dtype == second.dtype and torch.equal(bits(first), bits(second))


def right_cast(monkeypatch: Any) -> None:
    """Replace the interpreter's casts between FP32 and bfloat16 or E4M3 by torch's."""
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    kinds = {str(tl.bfloat16): (torch.bfloat16, np.uint16), str(tl.float8e4nv): (torch.float8_e4m3fn, np.uint8)}
    before = interpreter._convert_float

    def convert(value: np.ndarray, given: Any, wanted: Any, mode: Any) -> np.ndarray:
        if str(given) == str(tl.float32) and str(wanted) in kinds:
            dtype, code = kinds[str(wanted)]
            cast = torch.from_numpy(np.array(value).view(np.float32)).to(dtype)
            return bits(cast).numpy().view(code).reshape(value.shape)
        if str(wanted) == str(tl.float32) and str(given) in kinds:
            dtype, code = kinds[str(given)]
            signed = np.int16 if code is np.uint16 else np.uint8
            codes = torch.from_numpy(np.array(value).view(code).view(signed))
            return codes.view(dtype).float().numpy().reshape(value.shape)
        return before(value, given, wanted, mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def poison(monkeypatch: Any) -> None:
    """Results begin as a pattern that no test computes, so that an element that nobody writes is seen."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    monkeypatch.setattr(Tensor, "new_empty", _poisoned(Tensor.new_empty))


def _poisoned(made: Any) -> Any:
    def make(*args: Any, **options: Any) -> Tensor:
        result: Tensor = made(*args, **options)
        result.view(torch.uint8).fill_(0x5A) if result.numel() else None
        return result

    return make


def make_routes(
    tokens: int, slots: int, *, dropped: float = 0.2, spare: int = 5, seed: int = 0
) -> tuple[Tensor, int, Tensor, Tensor]:
    """Positions in no order, how many rows, the rows without a route, and the owner of each row. Token 1 has no route."""
    generator = torch.Generator().manual_seed(seed)
    number = tokens * slots + spare
    positions = torch.randperm(number, generator=generator)[: tokens * slots].view(tokens, slots)
    positions = torch.where(torch.rand(tokens, slots, generator=generator) < dropped, -1, positions)
    positions[1:2] = -1
    owners = torch.full((number,), NOBODY, dtype=torch.int32)
    for route, row in enumerate(positions.flatten().tolist()):
        if row >= 0:
            owners[row] = route
    return positions, number, (owners == NOBODY).nonzero()[:, 0], owners

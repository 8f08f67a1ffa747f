"""Buffers of more elements than an int32 can count: the first and the last row are read and written where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch
from hypothesis import strategies as st
from torch import Tensor

from pytest_specalign.contracts.routing_hooks import What

ANYWHERE: Final = 2**24
"""Elements of a buffer that any machine has room for."""
_CHUNK: Final = 2**14


@dataclasses.dataclass(frozen=True, slots=True)
class LargeCase:
    """Two tokens with one slot each, which go to the first and the last of `num_rows` rows."""

    elements: int
    dtype: torch.dtype

    @property
    def width(self) -> int:
        return 4096 if self.elements > ANYWHERE else 16

    @property
    def num_rows(self) -> int:
        return self.elements // self.width + 3

    @property
    def bytes(self) -> int:
        """Three buffers."""
        return 3 * self.num_rows * self.width * self.dtype.itemsize

    def format(self) -> str:
        return f"{self.num_rows} expert-major rows of width {self.width}, of which the first and the last are used"

    def rows(self, device: str) -> Tensor:
        """`[2, H]` of small whole numbers, the two values of a column of opposite signs."""
        made = torch.arange(2 * self.width, device=device) % 61 + 1
        return torch.stack([made[: self.width], -made[self.width :] - 1]).to(self.dtype)

    def buffer(self, device: str) -> Tensor:
        """Zeros but for the two rows."""
        made = torch.zeros(self.num_rows, self.width, dtype=self.dtype, device=device)
        made[[0, -1]] = self.rows(device)
        return made

    def positions(self, device: str) -> Tensor:
        return torch.tensor([[0], [self.num_rows - 1]], device=device)

    def padding(self, device: str) -> Tensor:
        return torch.arange(1, self.num_rows - 1, device=device)


def large_case(cls: Any) -> st.SearchStrategy[LargeCase]:
    return st.just(LargeCase(cls.large_elements, cls.dtypes[0]))


def no_room(case: LargeCase, device: str) -> str | None:
    """Why the case cannot be run here, or None."""
    if case.elements <= ANYWHERE:
        return None
    needed = f"offsets beyond 2^31 need {case.bytes / 2**30:.1f} GiB on a GPU"
    if torch.device(device).type != "cuda":
        return f"{needed}, and the device is {device}"
    free = torch.cuda.mem_get_info(device)[0]
    return None if free >= case.bytes else f"{needed}, and {free / 2**30:.1f} are free"


def _scatter(case: LargeCase, device: str, hook: Callable[..., Any]) -> str | None:
    found = hook(case.rows(device), case.positions(device), case.num_rows, case.padding(device))
    return _expert_rows(case, device, found)


def _expert_rows(case: LargeCase, device: str, found: Tensor) -> str | None:
    if found.shape != (case.num_rows, case.width):
        return f"shape {list(found.shape)}"
    for row, right in zip((0, case.num_rows - 1), case.rows(device), strict=True):
        if not torch.equal(found[row], right):
            return f"row {row} is not that of its token"
    stray = any(bool(part.any()) for part in torch.split(found[1:-1], _CHUNK))
    return "a row between the first and the last is not zero" if stray else None


def _token_rows(case: LargeCase, device: str, found: Tensor) -> str | None:
    return None if torch.equal(found, case.rows(device)) else "the rows of the two tokens are not those of the buffer"


def _scatter_backward(case: LargeCase, device: str, hook: Callable[..., Any]) -> str | None:
    return _token_rows(case, device, hook(case.buffer(device), case.positions(device)))


def _gather(case: LargeCase, device: str, hook: Callable[..., Any]) -> str | None:
    return _token_rows(case, device, hook(case.buffer(device), case.positions(device), torch.ones(2, 1, device=device)))


def _gather_backward(case: LargeCase, device: str, hook: Callable[..., Any]) -> str | None:
    given = (case.rows(device), case.buffer(device), case.positions(device), torch.ones(2, 1, device=device))
    routes, dots = hook(*given, case.padding(device))
    # Whole numbers of a few bits: the dot product is exact in any order.
    right = case.rows(device).float().square().sum(1, keepdim=True)
    return _expert_rows(case, device, routes) or (None if torch.equal(dots, right) else "the gradient of the weights is wrong")


LARGE: Final[dict[What, Callable[[LargeCase, str, Callable[..., Any]], str | None]]] = {
    "scatter": _scatter,
    "scatter_backward": _scatter_backward,
    "gather": _gather,
    "gather_backward": _gather_backward,
}

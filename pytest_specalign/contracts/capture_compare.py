"""What captured tensors hold: which state of the probe each one is, and by how much it differs from the one asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pytest_specalign.contracts.capture_looks import Captured
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.probe import UNKNOWN, ProbeModel, Value


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one call.

    Attributes:
        seen: what each tensor holds.
        got: what came back.
        wanted: what should have.
        first_difference: where it starts to go wrong, and by how much; None where the tensors are right.
    """

    seen: Captured
    got: Any
    wanted: str = ""
    first_difference: str | None = None

    @property
    def ok(self) -> bool:
        return self.first_difference is None and not isinstance(self.seen, Raised)

    def format(self) -> str:
        if isinstance(self.got, Raised):
            return self.got.format()
        if not isinstance(self.got, (list, tuple)):
            shape = f" {list(self.got.shape)}" if isinstance(self.got, Tensor) else ""
            return f"one {type(self.got).__name__}{shape} in place of a list of tensors"
        if isinstance(self.seen, tuple) and self.seen:
            return "[" + ", ".join(value.format() for value in self.seen) + "]"
        return f"{len(self.got)} states"


def identify(got: Any, probe: ProbeModel, right: Captured, *, atol: float) -> Captured:
    """What each tensor of `got` holds, by value; where several fit, the one that was asked for."""
    if isinstance(got, Raised):
        return got
    if not isinstance(got, (list, tuple)):
        return (UNKNOWN,)
    values = probe.values()
    asked = right if isinstance(right, tuple) else ()
    preferred = [asked[i] if i < len(asked) else UNKNOWN for i in range(len(got))]
    return tuple(_identify(tensor, values, wanted, atol) for tensor, wanted in zip(got, preferred, strict=True))


def _identify(tensor: Any, values: Mapping[Value, Tensor], wanted: Value, atol: float) -> Value:
    if not isinstance(tensor, Tensor):
        return UNKNOWN
    candidates = [wanted, *values] if wanted in values else list(values)
    return next((value for value in candidates if _equal(tensor, values[value], atol)), UNKNOWN)


def _equal(tensor: Tensor, right: Tensor, atol: float) -> bool:
    return tensor.shape == right.shape and tensor.device == right.device and bool((_gap(tensor, right) <= atol).all())


def _gap(tensor: Tensor, right: Tensor) -> Tensor:
    """The absolute difference in float64; not a number where either is none, which is above every tolerance."""
    return (tensor.detach().double() - right.double()).abs()


def judge(got: Any, probe: ProbeModel, right: tuple[Value, ...], *, atol: float) -> Judged:
    """Whether `got` is the list of states `right` of `probe`."""
    seen = identify(got, probe, right, atol=atol)
    wanted = "[" + ", ".join(value.format() for value in right) + "]"
    return Judged(seen, got, wanted, _first_difference(got, probe, right, seen, atol))


def _first_difference(got: Any, probe: ProbeModel, right: tuple[Value, ...], seen: Captured, atol: float) -> str | None:
    if isinstance(seen, Raised) or not isinstance(got, (list, tuple)):
        return "nothing to compare"
    values = probe.values()
    for place, (tensor, wanted, value) in enumerate(zip(got, right, seen, strict=False)):
        difference = _difference(tensor, values[wanted], atol)
        if difference is not None:
            matches = f", which is {value.format()}" if value != wanted else ""
            return f"position {place}, {wanted.format()}: {difference}{matches}"
    return f"{len(got)} states in place of {len(right)}" if len(got) != len(right) else None


def _difference(tensor: Any, right: Tensor, atol: float) -> str | None:
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__} in place of a tensor"
    if tensor.shape != right.shape:
        return f"shape {list(tensor.shape)} in place of {list(right.shape)}"
    if tensor.device != right.device:
        return f"on {tensor.device} in place of {right.device}"
    if not _equal(tensor, right, atol):
        gap = torch.nan_to_num(_gap(tensor, right), nan=float("inf"))
        row, channel = divmod(int(gap.argmax()), right.shape[-1])
        return f"max abs difference {float(gap.max()):g} at row {row}, channel {channel}"
    if tensor.dtype != right.dtype:
        return f"{tensor.dtype} in place of {right.dtype}"
    return None

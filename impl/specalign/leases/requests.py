"""What is asked for: how many GPUs, of which capability, with how much memory."""

from __future__ import annotations

import dataclasses
import re

from specalign.leases.devices import GIB, Device, size

_UNITS = {"MiB": 2**20, "GiB": GIB, "TiB": 2**40}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(MiB|GiB|TiB)")
_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


@dataclasses.dataclass(frozen=True)
class Request:
    """Attributes:
    count: number of GPUs, at least 1.
    capability: the least compute capability of each, as (major, minor); None takes any.
    memory: bytes that must be free on each; None takes a GPU as it is.
    """

    count: int = 1
    capability: tuple[int, int] | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}: ask for at least 1 GPU")

    def why_unfit(self, device: Device) -> str:
        """Why this device can never serve the request, empty if it can. What is not known is not enough."""
        if self.count > 1 and device.is_mig:
            return "a MIG instance: CUDA shows a process one of them, so they are leased one at a time"
        if self.capability is not None and (device.capability is None or device.capability < self.capability):
            has = "unknown" if device.capability is None else _dotted(device.capability)
            return f"compute capability {has}, asked for {_dotted(self.capability)}"
        if self.memory is not None and (device.memory_total is None or device.memory_total < self.memory):
            return f"{size(device.memory_total)} in all, asked for {size(self.memory)}"
        return ""

    def __str__(self) -> str:
        said = f"{self.count} GPU{'s' if self.count > 1 else ''}"
        if self.capability is not None:
            said += f" of compute capability {_dotted(self.capability)} or more"
        if self.memory is not None:
            said += f" with {size(self.memory)} free{' each' if self.count > 1 else ''}"
        return said


def read_memory(text: str) -> int:
    """`40GiB` → bytes; MiB, GiB or TiB.

    Raises:
        ValueError: anything else.
    """
    match = _MEMORY.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f'memory is {text!r}: give a size like "40GiB" (MiB, GiB or TiB)')
    return int(float(match[1]) * _UNITS[match[2]])


def read_capability(text: str) -> tuple[int, int]:
    """`9.0` → (9, 0).

    Raises:
        ValueError: anything else.
    """
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise ValueError(f"capability is {text!r}: give major and minor, like 9.0")
    return int(match[1]), int(match[2])


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"

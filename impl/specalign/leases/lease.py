"""A lease: GPUs that nobody else who asks for leases will use while it lasts."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specalign.leases.devices import Device
from specalign.leases.errors import LeaseError
from specalign.leases.visible import VARIABLE

if TYPE_CHECKING:
    import torch

INHERITED = "SPECALIGN_LEASE"
"""Tells the programs that are started under a lease that its GPUs are theirs: `LEVEL:TOKEN:UUID,UUID`."""


@dataclasses.dataclass(frozen=True)
class Inherited:
    """The lease that this process was started under.

    Attributes:
        level: of the locks that processes under the lease take among themselves, at least 1.
        token: as the holder wrote it into the lock files: a lease that has ended is not believed.
        uuids: of its GPUs.
    """

    level: int
    token: str
    uuids: tuple[str, ...]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Inherited | None:
        level, _, rest = environ.get(INHERITED, "").partition(":")
        token, _, uuids = rest.partition(":")
        return cls(int(level), token, tuple(uuids.split(","))) if level.isdecimal() and int(level) and token and uuids else None

    def __str__(self) -> str:
        return f"{self.level}:{self.token}:{','.join(self.uuids)}"


class Lease:
    """The right to `devices` until `release()`, the end of a `with` block, or the death of the process that took it.

    A lease that was served from another one of the same process ends with that one; its own `release` frees nothing.
    """

    def __init__(self, devices: Sequence[Device], under: Inherited, release: Callable[[Lease], None]) -> None:
        self.devices = tuple(devices)
        self._under = under
        self._release = release
        self._over = False

    @property
    def changes(self) -> dict[str, str]:
        """What `env` adds to the environment."""
        uuids = ",".join(device.uuid for device in self.devices)
        return {VARIABLE: uuids, INHERITED: str(dataclasses.replace(self._under, uuids=tuple(uuids.split(","))))}

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for a subprocess (a server, torchrun), which sees the leased GPUs and no other, by UUID, as cuda:0
        and up; a lease that it asks for is served out of this one."""
        return {**os.environ, **self.changes}

    @property
    def torch_device(self) -> torch.device:
        """The first leased GPU as this process's torch counts it. Imports torch and initialises CUDA."""
        return self.torch_devices[0]

    @property
    def torch_devices(self) -> tuple[torch.device, ...]:
        """All of them, mapped by UUID: torch's order of GPUs is not NVML's.

        Raises:
            LeaseError: torch sees no GPU with such a UUID, as when CUDA_VISIBLE_DEVICES was changed after the lease was taken.
        """
        torch: Any = importlib.import_module("torch")
        numbers = torch_numbers(torch)
        return tuple(torch.device("cuda", torch_number(device, numbers)) for device in self.devices)

    def release(self) -> None:
        """Give the GPUs back; a second time does nothing."""
        if not self._over:
            self._over = True
            self._release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Lease of {', '.join(map(str, self.devices))}{', over' if self._over else ''}>"


def torch_numbers(torch: Any) -> dict[str, int]:
    """UUID without its prefix → torch's number of the GPU."""
    return {_bare(str(torch.cuda.get_device_properties(number).uuid)): number for number in range(torch.cuda.device_count())}


def torch_number(device: Device, numbers: Mapping[str, int]) -> int:
    """torch's number of a GPU, out of `torch_numbers`.

    Raises:
        LeaseError: torch does not see it.
    """
    if (number := numbers.get(_bare(device.uuid))) is not None:
        return number
    if device.is_mig and len(numbers) == 1:  # torch may give the UUID of the GPU for its part, and shows one part only
        return 0
    seen = ", ".join(f"cuda:{number} is GPU-{uuid}" for uuid, number in numbers.items()) or "it sees no GPU"
    raise LeaseError(
        f"{device} was leased, and torch does not see it ({seen}; {VARIABLE}={os.environ.get(VARIABLE)!r}): leave {VARIABLE} as"
        " it was when the lease was taken"
    )


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()

"""GPUs as values: what each source of them must tell."""

from __future__ import annotations

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A process with a context on a GPU.

    Attributes:
        pid: as the driver numbers it. Inside a container this is mostly the host's number, which names nothing here.
        name: its executable, empty where the source does not tell.
        memory: bytes that it holds on the GPU, None where the source does not tell.
    """

    pid: int
    name: str = ""
    memory: int | None = None

    def __str__(self) -> str:
        name = f" {one_line(self.name)}" if self.name else ""
        return f"pid {self.pid}{name} ({size(self.memory)})"


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU, or one MIG instance of a GPU.

    Attributes:
        uuid: `GPU-…` or `MIG-…`: the one name that the driver, NVML and torch share.
        index: its place in PCI order, as nvidia-smi counts; that of the GPU for a MIG instance. CUDA may count otherwise.
        name: of the product.
        capability: compute capability (major, minor), None where the source does not tell.
        memory_total: bytes, None where the source does not tell.
        memory_free: bytes at the time of reading, None where the source does not tell.
        processes: those with a context on it, as far as the source shows them.
        parent: UUID of the GPU that a MIG instance is a part of; empty for a whole GPU.
    """

    uuid: str
    index: int
    name: str = "GPU"
    capability: tuple[int, int] | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    parent: str = ""

    @property
    def is_mig(self) -> bool:
        return bool(self.parent)

    def __str__(self) -> str:
        return f"GPU {self.index} {one_line(self.name)} ({self.uuid})"


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What was found, and what the sources said that found nothing.

    Attributes:
        devices: in PCI order; MIG instances in place of a GPU that is split into them.
        source: `nvml`, `nvidia-smi`, `torch`, `hook`, or empty where none of them found a GPU.
        driver: version of the driver, empty where the source does not tell.
        notes: why each source before that one gave nothing: a broken driver looks like no GPU otherwise.
    """

    devices: tuple[Device, ...]
    source: str = ""
    driver: str = ""
    notes: tuple[str, ...] = ()


def size(count: int | None) -> str:
    """Bytes for a reader: `40.0 GiB`."""
    return "memory unknown" if count is None else f"{count / GIB:.1f} GiB"


def one_line(text: str, limit: int = 80) -> str:
    """A stranger's text without what a terminal or a log would take for a command."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"

"""GPUs out of NVML, the driver's own library for monitoring: no CUDA context, a few milliseconds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from specalign.leases.devices import Device, GpuProcess, Inventory


def read_nvml() -> Inventory:
    """The GPUs that NVML knows, in PCI order; empty, with a note, where the package or the driver is not there."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Inventory((), notes=("nvml: the package nvidia-ml-py is not installed (extra nvml)",))
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Inventory((), notes=(f"nvml: {error}",))
    try:
        notes: list[str] = []
        devices = tuple(_devices(nvml, notes))
        return Inventory(devices, "nvml" if devices else "", _text(nvml.nvmlSystemGetDriverVersion()), tuple(notes))
    except nvml.NVMLError as error:
        return Inventory((), notes=(f"nvml: {error}",))
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any, notes: list[str]) -> Iterator[Device]:
    count = nvml.nvmlDeviceGetCount()
    if not count:
        notes.append("nvml: the driver knows no GPU")
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            whole = _device(nvml, handle, index)
            instances = list(_instances(nvml, handle, whole)) if _is_split(nvml, handle) else None
        except nvml.NVMLError as error:  # lost, or not for this user: the others still count
            notes.append(f"nvml: GPU {index}: {error}")
            continue
        if instances is None:
            yield whole
        yield from instances or ()


def _device(nvml: Any, handle: Any, index: int, parent: Device | None = None) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = _text(nvml.nvmlDeviceGetName(handle))
    if parent is None:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability: tuple[int, int] | None = (int(major), int(minor))
    else:
        capability = parent.capability
    return Device(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=name,
        capability=capability,
        memory_total=int(memory.total),
        memory_free=int(memory.free),
        processes=_processes(nvml, handle),
        parent="" if parent is None else parent.uuid,
    )


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # a GPU that cannot be split
        return False


def _instances(nvml: Any, handle: Any, whole: Device) -> Iterator[Device]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:  # that many may exist, fewer do
            continue
        yield _device(nvml, part, whole.index, whole)


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # not told under this driver or to this user
        return ()
    return tuple(
        GpuProcess(int(entry.pid), _name(nvml, entry.pid), None if entry.usedGpuMemory is None else int(entry.usedGpuMemory))
        for entry in found
    )


def _name(nvml: Any, pid: int) -> str:
    try:
        return _text(nvml.nvmlSystemGetProcessName(pid))
    except (nvml.NVMLError, UnicodeDecodeError):  # of another container, say
        return ""


def _text(value: str | bytes) -> str:
    """Old versions of the binding give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

"""Exclusive rights to GPUs on one machine: which there are, and the kernel file locks that say whose each of them is.

Standard library only, and `pynvml` (extra `nvml`) where it is installed. Nothing here creates a CUDA context in this process.
"""

from specalign.leases.devices import Device, GpuProcess, Inventory
from specalign.leases.errors import LeaseError, LeaseTimeoutError, NoDeviceError
from specalign.leases.inventory import discover, machine_devices, visible_devices
from specalign.leases.lease import Lease
from specalign.leases.locks import DEFAULT_FOLDER, Holder, LockFolder
from specalign.leases.pool import DEFAULT_TIMEOUT, Pool
from specalign.leases.requests import Request, read_capability, read_memory

__all__ = [
    "DEFAULT_FOLDER",
    "DEFAULT_TIMEOUT",
    "Device",
    "GpuProcess",
    "Holder",
    "Inventory",
    "Lease",
    "LeaseError",
    "LeaseTimeoutError",
    "LockFolder",
    "NoDeviceError",
    "Pool",
    "Request",
    "discover",
    "machine_devices",
    "read_capability",
    "read_memory",
    "visible_devices",
]

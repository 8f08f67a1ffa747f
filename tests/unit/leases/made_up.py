"""GPUs that no machine has."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from specalign.leases import Device, Inventory, LockFolder, Pool
from specalign.leases.devices import GIB


def gpu(index: int, **changes: Any) -> Device:
    made = Device(f"GPU-{index:08x}-aaaa-bbbb-cccc-000000000000", index, "NVIDIA H200", (9, 0), 141 * GIB, 140 * GIB)
    return dataclasses.replace(made, **changes)


def mig(index: int, part: int) -> Device:
    uuid = f"MIG-{index:04x}{part:04x}-aaaa-bbbb-cccc-000000000000"
    return Device(uuid, index, "NVIDIA H200 MIG 1g.18gb", (9, 0), 16 * GIB, 16 * GIB, parent=gpu(index).uuid)


def pool(folder: Path, *devices: Device, **options: Any) -> Pool:
    options.setdefault("environ", {})
    return Pool(lambda: Inventory(devices, "hook"), LockFolder(folder), **options)

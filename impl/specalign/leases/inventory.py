"""Which GPUs there are: NVML, then nvidia-smi, then torch in a process of its own; the first that finds one is believed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from specalign.leases.devices import Device, Inventory
from specalign.leases.nvml import read_nvml
from specalign.leases.smi import read_smi
from specalign.leases.torch_probe import read_torch
from specalign.leases.visible import describe_visible, read_visible


def machine_devices() -> Inventory:
    """Every GPU of the machine that the driver shows to this process, whatever CUDA_VISIBLE_DEVICES says."""
    notes: tuple[str, ...] = ()
    for read in (read_nvml, read_smi, read_torch):
        found = read()
        notes += found.notes
        if found.devices:
            return dataclasses.replace(found, notes=notes)
    return Inventory((), notes=notes)


def visible_devices(found: Inventory, environ: Mapping[str, str]) -> Inventory:
    """The part of an inventory that CUDA would show to a process with this environment; a note says so where it is less.

    Raises:
        LeaseError: see `specalign.leases.visible.read_visible`.
    """
    shown: tuple[Device, ...] = read_visible(found.devices, environ)
    said = describe_visible(len(shown), len(found.devices), environ) if len(shown) < len(found.devices) else ""
    return dataclasses.replace(found, devices=shown, notes=found.notes + ((said,) if said else ()))


def discover(environ: Mapping[str, str] | None = None) -> Inventory:
    """The GPUs that this process may use: `machine_devices` inside its own CUDA_VISIBLE_DEVICES."""
    return visible_devices(machine_devices(), os.environ if environ is None else environ)

"""What CUDA_VISIBLE_DEVICES lets through, read as CUDA reads it.

The rules are those of the CUDA C++ Programming Guide (CUDA Environment Variables), which `torch.cuda` follows to count
GPUs without a context (`_parse_visible_devices`): entries with commas between them; a whole number is an index, and only its
leading digits count; `GPU-…` and `MIG-…` are UUIDs or prefixes that fit exactly one; the kind of the first entry decides how
all are read; the first entry that names nothing hides itself and all that follow; an entry that repeats hides every GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from specalign.leases.devices import Device
from specalign.leases.errors import LeaseError

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

_DIGITS = re.compile(r"[+-]?\d+")


def read_visible(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that CUDA would show to a process with this environment, in its order.

    `devices` come in PCI order. An index, or the UUID of a whole GPU, that names a GPU split into MIG instances gives its first
    instance: CUDA shows one.

    Raises:
        LeaseError: indices that pick some of several unlike GPUs, while CUDA_DEVICE_ORDER leaves it to CUDA which comes first.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return tuple(devices)
    entries = [entry.strip() for entry in text.split(",")]
    if entries[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(devices, entries, entries[0][:4])
    picked = _by_index(devices, entries)
    if picked:
        _refuse_unknown_order(devices, picked, environ)
    return picked


def describe_visible(shown: int, found: int, environ: Mapping[str, str]) -> str:
    """For messages: `CUDA_VISIBLE_DEVICES='0,7' shows 1 of 2 GPUs`, or nothing where the variable is not set."""
    return f"{VARIABLE}={environ[VARIABLE]!r} shows {shown} of {found} GPUs" if VARIABLE in environ else ""


def _by_uuid(devices: Sequence[Device], entries: Sequence[str], kind: str) -> tuple[Device, ...]:
    picked: list[Device] = []
    for entry in entries:
        names = {(device.parent if kind == "GPU-" else "") or device.uuid for device in devices}
        fitting = [name for name in names if name.startswith(kind) and name.startswith(entry)] if entry.startswith(kind) else []
        if len(fitting) != 1:
            break
        device = next(device for device in devices if fitting[0] in (device.uuid, device.parent))
        if device in picked:
            return ()
        picked.append(device)
    return tuple(picked)


def _by_index(devices: Sequence[Device], entries: Sequence[str]) -> tuple[Device, ...]:
    first_of: dict[int, Device] = {}
    for device in devices:
        first_of.setdefault(device.index, device)
    picked: list[Device] = []
    for entry in entries:
        match = _DIGITS.match(entry)
        found = first_of.get(int(match[0])) if match else None
        if found is None:
            break
        if found in picked:
            return ()
        picked.append(found)
    return tuple(picked)


def _refuse_unknown_order(devices: Sequence[Device], picked: Sequence[Device], environ: Mapping[str, str]) -> None:
    names = sorted({device.name.partition(" MIG ")[0] for device in devices})
    if len(names) == 1 or environ.get(ORDER) == "PCI_BUS_ID" or len(picked) == len({device.index for device in devices}):
        return
    raise LeaseError(
        f"{VARIABLE}={environ[VARIABLE]!r} counts GPUs of different kinds ({', '.join(names)}), and CUDA puts the fastest first"
        f" unless it is told otherwise: set {ORDER}=PCI_BUS_ID, or name the GPUs by UUID"
    )

"""What a request waits for, in numbers and in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from specalign.leases.devices import Device, Inventory, size
from specalign.leases.errors import NoDeviceError
from specalign.leases.locks import Holder
from specalign.leases.requests import Request


def refuse_unfit(request: Request, found: Inventory) -> list[Device]:
    """The devices that can serve the request once they are free.

    Raises:
        NoDeviceError: they are too few, naming why each of the others is none of them.
    """
    unfit = {device: reason for device in found.devices if (reason := request.why_unfit(device))}
    fitting = [device for device in found.devices if device not in unfit]
    if len(fitting) >= request.count:
        return fitting
    has = f"{len(fitting)} of {len(found.devices)} GPUs here would do" if found.devices else "no GPU was found"
    lines = [f"{device}: {reason}" for device, reason in unfit.items()]
    raise NoDeviceError("; ".join([f"asked for {request}: {has}", *lines, *found.notes]))


def free_for(device: Device, own: Collection[int]) -> int | None:
    """Free bytes, where what this session's own workers hold counts as free: they stay, and will not be waited for."""
    if device.memory_free is None:
        return None
    return device.memory_free + sum(process.memory or 0 for process in device.processes if process.pid in own)


def explain_wait(
    request: Request,
    fitting: Sequence[Device],
    got: Collection[str],
    holders: Mapping[str, Holder | None],
    own: Collection[int],
    timeout: float,
) -> str:
    """Who held what until the end."""
    lines = [f"asked for {request} and had {len(got)} of {request.count} after {timeout:g} s"]
    for device in fitting:
        holder = holders.get(device.uuid)
        if device.uuid in got:
            lines.append(f"{device}: was had")
        elif holder is not None:
            lines.append(f"{device}: leased by {holder}")
        elif request.memory is not None:
            lines.append(f"{device}: {size(free_for(device, own))} free of {size(device.memory_total)}{_who(device, own)}")
        else:
            lines.append(f"{device}: came free just now")
    return "\n  ".join([*lines, "wait longer with --specalign-lease-timeout, or see `specalign doctor`"])


def _who(device: Device, own: Collection[int]) -> str:
    others = [str(process) for process in device.processes if process.pid not in own]
    return f", held by {', '.join(others)}" if others else ", held by processes that the driver does not show from here"

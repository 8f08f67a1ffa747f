"""Which GPU is a rank's own."""

from __future__ import annotations

from typing import Any

from specalign.leases.devices import Device
from specalign.leases.lease import torch_number, torch_numbers


def use_device(torch: Any, uuid: str) -> Any:
    """Make the leased GPU the current one of this process, found by UUID: `"cuda"` is that one. Returns it as a `torch.device`.

    Raises:
        LeaseError: torch does not see it.
    """
    leased = Device(uuid, -1, "leased for this rank", parent=uuid if uuid.startswith("MIG-") else "")
    device = torch.device("cuda", torch_number(leased, torch_numbers(torch)))
    torch.cuda.set_device(device)
    return device

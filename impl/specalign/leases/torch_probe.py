"""GPUs out of torch, the last resort: in a process of its own, since counting them this way makes a CUDA context."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from specalign.leases.devices import Device, Inventory

_SECONDS = 120.0

PROGRAM = """
import json, torch
found = []
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    free, total = torch.cuda.mem_get_info(i)
    found.append({"uuid": str(p.uuid), "name": p.name, "capability": [p.major, p.minor], "total": total, "free": free})
print(json.dumps(found))
"""


def read_torch() -> Inventory:
    """The GPUs that torch sees without CUDA_VISIBLE_DEVICES, in PCI order; empty, with a note, where it sees none."""
    if importlib.util.find_spec("torch") is None:
        return Inventory((), notes=("torch: not installed",))
    hidden = {"CUDA_VISIBLE_DEVICES", "PYTHONPATH"}
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=_SECONDS, check=True, env=environ
        )
        devices = parse_torch(json.loads(ran.stdout.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        return Inventory((), notes=(f"torch: {(error.stderr.strip().splitlines() or ['failed'])[-1][:200]}",))
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        return Inventory((), notes=(f"torch: {error}",))
    return Inventory(devices, "torch") if devices else Inventory((), notes=("torch: sees no GPU",))


def parse_torch(found: list[dict[str, Any]]) -> tuple[Device, ...]:
    """Devices of what the program printed; torch writes a UUID without its `GPU-`."""
    return tuple(
        Device(
            uuid=entry["uuid"] if entry["uuid"].startswith(("GPU-", "MIG-")) else f"GPU-{entry['uuid']}",
            index=index,
            name=entry["name"],
            capability=(int(entry["capability"][0]), int(entry["capability"][1])),
            memory_total=int(entry["total"]),
            memory_free=int(entry["free"]),
        )
        for index, entry in enumerate(found)
    )

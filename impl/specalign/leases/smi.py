"""GPUs out of the command nvidia-smi, where NVML has no binding in Python: its CSV queries, and `-L` for MIG instances."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence

from specalign.leases.devices import Device, GpuProcess, Inventory

FIELDS = ("index", "uuid", "driver_version", "mig.mode.current", "memory.total", "memory.free", "compute_cap", "name")
"""What is asked of each GPU. The name comes last: it is the one that may hold a comma."""

APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")

MIB = 2**20
_SECONDS = 20.0
_GPU_LINE = re.compile(r"GPU \d+: .* \(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")


def read_smi() -> Inventory:
    """The GPUs that nvidia-smi lists; empty, with a note, where it is not there or fails."""
    try:
        rows = _ask(f"--query-gpu={','.join(FIELDS)}")
        devices = parse_gpus(rows, parse_processes(_ask_or_nothing(f"--query-compute-apps={','.join(APP_FIELDS)}")))
        driver = next((row.split(",")[2].strip() for row in rows.splitlines() if row.count(",") >= 2), "")
        if any(_is_split(row) for row in rows.splitlines()):
            devices = with_instances(devices, split_uuids(rows), _ask("-L", plain=True))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Inventory((), notes=(f"nvidia-smi: {_reason(error)}",))
    if not devices:
        return Inventory((), notes=("nvidia-smi: lists no GPU",))
    return Inventory(devices, "nvidia-smi", driver)


def parse_gpus(text: str, processes: dict[str, tuple[GpuProcess, ...]]) -> tuple[Device, ...]:
    """Devices of the CSV (no header, no units) that `--query-gpu` prints for `FIELDS`.

    Raises:
        ValueError: a line that is none of those, such as an error message.
    """
    return tuple(_parse_gpu(line, processes) for line in text.splitlines() if line.strip())


def parse_processes(text: str) -> dict[str, tuple[GpuProcess, ...]]:
    """UUID of the GPU → processes on it, of the CSV that `--query-compute-apps` prints for `APP_FIELDS`."""
    found: dict[str, tuple[GpuProcess, ...]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(APP_FIELDS) - 1)]
        if len(cells) == len(APP_FIELDS) and cells[1].isdecimal():
            uuid, pid, memory, name = cells
            told = name if not name.startswith("[") else ""
            found[uuid] = (*found.get(uuid, ()), GpuProcess(int(pid), told, _bytes(memory)))
    return found


def split_uuids(text: str) -> frozenset[str]:
    """UUIDs of the GPUs whose MIG mode is on."""
    return frozenset(line.split(",")[1].strip() for line in text.splitlines() if _is_split(line))


def with_instances(devices: Sequence[Device], split: frozenset[str], listing: str) -> tuple[Device, ...]:
    """Each GPU of `split` replaced by the MIG instances that `nvidia-smi -L` lists below it; their memory is not told there."""
    below: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in listing.splitlines():
        if gpu := _GPU_LINE.match(line):
            current = gpu[1]
        elif mig := _MIG_LINE.match(line):
            below.setdefault(current, []).append((mig[1], mig[2]))
    return tuple(_expanded(devices, split, below))


def _expanded(devices: Sequence[Device], split: frozenset[str], below: dict[str, list[tuple[str, str]]]) -> Iterator[Device]:
    for device in devices:
        if device.uuid not in split:
            yield device
            continue
        for profile, uuid in below.get(device.uuid, ()):
            yield Device(uuid, device.index, f"{device.name} MIG {profile}", device.capability, parent=device.uuid)


def _parse_gpu(line: str, processes: dict[str, tuple[GpuProcess, ...]]) -> Device:
    cells = [cell.strip() for cell in line.split(",", len(FIELDS) - 1)]
    if len(cells) != len(FIELDS) or not cells[0].isdecimal() or not cells[1].startswith("GPU-"):
        raise ValueError(f"unexpected line {line[:120]!r}")
    index, uuid, _, _, total, free, capability, name = cells
    major, _, minor = capability.partition(".")
    known = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    return Device(uuid, int(index), name, known, _bytes(total), _bytes(free), processes.get(uuid, ()))


def _is_split(line: str) -> bool:
    cells = line.split(",")
    return len(cells) > 3 and cells[3].strip() == "Enabled"


def _bytes(cell: str) -> int | None:
    """`81559` (MiB) → bytes; `[N/A]` and `[Not Supported]` → None."""
    return int(cell) * MIB if cell.isdecimal() else None


def _ask(query: str, *, plain: bool = False) -> str:
    command = ["nvidia-smi", query] if plain else ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return ran.stdout


def _ask_or_nothing(query: str) -> str:
    try:
        return _ask(query)
    except subprocess.SubprocessError:  # processes only explain; GPUs are leased without them
        return ""


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the command is not there"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stdout or error.stderr or "").strip().splitlines()
        return said[0][:200] if said else f"exit code {error.returncode}"
    return str(error)

"""`specalign doctor`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import stat
from collections.abc import Iterator, Sequence

from specalign.cli.lease_options import add_folder_arguments, lock_folder, plain_errors
from specalign.leases import Device, Inventory, LeaseError, LockFolder, machine_devices, visible_devices
from specalign.leases.devices import size
from specalign.leases.locks import FOLDER_MODE, holder_of

PACKAGES = (
    "pytest-specalign",
    "pytest",
    "pytest-xdist",
    "numpy",
    "safetensors",
    "torch",
    "triton",
    "nvidia-ml-py",
    "hypothesis",
    "transformers",
    "sglang",
    "megatron-core",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.epilog = "Exit code: 0 nothing wrong, 1 something that leases would fail on. No GPU at all is not wrong."
    add_folder_arguments(parser)
    parser.set_defaults(run=run)


@plain_errors
def run(args: argparse.Namespace) -> int:
    """Print what is there; it takes no lease and imports no torch."""
    folder = lock_folder(args)
    found = machine_devices()
    problems: list[str] = []
    print("\n".join([*_versions(), "", *_gpus(found, folder, problems), "", *_folder(folder, problems)]))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()} on {platform.system()} {platform.release()}"
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} not installed"


def _gpus(found: Inventory, folder: LockFolder, problems: list[str]) -> Iterator[str]:
    yield f"driver {found.driver}, GPUs told by {found.source}" if found.source else "no GPU was found"
    yield from (f"  {note}" for note in found.notes)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        yield f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}"
    visible = _visible(found, problems)
    for device in found.devices:
        capability = "unknown" if device.capability is None else ".".join(map(str, device.capability))
        hidden = "" if device in visible else ", hidden by CUDA_VISIBLE_DEVICES"
        yield f"{device}{hidden}"
        yield f"  compute capability {capability}, {size(device.memory_free)} free of {size(device.memory_total)}"
        yield from (f"  in use by {process}" for process in device.processes)
        yield f"  {_holder(device, folder, problems)}"


def _visible(found: Inventory, problems: list[str]) -> Sequence[Device]:
    try:
        return visible_devices(found, os.environ).devices
    except LeaseError as error:
        problems.append(str(error))
        return found.devices


def _holder(device: Device, folder: LockFolder, problems: list[str]) -> str:
    try:
        holder = holder_of(folder.of(device))
    except LeaseError as error:
        problems.append(str(error))
        return "lock cannot be read"
    return "not leased" if holder is None else f"leased by {holder}"


def _folder(folder: LockFolder, problems: list[str]) -> Iterator[str]:
    try:
        about = folder.path.stat()
    except FileNotFoundError:
        yield f"lock folder {folder.path}: not there yet; the first lease makes it"
        return
    except OSError as error:
        problems.append(f"lock folder {folder.path}: {error.strerror}")
        return
    mode = stat.S_IMODE(about.st_mode)
    files = sum(1 for entry in folder.path.iterdir() if not entry.name.startswith("."))
    yield f"lock folder {folder.path}: mode {mode:o}, {files} files"
    if mode != FOLDER_MODE:
        yield f"  mode {FOLDER_MODE:o} lets every user lock and none remove another's file: chmod {FOLDER_MODE:o} {folder.path}"
    if not os.access(folder.path, os.W_OK | os.X_OK):
        problems.append(f"lock folder {folder.path}: this user cannot write to it")
    turn = holder_of(folder.turn())
    yield "  nobody is collecting GPUs" if turn is None else f"  collecting GPUs just now: {turn}"

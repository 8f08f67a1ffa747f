"""What NVML, nvidia-smi and torch say, in the shapes of their documentation."""

# ruff: noqa: N802  # NVML's own names

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specalign.leases import GpuProcess, discover, machine_devices
from specalign.leases.devices import GIB
from specalign.leases.smi import parse_gpus, parse_processes, read_smi, split_uuids, with_instances
from specalign.leases.torch_probe import parse_torch, read_torch

MIB = 2**20

GPUS = """\
0, GPU-8f3f2c5a-4d5e-6f70-8192-a3b4c5d6e7f8, 580.65.06, Disabled, 143771, 143162, 9.0, NVIDIA H200
1, GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901, 580.65.06, [N/A], 15360, 14915, 7.5, Tesla T4
2, GPU-2b2c3d4e-5f60-7182-93a4-b5c6d7e8f902, 580.65.06, [N/A], [N/A], [Not Supported], [N/A], NVIDIA GB10, early sample
"""

APPS = """\
GPU-8f3f2c5a-4d5e-6f70-8192-a3b4c5d6e7f8, 4711, 518, /usr/bin/python3
GPU-8f3f2c5a-4d5e-6f70-8192-a3b4c5d6e7f8, 4712, [N/A], /opt/a, b/server
GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901, 9, 12, [Not Found]
No running processes found
"""

SPLIT = "0, GPU-5d5ba0d6, 535.54.03, Enabled, 81920, 81000, 8.0, NVIDIA A100-SXM4-80GB\n"

LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6)
  MIG 3g.40gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.10gb     Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-other)
"""


def test_the_csv_of_nvidia_smi() -> None:
    h200, t4, odd = parse_gpus(GPUS, parse_processes(APPS))
    assert (h200.index, h200.uuid, h200.name) == (0, "GPU-8f3f2c5a-4d5e-6f70-8192-a3b4c5d6e7f8", "NVIDIA H200")
    assert (h200.capability, h200.memory_total, h200.memory_free) == ((9, 0), 143771 * MIB, 143162 * MIB)
    assert h200.processes == (GpuProcess(4711, "/usr/bin/python3", 518 * MIB), GpuProcess(4712, "/opt/a, b/server", None))
    assert t4.processes == (GpuProcess(9, "", 12 * MIB),)
    assert (odd.capability, odd.memory_total, odd.memory_free, odd.name) == (None, None, None, "NVIDIA GB10, early sample")


@pytest.mark.parametrize(
    "text", ["No devices were found\n", "0, GPU-1\n", "x, GPU-1, 5, N, 1, 1, 9.0, T4\n", "0, T4, 5, N, 1, 1, 9.0, T4\n"]
)
def test_a_line_that_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unexpected line"):
        parse_gpus(text, {})


def test_a_split_gpu_gives_way_to_its_instances() -> None:
    found = with_instances(parse_gpus(SPLIT, {}), split_uuids(SPLIT), LISTING)
    assert [device.uuid[:12] for device in found] == ["MIG-c7384736", "MIG-a28ad590"]
    assert {(device.parent, device.index, device.capability, device.memory_total) for device in found} == {
        ("GPU-5d5ba0d6", 0, (8, 0), None)
    }
    assert found[0].name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script in the place of nvidia-smi."""

    def write(body: str) -> None:
        script = tmp_path / "bin" / "nvidia-smi"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")

    return write


def test_the_command_is_asked(fake_smi: Callable[[str], None]) -> None:
    fake_smi(f'case "$1" in\n--query-gpu=*) cat <<X\n{GPUS}X\n;;\n*) exit 6;;\nesac')
    found = read_smi()
    assert ([device.index for device in found.devices], found.source, found.driver) == ([0, 1, 2], "nvidia-smi", "580.65.06")


def test_a_broken_driver_is_named(fake_smi: Callable[[str], None]) -> None:
    fake_smi("echo NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.; exit 9")
    assert read_smi().notes == ("nvidia-smi: NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.",)


def test_no_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_smi().notes == ("nvidia-smi: the command is not there",)


class NVMLError(Exception):
    pass


class FakeNvml(types.ModuleType):
    """As much of nvidia-ml-py as is used: GPU 0 whole, GPU 1 lost, GPU 2 split into two of seven possible instances."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise NVMLError("GPU is lost")
        return f"GPU-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200 MIG 1g.18gb" if handle.startswith("MIG") else b"NVIDIA H200"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:
        if handle.startswith("MIG"):
            raise NVMLError("Invalid Argument")
        return [9, 0]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(total=141 * GIB, free=100 * GIB, used=41 * GIB)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-0":
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:
        if number not in (0, 3):
            raise NVMLError("Not Found")
        return f"MIG-{number}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        if handle.startswith("MIG"):
            raise NVMLError("Not Supported")
        return [types.SimpleNamespace(pid=7, usedGpuMemory=None), types.SimpleNamespace(pid=8, usedGpuMemory=GIB)]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        if pid == 7:
            raise NVMLError("Not Found")
        return b"/usr/bin/python3"


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = machine_devices()
    whole, first, second = found.devices
    assert (found.source, found.driver, found.notes) == ("nvml", "580.65.06", ("nvml: GPU 1: GPU is lost",))
    assert (whole.uuid, whole.capability, whole.memory_total, whole.memory_free) == ("GPU-0", (9, 0), 141 * GIB, 100 * GIB)
    assert whole.processes == (GpuProcess(7, "", None), GpuProcess(8, "/usr/bin/python3", GIB))
    assert [(part.uuid, part.parent, part.index, part.capability) for part in (first, second)] == [
        ("MIG-0", "GPU-2", 2, (9, 0)),
        ("MIG-3", "GPU-2", 2, (9, 0)),
    ]
    assert nvml.open == 0
    assert [device.uuid for device in discover({"CUDA_VISIBLE_DEVICES": "2"}).devices] == ["MIG-0"]


def test_every_source_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml, "nvmlInit", lambda: (_ for _ in ()).throw(NVMLError("Driver Not Loaded")), raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("specalign.leases.torch_probe.PROGRAM", "raise SystemExit('no CUDA here')")
    pytest.importorskip("torch", reason="torch is not installed")
    assert machine_devices().notes == (
        "nvml: Driver Not Loaded",
        "nvidia-smi: the command is not there",
        "torch: no CUDA here",
    )


PRINTED = '[{"uuid": "8f3f2c5a", "name": "NVIDIA H200", "capability": [9, 0], "total": 4096, "free": 1024}]'


def test_torch_is_asked_in_a_process_that_sees_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = f"import os; assert 'CUDA_VISIBLE_DEVICES' not in os.environ; assert os.environ['CUDA_DEVICE_ORDER'] == 'PCI_BUS_ID'; print({PRINTED!r})"
    monkeypatch.setattr("specalign.leases.torch_probe.PROGRAM", program)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    (device,) = read_torch().devices
    assert (device.uuid, device.capability, device.memory_total, device.memory_free) == ("GPU-8f3f2c5a", (9, 0), 4096, 1024)


def test_a_uuid_that_has_its_prefix_keeps_it() -> None:
    entry = {"uuid": "MIG-1", "name": "H200", "capability": [9, 0], "total": 1, "free": 1}
    assert parse_torch([entry])[0].uuid == "MIG-1"

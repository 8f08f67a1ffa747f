"""Leases on a real GPU: the same GPU under every name, nothing left behind unseen, no CUDA context of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.leases import Lease, LeaseTimeoutError, LockFolder, Pool, Request, discover, machine_devices  # noqa: E402
from specalign.leases.nvml import read_nvml  # noqa: E402
from specalign.leases.smi import read_smi  # noqa: E402
from specalign.leases.torch_probe import read_torch  # noqa: E402

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT / "impl"), str(ROOT)])


def _python(program: str, **environ: str) -> str:
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": PATH, **environ}, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def _run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *args: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PATH, str(pytester.path)]))
    monkeypatch.setenv("SPECALIGN_LOCK_DIR", str(pytester.path / "locks"))
    monkeypatch.delenv("SPECALIGN_LEASE", raising=False)
    return pytester.runpytest_subprocess("-p", "specalign", "-p", "no:xdist", "-p", "no:xdist.looponfail", *args)


def test_every_source_names_the_same_gpus() -> None:
    told = {found.source: found.devices for found in (read_nvml(), read_smi(), read_torch()) if found.devices}
    print(told)
    assert "torch" in told
    assert len(told) > 1, "neither NVML nor nvidia-smi tells of the GPU that torch sees"
    if any(device.is_mig for device in machine_devices().devices):
        pytest.skip("split GPUs: torch shows one part")
    assert len({frozenset((device.uuid, device.capability) for device in devices) for devices in told.values()}) == 1
    for devices in told.values():
        for device, other in zip(devices, told["torch"], strict=True):
            assert device.memory_total is not None
            assert other.memory_total is not None
            assert abs(device.memory_total - other.memory_total) < 0.05 * other.memory_total


def test_discovery_makes_no_context_and_loads_no_torch() -> None:
    """NVML itself maps libcuda.so under some drivers; what counts is that this process holds no memory of a GPU then."""
    program = """
import os, sys
from specalign.leases import discover
found = discover()
again = discover()  # what the first one might have left behind
ours = [p for device in again.devices for p in device.processes if p.pid == os.getpid()]
print(found.source, len(found.devices), len(ours), "torch" in sys.modules)
"""
    source, count, ours, torch_too = _python(program).split()
    assert (source in ("nvml", "nvidia-smi"), int(count) > 0, ours, torch_too) == (True, True, "0", "False")


def test_the_lease_is_the_same_gpu_for_torch_here_and_in_a_subprocess(gpu_lease: Lease) -> None:
    (device,) = gpu_lease.devices
    here = torch.cuda.get_device_properties(gpu_lease.torch_device).uuid
    assert device.uuid == f"GPU-{here}" or device.is_mig
    program = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    assert _python(program, **gpu_lease.changes) == f"1 {here}"
    assert torch.ones(3, device=gpu_lease.torch_device).sum().item() == 3


def test_specalign_device(specalign_device: torch.device, gpu_lease: Lease) -> None:
    assert specalign_device == gpu_lease.torch_device


def test_memory_that_is_not_free_is_waited_for_and_its_holders_counted(tmp_path: Path) -> None:
    pool = Pool(discover, LockFolder(tmp_path))
    total = pool.inventory.devices[0].memory_total
    assert total is not None
    with pytest.raises(LeaseTimeoutError, match=r"GiB free of .* GiB, held by "):
        pool.lease(Request(1, None, total), timeout=0)
    assert pool.lease(Request(1, None, 2**20), timeout=60).devices


def test_a_leak_fails_and_a_matrix_product_does_not(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        kept = []

        @pytest.mark.gpu
        def test_product():
            a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
            assert (a @ a).sum().item() > 0
            assert torch.nn.functional.linear(a, a, a[0]).shape == (512, 512)

        def test_leak(specalign_device):
            kept.append(torch.ones(2**23, device=specalign_device))

        def test_after_it(specalign_device):
            a = torch.ones(512, 512, device=specalign_device)
            (a @ a).sum().item()
        """
    )
    result = _run(pytester, monkeypatch)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leak*", "*cuda:[0-9]*: tensors hold 32.0 MiB, 32.0 MiB more*"])


CHILD = """
import sys, torch
torch.ones(3, device="cuda").sum().item()
print("there", flush=True)
sys.stdin.read()
"""


def test_a_child_that_stays_on_the_gpu_fails_its_test(
    gpu_lease: Lease, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=gpu_lease.env) as child:
        assert child.stdout is not None
        child.stdout.readline()
        shown = {process.pid for device in discover().devices for process in device.processes}
        child.communicate()
    if child.pid not in shown:
        pytest.skip(
            f"the driver numbers processes as the host does (child {child.pid}, shown {sorted(shown)}): they cannot be told apart"
        )
    pytester.makepyfile(child=CHILD)
    pytester.makepyfile(
        """
        import subprocess, sys
        left = []

        def start(lease):
            left.append(subprocess.Popen([sys.executable, "child.py"], stdin=-1, stdout=-1, text=True, env=lease.env))
            left[-1].stdout.readline()

        def test_leaves_it(gpu_lease):
            start(gpu_lease)

        def test_stops_it(gpu_lease):
            left[0].communicate()
            start(gpu_lease)
            left[1].communicate()
        """
    )
    result = _run(pytester, monkeypatch)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaves_it*", "*which it started, still runs*"])


def test_a_session_lease_comes_before_torch(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeconftest(
        "import os, sys\nassert 'torch' not in sys.modules\nassert os.environ['CUDA_VISIBLE_DEVICES'].startswith(('GPU-', 'MIG-'))\n"
    )
    pytester.makepyfile(
        """
        def test_it(session_gpu_lease, specalign_device):
            import torch
            assert torch.cuda.device_count() == 1
            assert str(specalign_device) == "cuda:0"
            assert torch.ones(3, device="cuda").sum().item() == 3
        """
    )
    _run(pytester, monkeypatch, "--specalign-session-gpus=1").assert_outcomes(passed=1)


def test_a_session_lease_after_cuda_is_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(early="import torch\ntorch.cuda.init()\n", test_it="def test_it(): pass\n")
    result = _run(pytester, monkeypatch, "-p", "early", "--specalign-session-gpus=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specalign-session-gpus: CUDA is initialised in this process already*"])


def test_the_command_runs_under_its_lease(tmp_path: Path) -> None:
    show = "import torch; print(torch.cuda.device_count())"
    command = [sys.executable, "-m", "specalign.cli.main", "lease", "--lock-dir", str(tmp_path), "--", sys.executable, "-c", show]
    environ = {name: value for name, value in os.environ.items() if name != "SPECALIGN_LEASE"}
    ran = subprocess.run(command, env={**environ, "PYTHONPATH": PATH}, capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


@pytest.mark.gpu(count=2)
def test_two_gpus_are_two(tmp_path: Path) -> None:
    first, second = Pool(discover, LockFolder(tmp_path)), Pool(discover, LockFolder(tmp_path))
    a, b = first.lease(), second.lease()
    assert a.torch_device != b.torch_device
    a.release()
    b.release()
    both = first.lease(Request(2))
    numbers = [torch.cuda.get_device_properties(device).uuid for device in both.torch_devices]
    assert [f"GPU-{uuid}" for uuid in numbers] == [device.uuid for device in both.devices]
    program = "import torch; print([str(torch.cuda.get_device_properties(i).uuid) for i in range(2)])"
    assert _python(program, **both.changes) == str([str(uuid) for uuid in numbers])

"""Who gets which GPUs, who waits, who is refused, and what a lease gives."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from specalign.leases import (
    Device,
    GpuProcess,
    Inventory,
    LeaseError,
    LeaseTimeoutError,
    LockFolder,
    NoDeviceError,
    Pool,
    Request,
)
from specalign.leases.devices import GIB
from specalign.leases.processes import children, descendants
from specalign.leases.requests import read_capability, read_memory
from tests.unit.leases.made_up import gpu, mig, pool

TWO = (gpu(0), gpu(1))


def test_a_lease_excludes_every_other_process(tmp_path: Path) -> None:
    first, second = pool(tmp_path, *TWO), pool(tmp_path, *TWO)
    a, b = first.lease(), second.lease()
    assert {a.devices, b.devices} == {(TWO[0],), (TWO[1],)}
    with pytest.raises(LeaseTimeoutError) as error:
        pool(tmp_path, *TWO).lease(Request(2), timeout=0)
    assert f"asked for 2 GPUs and had 0 of 2 after 0 s\n  {TWO[0]}: leased by pid {os.getpid()} of " in str(error.value)
    b.release()
    with pytest.raises(LeaseTimeoutError, match="had 1 of 2"):
        pool(tmp_path, *TWO).lease(Request(2), timeout=0)
    a.release()
    with pool(tmp_path, *TWO).lease(Request(2), timeout=0) as both:
        assert both.devices == TWO


def test_a_request_inside_a_lease_is_served_from_it(tmp_path: Path) -> None:
    mine = pool(tmp_path, *TWO)
    wide = mine.lease(Request(2))
    inner = mine.lease(Request(1, (9, 0), GIB), timeout=0)
    assert inner.devices == (TWO[0],)
    assert mine.lease(Request(2), timeout=0).devices == TWO
    inner.release()
    assert mine.held == (wide,)
    with pytest.raises(LeaseTimeoutError):
        pool(tmp_path, *TWO).lease(timeout=0)
    wide.release()
    wide.release()
    assert mine.held == ()


def test_more_than_is_held_is_refused_at_once(tmp_path: Path) -> None:
    mine = pool(tmp_path, *TWO)
    with mine.lease(), pytest.raises(LeaseError, match=r"asked for 2 GPUs while this process holds a lease of 1 \(GPU 0"):
        mine.lease(Request(2), timeout=1e9)


MIXED = (gpu(0, capability=(7, 5), name="T4", memory_total=15 * GIB), gpu(1), gpu(2, capability=None, memory_total=None))


@pytest.mark.parametrize(
    ("request_", "reasons"),
    [
        (Request(4), ["asked for 4 GPUs: 3 of 3 GPUs here would do"]),
        (
            Request(2, (8, 0)),
            [
                "1 of 3",
                "GPU 0 T4 (GPU-00000000-aaaa-bbbb-cccc-000000000000): compute capability 7.5, asked for 8.0",
                "unknown, asked",
            ],
        ),
        (Request(1, (10, 0)), ["0 of 3", "compute capability 9.0, asked for 10.0"]),
        (
            Request(2, None, 40 * GIB),
            ["2 GPUs with 40.0 GiB free each", "15.0 GiB in all, asked for 40.0 GiB", "memory unknown in all"],
        ),
    ],
)
def test_what_is_not_there_is_not_waited_for(tmp_path: Path, request_: Request, reasons: list[str]) -> None:
    with pytest.raises(NoDeviceError) as error:
        pool(tmp_path, *MIXED).lease(request_, timeout=1e9)
    assert all(reason in str(error.value) for reason in reasons), str(error.value)


def test_no_gpu_names_what_each_source_said(tmp_path: Path) -> None:
    none = Pool(lambda: Inventory((), notes=("nvml: Driver Not Loaded", "nvidia-smi: gone")), LockFolder(tmp_path), {})
    with pytest.raises(NoDeviceError, match=r"^asked for 1 GPU: no GPU was found; nvml: Driver Not Loaded; nvidia-smi: gone$"):
        none.lease()


def test_the_fitting_ones_are_taken(tmp_path: Path) -> None:
    assert pool(tmp_path, *MIXED).lease(Request(1, (8, 0))).devices == (MIXED[1],)


def test_instances_are_leased_one_at_a_time(tmp_path: Path) -> None:
    parts = (mig(0, 0), mig(0, 1))
    with pytest.raises(NoDeviceError, match="MIG instance"):
        pool(tmp_path, *parts).lease(Request(2))
    assert pool(tmp_path, *parts).lease().devices == (parts[0],)
    assert pool(tmp_path, *parts).lease().devices == (parts[1],)


class Reading:
    """Devices whose memory changes from one reading to the next."""

    def __init__(self, *readings: tuple[Device, ...]) -> None:
        self.readings = list(readings)

    def __call__(self) -> Inventory:
        return Inventory(self.readings.pop(0) if len(self.readings) > 1 else self.readings[0], "hook")


def _filled(device: Device, *processes: GpuProcess) -> Device:
    used = sum(process.memory or 0 for process in processes)
    return dataclasses.replace(device, memory_free=140 * GIB - used, processes=processes)


SERVER = GpuProcess(4711, "/opt/server", 130 * GIB)
NEED = Request(1, None, 40 * GIB)


def test_a_request_waits_for_free_memory(tmp_path: Path) -> None:
    full = (_filled(gpu(0), SERVER),)
    mine = Pool(Reading(full, full, full, (gpu(0),)), LockFolder(tmp_path), {})
    assert mine.lease(NEED, timeout=60).devices == full


def test_who_holds_the_memory_is_named(tmp_path: Path) -> None:
    mine = Pool(Reading((_filled(gpu(0), SERVER),)), LockFolder(tmp_path), {})
    with pytest.raises(
        LeaseTimeoutError, match=r"GPU 0 .*: 10\.0 GiB free of 141\.0 GiB, held by pid 4711 /opt/server \(130\.0 GiB\)"
    ):
        mine.lease(NEED, timeout=0)
    hidden = Pool(Reading((dataclasses.replace(gpu(0), memory_free=GIB),)), LockFolder(tmp_path), {})
    with pytest.raises(LeaseTimeoutError, match="held by processes that the driver does not show from here"):
        hidden.lease(NEED, timeout=0)


def test_what_its_own_workers_hold_counts_as_free(tmp_path: Path) -> None:
    mine = Pool(Reading((_filled(gpu(0), SERVER),)), LockFolder(tmp_path), {}, own_pids=lambda: frozenset({4711}))
    assert mine.lease(NEED, timeout=0).devices[0].uuid == gpu(0).uuid


def test_another_gpu_with_memory_is_taken_at_once(tmp_path: Path) -> None:
    mine = Pool(Reading((_filled(gpu(0), SERVER), gpu(1))), LockFolder(tmp_path), {})
    assert mine.lease(NEED, timeout=0).devices == (gpu(1),)


def test_memory_that_fills_up_again_before_the_second_gpu_comes_is_not_counted(tmp_path: Path) -> None:
    free, full = gpu(0), _filled(gpu(0), SERVER)
    busy = _filled(gpu(1), SERVER)
    mine = Pool(Reading((free, busy), (free, busy), (full, gpu(1)), (free, gpu(1))), LockFolder(tmp_path), {})
    assert len(mine.lease(Request(2, None, 40 * GIB), timeout=60).devices) == 2


def test_the_gpu_of_the_last_lease_is_preferred_then_the_emptiest(tmp_path: Path) -> None:
    devices = (_filled(gpu(0), GpuProcess(1, "x", GIB)), gpu(1))
    mine, other = pool(tmp_path, *devices), pool(tmp_path, *devices)
    taken = other.lease()
    assert taken.devices == (devices[1],)
    with mine.lease() as lease:
        assert lease.devices == (devices[0],)
    taken.release()
    assert mine.lease().devices == (devices[0],)


def test_the_environment_for_a_subprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "kept")
    lease = pool(tmp_path, *TWO).lease(Request(2))
    assert lease.env["CUDA_VISIBLE_DEVICES"] == f"{TWO[0].uuid},{TWO[1].uuid}"
    assert lease.env["MINE"] == "kept"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ or os.environ["CUDA_VISIBLE_DEVICES"] != lease.env["CUDA_VISIBLE_DEVICES"]


def test_programs_under_a_lease_share_it_among_themselves(tmp_path: Path) -> None:
    three = (*TWO, gpu(2))
    outer = pool(tmp_path, *three).lease(Request(2))
    one, two, late = (pool(tmp_path, *three, environ=outer.env) for _ in range(3))
    a, b = one.lease(timeout=0), two.lease(timeout=0)
    assert {a.devices, b.devices} == {(TWO[0],), (TWO[1],)}
    with pytest.raises(LeaseTimeoutError, match="had 0 of 1"):
        late.lease(timeout=0)
    with pytest.raises(NoDeviceError, match="asked for 3 GPUs: 2 of 2 GPUs here would do; runs under a lease of"):
        late.lease(Request(3))
    below = pool(tmp_path, *three, environ=a.env)
    assert below.lease(timeout=0).devices == a.devices


def test_a_lease_that_has_ended_is_not_inherited(tmp_path: Path) -> None:
    outer = pool(tmp_path, *TWO).lease()
    environ = outer.env
    outer.release()
    stranger = pool(tmp_path, *TWO).lease(Request(2))
    with pytest.raises(LeaseTimeoutError, match="leased by"):
        pool(tmp_path, *TWO, environ=environ).lease(timeout=0)
    stranger.release()
    assert len(pool(tmp_path, *TWO, environ=environ).lease(Request(2), timeout=0).devices) == 2


@pytest.mark.parametrize("text", ["", "1", "1:", "0:t:GPU-1", "x:t:GPU-1", "1:t:"])
def test_a_strange_inheritance_is_none(tmp_path: Path, text: str) -> None:
    assert pool(tmp_path, *TWO, environ={"SPECALIGN_LEASE": text}).lease(Request(2), timeout=0).devices == TWO


def _torch(*uuids: str) -> Any:
    cuda = types.SimpleNamespace(
        device_count=lambda: len(uuids), get_device_properties=lambda number: types.SimpleNamespace(uuid=uuids[number])
    )
    return types.SimpleNamespace(cuda=cuda, device=lambda kind, number: f"{kind}:{number}")


def test_torch_numbers_are_found_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = pool(tmp_path, *TWO).lease(Request(2))
    other_order = [TWO[1].uuid.removeprefix("GPU-"), TWO[0].uuid.removeprefix("GPU-").upper()]
    monkeypatch.setitem(sys.modules, "torch", _torch(*other_order))
    assert (lease.torch_devices, lease.torch_device) == (("cuda:1", "cuda:0"), "cuda:1")
    monkeypatch.setitem(sys.modules, "torch", _torch(other_order[0]))
    with pytest.raises(LeaseError, match=r"GPU 0 .* was leased, and torch does not see it"):
        _ = lease.torch_device


def test_a_split_gpu_may_have_the_uuid_of_the_whole_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _torch("whole"))
    assert pool(tmp_path, mig(0, 1)).lease().torch_device == "cuda:0"


def test_sizes_and_capabilities_are_read() -> None:
    assert (read_memory("40GiB"), read_memory("1.5 MiB"), read_capability("9.0")) == (40 * GIB, 3 * 2**19, (9, 0))
    for text in ("40", "40GB", "0GiB", "-1GiB"):
        with pytest.raises(ValueError, match="give a size"):
            read_memory(text)
    with pytest.raises(ValueError, match=r"like 9\.0"):
        read_capability("90")
    with pytest.raises(ValueError, match="at least 1"):
        Request(0)


def test_children_and_their_children() -> None:
    program = "import subprocess, sys; p = subprocess.Popen(['cat'], stdin=subprocess.PIPE); print(p.pid, flush=True); sys.stdin.read(); p.communicate()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= descendants(os.getpid())
        assert child.pid in children(os.getpid())
        assert grandchild not in children(os.getpid())
        child.communicate()


def test_processes_of_one_launch_share_the_lease_that_it_was_started_under(tmp_path: Path) -> None:
    outer = pool(tmp_path, *TWO, gpu(2))
    with outer.lease(Request(2)) as lease:
        ranks = [pool(tmp_path, *TWO, gpu(2), environ=lease.changes) for _ in range(2)]
        shared = [rank.share(Request(2)) for rank in ranks]
        assert [one.devices for one in shared] == [lease.devices] * 2
        assert [one.changes for one in shared] == [lease.changes] * 2
        shared[0].release()
        assert outer.held == (lease,)
        with pytest.raises(NoDeviceError, match="asked for 3 GPUs: 2 of 2 GPUs here would do"):
            ranks[0].share(Request(3))


def test_there_is_nothing_to_share_without_such_a_lease(tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match=r"started under no lease: start it under one \(specalign lease --count 2 -- torchrun"):
        pool(tmp_path, *TWO).share(Request(2))

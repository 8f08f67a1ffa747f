"""Ranks on real GPUs by NCCL: each on the GPU that was leased for it, found by UUID."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

from specalign.leases import Lease  # noqa: E402
from specalign.ranks import RanksFailedError  # noqa: E402

TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def reduce_ones(size: int) -> dict[str, Any]:
    x = torch.full((size,), dist.get_rank() + 1, device="cuda", dtype=torch.float32)
    dist.all_reduce(x)
    return {
        "rank": dist.get_rank(),
        "backend": dist.get_backend(),
        "uuid": str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid),
        "seen": torch.cuda.device_count(),
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "sum": x,
        "on": str(x.device),
    }


def fail_on_the_gpu() -> None:
    """Rank 1 raises while rank 0 waits in a collective, of which NCCL does not tell it."""
    if dist.get_rank() == 1:
        raise RuntimeError("no")
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()


def index_out_of_range() -> None:
    """An error that a kernel raises, after the call has returned."""
    x = torch.ones(4, device="cuda")
    x[torch.tensor([9], device="cuda")] = 0


def gather_both() -> tuple[int, list[int]]:
    """One collective of each backend."""
    mine = torch.tensor([dist.get_rank()], device="cuda")
    dist.all_reduce(mine)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_rank())
    cpu = torch.tensor([dist.get_rank()])
    dist.all_reduce(cpu)
    assert cpu.item() == mine.item()
    return int(mine.item()), gathered


@pytest.mark.gpu(count=1)
def test_one_rank_is_on_the_leased_gpu(rank_group: Any, gpu_lease: Lease) -> None:
    (seen,) = rank_group(1, "nccl").run(reduce_ones, 3)
    (device,) = gpu_lease.devices
    assert device.uuid == f"GPU-{seen['uuid']}" or device.is_mig
    assert (seen["rank"], seen["backend"], seen["seen"], seen["visible"]) == (0, "nccl", 1, device.uuid)
    assert (seen["sum"].device.type, seen["sum"].tolist()) == ("cpu", [1.0, 1.0, 1.0])
    assert seen["on"] == "cuda:0"


@pytest.mark.gpu(count=1)
def test_an_error_of_a_kernel_is_the_ranks_own(rank_group: Any) -> None:
    with pytest.raises(RanksFailedError) as error:
        rank_group(1, "nccl").run(index_out_of_range)
    (failure,) = error.value.failures
    assert "device-side assert" in f"{failure.reason}{failure.details}" or "SIGABRT" in failure.reason


@pytest.mark.gpu(count=1)
def test_more_ranks_than_leased_gpus_are_refused(rank_group: Any) -> None:
    with pytest.raises(ValueError, match="needs a lease of 2 GPUs here, one for each rank, and has 1"):
        rank_group(2, "nccl")


@TWO
@pytest.mark.gpu(count=2)
def test_two_ranks_reduce_on_two_gpus(rank_group: Any, gpu_lease: Lease) -> None:
    results = rank_group(2, "nccl").run(reduce_ones, 1 << 20)
    assert [result["rank"] for result in results] == [0, 1]
    assert [f"GPU-{result['uuid']}" for result in results] == [device.uuid for device in gpu_lease.devices]
    assert {result["seen"] for result in results} == {2}
    for result in results:
        assert result["sum"].device.type == "cpu"
        assert bool((result["sum"] == 3).all())


@TWO
@pytest.mark.gpu(count=2)
def test_a_rank_that_waits_for_a_failed_one_by_nccl_is_ended(rank_group: Any) -> None:
    with pytest.raises(RanksFailedError) as error:
        rank_group(2, "nccl", timeout=60).run(fail_on_the_gpu)
    waiting, failed = error.value.failures
    assert failed.reason == "raised RuntimeError: no"
    assert "fail_on_the_gpu" in waiting.details or "ended by" in waiting.reason
    # The lease's own account, after this test, fails it if a rank is still on its GPU.


@TWO
@pytest.mark.gpu(count=2)
def test_both_backends_at_once(rank_group: Any) -> None:
    assert rank_group(2, "cpu:gloo,cuda:nccl").run(gather_both) == [(1, [0, 1])] * 2

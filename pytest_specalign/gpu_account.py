"""What a test leaves on its GPUs: memory that torch still holds for it, and processes that it started."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.state import BROKE

if TYPE_CHECKING:
    from specalign.leases import Lease, Pool

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Account:
    """How things stood when the lease began.

    Attributes:
        memory: torch's number of each GPU → bytes that tensors of this process hold on it; empty before CUDA is initialised.
        processes: children of this process, and theirs: a module's server may stay on the GPU when one of its tests ends.
    """

    pool: Pool
    lease: Lease
    memory: Mapping[int, int]
    processes: frozenset[int]

    @classmethod
    def open(cls, pool: Pool, lease: Lease, known: Mapping[int, int]) -> Account:
        """`known`: what was held when an earlier account of this process was closed, without garbage."""
        return cls(pool, lease, _allocated(known), _descendants())

    def close(self, *, memory: bool) -> list[str]:
        """What is there now and was not then, one line each.

        Args:
            memory: whether to look at memory; not after a failure, whose traceback keeps the tensors of its frames alive.
        """
        return [*(self._memory() if memory else ()), *self._processes()]

    def _memory(self) -> Iterator[str]:
        for number, now in _allocated(self.memory).items():
            before = self.memory.get(number, 0)
            if now > before:
                yield (
                    f"  cuda:{number}: tensors hold {now / _MIB:.1f} MiB, {(now - before) / _MIB:.1f} MiB more than before it:"
                    " drop what outlives the test (a module's variable, a cache), or make it in a fixture of wider scope"
                )

    def _processes(self) -> Iterator[str]:
        started = _descendants() - self.processes
        if not started:
            return
        mine = {device.uuid for device in self.lease.devices}
        for device in self.pool.read_now().devices:
            for process in device.processes if device.uuid in mine else ():
                if process.pid in started:
                    yield f"  {device}: {process}, which it started, still runs: stop it and wait for its end"


def note_failure(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remember that something was raised before the test's fixtures are torn down; what an earlier run of it did is forgotten."""
    if call.when == "setup" and BROKE in item.stash:
        del item.stash[BROKE]
    if call.when in ("setup", "call") and call.excinfo is not None:
        item.stash[BROKE] = True


def _allocated(known: Mapping[int, int]) -> dict[int, int]:
    """Bytes of live tensors on each GPU; empty, and nothing done, where this process has not used CUDA.

    Garbage is collected where there seems to be more than `known`: a collection takes longer than most tests.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    _drop_workspaces(torch)
    _drop_tables()
    found = _read(torch)
    if any(held > known.get(number, 0) for number, held in found.items()):
        gc.collect()
        found = _read(torch)
    torch.cuda.empty_cache()
    return found


def _read(torch: Any) -> dict[int, int]:
    return {number: int(torch.cuda.memory_allocated(number)) for number in range(torch.cuda.device_count())}


def _drop_workspaces(torch: Any) -> None:
    """cuBLAS keeps a workspace of some MiB, out of torch's allocator, from the first matrix product on: no test's leftover."""
    drop = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if drop is not None:
        drop()


def _drop_tables() -> None:
    """The kernel of fingerprints keeps tables of multipliers on each GPU, for widths it saw: ours, and no test's leftover."""
    kernels = sys.modules.get("specalign.dump.fingerprint_kernels")
    if kernels is not None:
        kernels.forget_tables()


def _descendants() -> frozenset[int]:
    found: frozenset[int] = importlib.import_module("specalign.leases.processes").descendants(os.getpid())
    return found

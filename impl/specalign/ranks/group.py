"""A group of ranks: what the fixture `rank_group` gives."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from specalign.ranks.board import Meeting
from specalign.ranks.calls import name_of, pack, pack_call, refuse_function
from specalign.ranks.errors import RankGroupError
from specalign.ranks.launch import Launch
from specalign.ranks.modules import named_modules
from specalign.ranks.outer import run_outer
from specalign.ranks.plan import Plan
from specalign.ranks.spawned import run_spawned

BACKENDS: Final = {"gloo": False, "nccl": True, "cpu:gloo,cuda:nccl": True}
"""Backend → whether each rank needs a GPU."""

DEFAULT_TIMEOUT: Final = 300.0
START_TIMEOUT: Final = 120.0
"""Seconds that ranks may take to import torch and to meet, where the timeout is less than that."""
GRACE: Final = 5.0
END_TIMEOUT: Final = 60.0

Around = Callable[[], contextlib.AbstractContextManager[object]]


class RankGroup:
    """Runs functions on `world_size` ranks that have joined one torch.distributed group.

    Each `run` starts new processes and ends them; where this process is a rank of an outer launch, it runs the function here.

    Args:
        world_size: number of ranks, at least 1.
        backend: one of `BACKENDS`.
        devices: UUIDs of leased GPUs, in the order of the ranks; for backends that need them.
        changes: to the environment of the ranks: those of the lease.
        timeout: seconds for the function, from when all ranks have joined; with those that start the ranks at least 120 s more.
        launch: the outer one, or None to start ranks.
        meeting: where the ranks of the outer launch meet; one for each process, kept from group to group.
        around: makes the context that the function runs in, in each rank: a function that can be pickled.
        loaders: module → `module:class` of the loader that the ranks are to load it with.
        place: names what runs, for messages; the same in each process of an outer launch.

    Raises:
        RankGroupError: arguments that make no group.
    """

    def __init__(
        self,
        world_size: int,
        backend: str,
        *,
        devices: Sequence[str] = (),
        changes: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        launch: Launch | None = None,
        meeting: Meeting | None = None,
        around: Around | None = None,
        loaders: Callable[[], Mapping[str, str]] = dict,
        place: str = "",
    ) -> None:
        __tracebackhide__ = True
        self.world_size = world_size
        self.backend = backend
        self.timeout = timeout
        self.devices = tuple(devices)
        self._changes = dict(changes or {})
        self._launch = launch
        self._meeting = meeting or Meeting()
        self._around = around
        self._loaders = loaders
        self._place = place
        self._what = f"rank_group({world_size}, {backend!r})"
        self._check()

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(*args, **kwargs)` on every rank, and return what each of them returned, by rank.

        The function must be at the top level of a module. Arguments and results are pickled; tensors arrive on the CPU.

        Raises:
            RanksFailedError: a rank raised, ended or was late; with what every one of them said.
            RankGroupError: the call cannot be sent, or the ranks of an outer launch do not match.
        """
        __tracebackhide__ = True
        what = f"{self._what}.run({name_of(function)})"
        if self._launch is not None:
            refuse_function(function)
            return run_outer(self._meeting, self._launch, self, what, self._place, lambda: function(*args, **kwargs))
        call = pack_call(function, args, kwargs)
        return run_spawned(what, self._plan(call), pack((self._around, call)), self._changes)

    @property
    def needs_gpus(self) -> bool:
        return BACKENDS[self.backend]

    @property
    def around(self) -> contextlib.AbstractContextManager[object]:
        """What the function runs in, made anew."""
        return contextlib.nullcontext() if self._around is None else self._around()

    def _plan(self, call: bytes) -> Plan:
        return Plan(
            parent=os.getpid(),
            world_size=self.world_size,
            backend=self.backend,
            devices=self.devices[: self.world_size] if self.needs_gpus else (),
            timeout=self.timeout,
            start_timeout=max(self.timeout, START_TIMEOUT),
            grace=GRACE,
            end_timeout=END_TIMEOUT,
            import_path=tuple(path or os.getcwd() for path in sys.path),  # noqa: PTH109  # as sys.path spells it
            modules=named_modules(call, self._loaders()),
        )

    def _check(self) -> None:
        __tracebackhide__ = True
        if not isinstance(self.world_size, int) or isinstance(self.world_size, bool) or self.world_size < 1:
            raise RankGroupError(f"world_size is {self.world_size!r}: give a whole number of at least 1")
        if self.backend not in BACKENDS:
            raise RankGroupError(f"backend is {self.backend!r}: give one of {', '.join(map(repr, BACKENDS))}")
        if not self.timeout > 0:
            raise RankGroupError(f"timeout is {self.timeout!r}: give seconds, more than 0")
        here = self.world_size
        if self._launch is not None:
            here = self._launch.local_world_size
            if self._launch.world_size != self.world_size:
                raise RankGroupError(
                    f"{self._what}: this process is rank {self._launch.rank} of an outer launch of {self._launch.world_size}:"
                    f" start {self.world_size} processes (torchrun --nproc-per-node, --nnodes), or unset RANK"
                )
        if self.needs_gpus and len(self.devices) < here:
            raise RankGroupError(
                f"{self._what} needs a lease of {here} GPUs here, one for each rank, and has {len(self.devices)}: mark the test"
                f" @pytest.mark.gpu(count={here})"
            )

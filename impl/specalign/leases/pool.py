"""Where a process asks for its leases."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from specalign.leases.devices import Device, Inventory
from specalign.leases.errors import LeaseError, LeaseTimeoutError
from specalign.leases.lease import Inherited, Lease
from specalign.leases.locks import Holder, KernelLock, LockFolder, holder_of, read_holder
from specalign.leases.requests import Request
from specalign.leases.waiting import explain_wait, free_for, refuse_unfit

DEFAULT_TIMEOUT: Final = 600.0
_POLL: Final = (0.001, 0.02)
_POLL_MEMORY: Final = (0.05, 0.5)


class Pool:
    """The leases of one process, and the way to more of them.

    Only the holder of the turn collects GPUs, and keeps each that it got until it has all: a request for two is not overtaken by
    those for one, and no two requests hold what the other one needs. While it waits for memory, so does everybody behind it.

    Args:
        inventory: reads the GPUs that this process may use. Called once; again while a request waits for memory.
        folder: of the locks.
        environ: of this process as it was started: names the lease that it runs under, if any.
        own_pids: processes whose memory counts as free, since they stay as long as this one: its own, and workers beside it.
    """

    def __init__(
        self,
        inventory: Callable[[], Inventory],
        folder: LockFolder | None = None,
        environ: Mapping[str, str] | None = None,
        own_pids: Callable[[], frozenset[int]] = lambda: frozenset({os.getpid()}),
    ) -> None:
        self.folder = folder or LockFolder()
        self._read = inventory
        self._environ = dict(os.environ if environ is None else environ)
        self._own_pids = own_pids
        self._found: Inventory | None = None
        self._inherited: Inherited | None = None
        self._held: dict[int, tuple[Lease, list[KernelLock]]] = {}
        self._used: tuple[str, ...] = ()
        self._guard = threading.RLock()

    @property
    def inventory(self) -> Inventory:
        """The GPUs that leases can be of: those of the lease that this process runs under, if there is one."""
        if self._found is None:
            found = self._read()
            self._inherited = self._believed(Inherited.read(self._environ), found.devices)
            self._found = self._within(found)
        return self._found

    def read_now(self) -> Inventory:
        """The GPUs read anew, for what changes: memory and processes."""
        return self._read()

    @property
    def held(self) -> tuple[Lease, ...]:
        """Leases with locks of their own, not those that were served from them."""
        return tuple(lease for lease, _ in self._held.values())

    def lock_fds(self, lease: Lease) -> tuple[int, ...]:
        """Open files of a lease: a program that inherits them keeps the lease when this process is gone."""
        return tuple(lock.fd for lock in self._held[id(lease)][1])

    def lease(self, request: Request | None = None, timeout: float = DEFAULT_TIMEOUT) -> Lease:
        """Take GPUs, out of a lease that this process already holds if it has one that fits.

        Args:
            request: what is needed; one GPU of any kind by default.
            timeout: seconds to wait for other holders, and for memory.

        Raises:
            NoDeviceError: there are no such GPUs here, busy or not.
            LeaseTimeoutError: others held them, with who they are.
            LeaseError: this process holds a lease that is too small, so that waiting could be for ever; or see `LockFolder`.
        """
        request = request or Request()
        with self._guard:
            return self._nested(request) if self._held else self._fresh(request, timeout)

    def share(self, request: Request | None = None) -> Lease:
        """GPUs of the lease that this process was started under, which it shares with the processes beside it: the ranks of a
        torchrun agree among themselves who uses which, and would wait for each other if each took them for itself.

        Args:
            request: what is needed; one GPU of any kind by default.

        Raises:
            NoDeviceError: the lease has no such GPUs.
            LeaseError: this process was started under none.
        """
        request = request or Request()
        found = self.inventory
        if self._inherited is None:
            raise LeaseError(
                f"asked for {request} to share with other ranks of the launch, which was started under no lease: start it under"
                f" one (specalign lease --count {request.count} -- torchrun ...)"
            )
        return Lease(refuse_unfit(request, found)[: request.count], self._inherited, lambda shared: None)

    def _nested(self, request: Request) -> Lease:
        for lease, _ in self._held.values():
            fitting = [device for device in lease.devices if not request.why_unfit(device)]
            if len(fitting) >= request.count:
                return Lease(fitting[: request.count], lease._under, lambda served: None)
        held = "; ".join(f"{len(lease.devices)} ({', '.join(map(str, lease.devices))})" for lease in self.held)
        raise LeaseError(
            f"asked for {request} while this process holds a lease of {held}: whoever waits for GPUs while holding some can wait"
            " for ever, so ask for all of them in the first, widest lease (module or session)"
        )

    def _fresh(self, request: Request, timeout: float) -> Lease:
        found = self.inventory
        fitting = refuse_unfit(request, found)
        self.folder.make()
        deadline = time.monotonic() + timeout
        token = secrets.token_hex(8)
        with self._turn(request, timeout, token):
            devices, locks = self._collect(request, fitting, deadline, timeout, token)
        self._used = tuple(device.uuid for device in devices)
        lease = Lease(devices, Inherited(self._level + 1, token, self._used), self._give_back)
        self._held[id(lease)] = (lease, locks)
        return lease

    def _give_back(self, lease: Lease) -> None:
        with self._guard:
            _, locks = self._held.pop(id(lease))
            for lock in locks:
                lock.release()

    @contextmanager
    def _turn(self, request: Request, timeout: float, token: str) -> Iterator[None]:
        within = self._inherited.uuids[0] if self._inherited else ""
        turn = self.folder.turn(within, self._level)
        if not turn.acquire(timeout):
            raise LeaseTimeoutError(
                f"asked for {request} and did not get to collect them within {timeout:g} s; before this one in the queue:"
                f" {read_holder(turn.path)}. Wait longer (--specalign-lease-timeout), or see `specalign doctor`"
            )
        try:
            turn.write(Holder.me(token))
            yield
        finally:
            turn.release()

    def _collect(
        self, request: Request, fitting: Sequence[Device], deadline: float, timeout: float, token: str
    ) -> tuple[list[Device], list[KernelLock]]:
        got: dict[str, KernelLock] = {}
        pause, longest = _POLL_MEMORY if request.memory is not None else _POLL
        try:
            while True:
                short = self._short(request, fitting)
                for uuid in short & got.keys():
                    got.pop(uuid).release()
                for device in self._in_order(fitting):
                    if len(got) < request.count and device.uuid not in short | got.keys():
                        lock = self.folder.of(device, self._level)
                        if lock.acquire():
                            got[device.uuid] = lock
                            lock.write(Holder.me(token))
                if len(got) == request.count:
                    return [device for device in fitting if device.uuid in got], list(got.values())
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LeaseTimeoutError(self._why_late(request, fitting, got, timeout))
                time.sleep(min(pause, left))
                pause = min(pause * 2, longest)
        except BaseException:
            for lock in got.values():
                lock.release()
            raise

    def _short(self, request: Request, fitting: Sequence[Device]) -> set[str]:
        """UUIDs of those that have too little free memory just now."""
        if request.memory is None:
            return set()
        now = {device.uuid: device for device in self._read().devices}
        own = self._own_pids()
        return {
            device.uuid for device in fitting if device.uuid not in now or (free_for(now[device.uuid], own) or 0) < request.memory
        }

    def _in_order(self, devices: Sequence[Device]) -> list[Device]:
        """Those of the last lease first, for their contexts and warm caches; then those with the fewest processes."""
        return sorted(devices, key=lambda device: (device.uuid not in self._used, len(device.processes), device.index))

    def _why_late(self, request: Request, fitting: Sequence[Device], got: Mapping[str, KernelLock], timeout: float) -> str:
        now = {device.uuid: device for device in self._read().devices} if request.memory is not None else {}
        holders = {device.uuid: holder_of(self.folder.of(device, self._level)) for device in fitting if device.uuid not in got}
        devices = [now.get(device.uuid, device) for device in fitting]
        return explain_wait(request, devices, set(got), holders, self._own_pids(), timeout)

    @property
    def _level(self) -> int:
        return self._inherited.level if self._inherited else 0

    def _believed(self, inherited: Inherited | None, devices: Sequence[Device]) -> Inherited | None:
        """The lease that the environment names, if it still is held by whoever wrote its token."""
        if inherited is None:
            return None
        below = {device.uuid: self.folder.of(device, inherited.level - 1) for device in devices}
        for uuid in inherited.uuids:
            holder = holder_of(below[uuid]) if uuid in below else None
            if uuid in below and (holder is None or holder.token != inherited.token):
                return None
        return inherited

    def _within(self, found: Inventory) -> Inventory:
        if self._inherited is None:
            return found
        mine = tuple(device for device in found.devices if device.uuid in self._inherited.uuids)
        note = f"runs under a lease of {', '.join(self._inherited.uuids)}"
        return Inventory(mine, found.source, found.driver, (*found.notes, note))

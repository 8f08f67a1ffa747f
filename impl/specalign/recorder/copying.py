"""From the hooks to the writer: copies to the host on a side stream, and a thread that hands whole passes on.

What a hook hands in must be a tensor that nobody will change. `snapshot` makes it, on the stream that the model runs on and
before the hook returns: a copy within the GPU takes about one millisecond for 2 GB, so the model may add in place right after.
The copy to the host waits for it on a stream of its own and runs beside the model. The tensor is held until that copy is over.

Memory is bounded in bytes: what was handed in and is not yet on disk never exceeds `max_pending_bytes`. Once that is reached
a hook waits for the writer, which costs time and never data; `Stats` says how often and for how long.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from specalign.recorder.errors import RecordError
from specalign.recorder.memory import Slab, Slabs

Deliver = Callable[[Mapping[str, Tensor]], None]
"""What the writer's thread does with one pass, whose tensors are on the host by then; it may not keep them."""


@dataclasses.dataclass(slots=True)
class Stats:
    """What a recording has done so far.

    Attributes:
        passes: passes that are on disk.
        bytes: bytes of tensors on disk.
        waits, seconds_waited: how often a hook waited for the writer, and for how long in all.
        seconds_writing: time of the writer's thread in writing.
        peak_pending_bytes: the most that was handed in and not on disk.
        recomputed: runs of a block inside backward that were seen, and not recorded again.
        skipped: forwards that were not recorded since they stand for no request (an engine's warm-up).
    """

    passes: int = 0
    bytes: int = 0
    waits: int = 0
    seconds_waited: float = 0.0
    seconds_writing: float = 0.0
    peak_pending_bytes: int = 0
    recomputed: int = 0
    skipped: int = 0

    @property
    def kept_up(self) -> bool:
        """Whether the writer was never waited for."""
        return self.waits == 0


@dataclasses.dataclass(slots=True, eq=False)
class _Copy:
    """One tensor on its way: `held` lives on the GPU until `done`; `host` is where it goes."""

    held: Tensor | None
    host: Tensor
    slab: Slab | None = None
    done: Any = None

    def let_go(self) -> bool:
        """Let the GPU's memory go if the copy is over; whether it is."""
        if self.done is not None and not self.done.query():
            return False
        self.held = self.done = None
        return True

    def wait(self) -> None:
        """Return once the copy is over. The hooks' thread may let go meanwhile, so `done` is read once."""
        done = self.done
        if done is not None:
            done.synchronize()


class OpenPass:
    """The tensors of a forward that is running. Made by `Copier.open`; ends in `commit` or `discard`."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self.copies: dict[str, _Copy] = {}
        self.bytes = 0
        self.deliver: Deliver | None = None

    def add(self, name: str, tensor: Tensor) -> None:
        """Send a tensor on its way; nobody may change it from now on.

        Raises:
            RecordError: one pass is larger than all that may be pending.
        """
        self._copier.send(self, name, tensor)

    def commit(self, deliver: Deliver) -> None:
        """The forward is over: everything that was added is handed on, in the writer's thread."""
        self.deliver = deliver
        self._copier.enqueue(self)

    def discard(self) -> None:
        """The forward failed: forget what was added."""
        self._copier.release(self)


def _has_come(copy: _Copy) -> bool:
    """Whether the side stream is done with a copy. If the device failed, its memory is not used again, and nobody waits."""
    try:
        copy.wait()
    except Exception:
        return False
    return True


class Copier:
    """A bounded queue of passes and the thread that empties it.

    Args:
        max_pending_bytes: what may be handed in and not yet delivered; as much may be held on the GPU for a moment besides.
        reserve_bytes: page-locked memory to allocate at once instead of during the first forward.
        pinned: page-lock the host memory; by default if CUDA is in use.
    """

    def __init__(self, *, max_pending_bytes: int, reserve_bytes: int = 0, pinned: bool | None = None) -> None:
        self.stats = Stats()
        self._limit = max_pending_bytes
        self._slabs = Slabs(pinned=torch.cuda.is_available() if pinned is None else pinned)
        self._slabs.reserve(reserve_bytes)
        self._condition = threading.Condition()
        self._queue: collections.deque[OpenPass] = collections.deque()
        self._in_flight: collections.deque[_Copy] = collections.deque()
        self._streams: dict[torch.device, Any] = {}
        self._pending = self._drainable = self._undelivered = 0
        self._closing = False
        self._error: BaseException | None = None
        self._reported = False
        self._thread = threading.Thread(target=self._run, name="specalign-recorder", daemon=True)
        self._thread.start()

    @property
    def host_bytes(self) -> int:
        """Page-locked memory held."""
        return self._slabs.bytes

    @property
    def failed(self) -> bool:
        """Whether the writer's thread failed, so that passes are missing."""
        return self._error is not None

    def open(self) -> OpenPass:
        """Begin a pass.

        Raises:
            RecordError: the writer's thread failed; its error is the cause.
        """
        self.check()
        return OpenPass(self)

    def check(self) -> None:
        """Raises `RecordError` if the writer's thread failed: with the cause the first time."""
        with self._condition:
            error, again, self._reported = self._error, self._reported, self._reported or self._error is not None
        if error is None:
            return
        if again:
            raise RecordError("this recording ended with the error that was raised before: nothing more is recorded")
        raise RecordError(
            f"writing a pass failed, {self.stats.passes} passes before it are on disk: {type(error).__name__}: {error}"
        ) from error

    def send(self, opened: OpenPass, name: str, tensor: Tensor) -> None:
        """See `OpenPass.add`."""
        size = tensor.numel() * tensor.element_size()
        self._sweep()
        self._acquire(opened, size)
        if tensor.device.type == "cuda":
            opened.copies[name] = copy = self._copy_from_gpu(tensor, size)
            self._in_flight.append(copy)
        else:
            opened.copies[name] = _Copy(None, tensor)

    def enqueue(self, opened: OpenPass) -> None:
        """See `OpenPass.commit`."""
        with self._condition:
            self._drainable += opened.bytes
            self._undelivered += 1
            self._queue.append(opened)
            self._condition.notify_all()

    def release(self, opened: OpenPass, *, drained: bool = False) -> None:
        """The tensors of a pass are no longer needed."""
        for copy in opened.copies.values():
            if _has_come(copy) and copy.slab is not None:
                self._slabs.give_back(copy.slab)
        opened.copies.clear()
        with self._condition:
            self._pending -= opened.bytes
            if drained:
                self._drainable -= opened.bytes
                self._undelivered -= 1
            opened.bytes = 0
            self._condition.notify_all()

    def flush(self) -> None:
        """Wait until every pass that was committed is delivered. Raises as `check`."""
        with self._condition:
            self._condition.wait_for(lambda: not self._undelivered)
        self.check()

    def close(self) -> None:
        """Deliver what was committed, end the thread. Raises as `check`, unless the error was raised before."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        self._in_flight.clear()
        if not self._reported:
            self.check()

    def _acquire(self, opened: OpenPass, size: int) -> None:
        with self._condition:
            begin = None
            while self._pending + size > self._limit and self._error is None:
                if not self._drainable:
                    raise RecordError(
                        f"one pass holds {opened.bytes + size} bytes so far and max_pending_bytes is {self._limit}: a pass is"
                        " written whole. Raise max_pending_bytes, record fewer layers, or only fingerprints"
                    )
                if begin is None:
                    begin = time.perf_counter()
                    self.stats.waits += 1
                self._condition.wait()
            if begin is not None:
                self.stats.seconds_waited += time.perf_counter() - begin
            self._pending += size
            opened.bytes += size
            self.stats.peak_pending_bytes = max(self.stats.peak_pending_bytes, self._pending)

    def _copy_from_gpu(self, tensor: Tensor, size: int) -> _Copy:
        slab, memory = self._slabs.take(size)
        with torch.inference_mode(False):  # what is made in inference mode could not be written to outside of it
            host = memory.view(tensor.dtype).view(tensor.shape) if size else torch.empty(tensor.shape, dtype=tensor.dtype)
        side = self._streams.get(tensor.device)
        if side is None:
            side = self._streams[tensor.device] = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(side), torch.inference_mode(False), torch.no_grad():
            host.copy_(tensor, non_blocking=True)
        return _Copy(tensor, host, slab, side.record_event())

    def _sweep(self) -> None:
        while self._in_flight and self._in_flight[0].let_go():
            self._in_flight.popleft()

    def _run(self) -> None:
        while (opened := self._next()) is not None:
            begin = time.perf_counter()
            try:
                if self._error is None:
                    self._deliver(opened)
            except BaseException as error:  # whatever it is, it reaches the caller
                with self._condition:
                    self._error = error
                    self._condition.notify_all()
            finally:
                self.stats.seconds_writing += time.perf_counter() - begin
                self.release(opened, drained=True)

    def _next(self) -> OpenPass | None:
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._closing)
            return self._queue.popleft() if self._queue else None

    def _deliver(self, opened: OpenPass) -> None:
        for copy in opened.copies.values():
            copy.wait()
        if opened.deliver is not None:
            opened.deliver({name: copy.host for name, copy in opened.copies.items()})
        self.stats.passes += 1
        self.stats.bytes += opened.bytes

"""Host memory for copies from a GPU: page-locked slabs, used again and again.

Page-locking is slow (a few GB/s), so a slab is never given back while the recording is open. Copies are cut from the slab in
hand one after another and given back about in that order, so that whole slabs fall free.
"""

from __future__ import annotations

import dataclasses
import threading

import torch
from torch import Tensor

SLAB_BYTES = 64 << 20
"""A power of two: torch rounds the size of page-locked memory up to one."""

ALIGNMENT = 512


@dataclasses.dataclass(slots=True, eq=False)
class Slab:
    """Attributes:
    memory: uint8 `[size]`.
    used: bytes from its beginning that are in use, or were.
    users: copies in it that have not been given back.
    """

    memory: Tensor
    used: int = 0
    users: int = 0

    @property
    def room(self) -> int:
        """Bytes that can still be cut."""
        return self.memory.numel() - (self.used if self.users else 0)


class Slabs:
    """The slabs of one recording. Taken from in hooks, given back by the writer's thread."""

    def __init__(self, *, pinned: bool, slab_bytes: int = SLAB_BYTES) -> None:
        self._pinned, self._slab_bytes = pinned, slab_bytes
        self._slabs: list[Slab] = []
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Memory held, in use or not."""
        return sum(slab.memory.numel() for slab in self._slabs)

    def reserve(self, size: int) -> None:
        """Have at least `size` bytes, so that no forward waits for them."""
        with self._lock:
            while self.bytes < size:
                self._add(self._slab_bytes)

    def take(self, size: int) -> tuple[Slab, Tensor]:
        """A slab and `size` bytes of it, uint8 `[size]`; give the slab back when they are no longer needed."""
        with self._lock:
            slab = self._with_room(size)
            if not slab.users:
                slab.used = 0
            start = slab.used
            slab.used = -(-(start + size) // ALIGNMENT) * ALIGNMENT
            slab.users += 1
            return slab, slab.memory[start : start + size]

    def give_back(self, slab: Slab) -> None:
        """One copy of this slab is no longer needed."""
        with self._lock:
            slab.users -= 1

    def _with_room(self, size: int) -> Slab:
        begun = [slab for slab in self._slabs if slab.users and slab.room >= size]
        free = [slab for slab in self._slabs if not slab.users and slab.room >= size]
        if begun or free:
            # The fullest that fits: begun slabs fill up, and the others stay whole for what is large.
            return min(begun or free, key=lambda slab: slab.room)
        return self._add(max(self._slab_bytes, -(-size // ALIGNMENT) * ALIGNMENT))

    def _add(self, size: int) -> Slab:
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of it
            self._slabs.append(Slab(torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)))
        return self._slabs[-1]

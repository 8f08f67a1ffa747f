"""Activation recomputation compared with the first run, block by block.

Kept of the first run are the 128-bit fingerprints of what each block read and returned, on the device: 32 bytes a row instead
of the tensors. Which forward a recomputed block belongs to is told by its input. Each comparison waits for the device, so this
is a check to switch on, not to leave on.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TypeAlias

import torch
from torch import Tensor

from specalign.capture.passes import Seen
from specalign.dump.fingerprint_torch import fingerprint_tensor
from specalign.recorder.errors import RecordError

Marks: TypeAlias = tuple[Tensor, ...]
KEPT = 64
"""Forwards that are remembered for each block: more micro-batches than that are never in flight."""


@dataclasses.dataclass(slots=True, eq=False)
class _Block:
    entered: Marks | None = None
    first: collections.deque[tuple[Marks, Marks]] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=KEPT))
    again: Marks | None = None
    begun: int = 0
    ended: int = 0


class Recomputation:
    """Follows one model's blocks, by global number."""

    def __init__(self) -> None:
        self._blocks: collections.defaultdict[int, _Block] = collections.defaultdict(_Block)
        self._complaints: list[str] = []

    def enter(self, number: int, seen: Seen, *, again: bool) -> None:
        """Block `number` is about to run, in a forward or again inside backward."""
        block = self._blocks[number]
        if again:
            block.again = marks(seen)
            block.begun += 1
        else:
            block.entered = marks(seen)

    def leave(self, number: int, seen: Seen, *, again: bool) -> None:
        """It has run."""
        block = self._blocks[number]
        if again:
            block.ended += 1
            self._compare(number, block, marks(seen))
        elif block.entered is not None:
            block.first.append((block.entered, marks(seen)))
            block.entered = None

    def check(self) -> None:
        """Raises `RecordError` if a second run gave other bits than the first, or could not be compared."""
        for number, block in sorted(self._blocks.items()):
            if block.begun != block.ended:
                self._complaints.append(
                    f"block {number}: {block.begun - block.ended} of {block.begun} recomputations stopped before the block's end,"
                    " so that its output was never made: turn early stopping off (checkpoint(..., early_stop=False))"
                )
        if self._complaints:
            shown = "\n  ".join(self._complaints[:16])
            more = f"\n  and {len(self._complaints) - 16} more" if len(self._complaints) > 16 else ""
            raise RecordError(f"recomputed activations are not those of the forward:\n  {shown}{more}")

    def _compare(self, number: int, block: _Block, output: Marks) -> None:
        read, block.again = block.again, None
        at = next((at for at, pair in enumerate(block.first) if read is not None and _equal(pair[0], read)), None)
        if at is None:
            self._complaints.append(
                f"block {number} was recomputed from an input that none of its last {len(block.first)} forwards had"
            )
            return
        first = block.first[at]
        del block.first[at]
        rows = sum(int((one != other).any(1).sum()) for one, other in zip(first[1], output, strict=False))
        if not _equal(first[1], output):
            self._complaints.append(
                f"block {number}: {rows} of {len(output[0])} rows differ from the first run on the same input"
            )


def marks(seen: Seen) -> Marks:
    """Fingerprints of the stream at one place: of hidden, and of the residual carried beside it."""
    tensors = [item for item in (seen.hidden, seen.residual) if isinstance(item, Tensor)]
    with torch.no_grad():
        return tuple(fingerprint_tensor(tensor.detach()) for tensor in tensors)


def _equal(one: Marks, other: Marks) -> bool:
    return len(one) == len(other) and all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))

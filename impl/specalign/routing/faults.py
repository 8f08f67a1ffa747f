"""What can be wrong with raw positions, as codes that a kernel finds and as sentences: the same on CPU and GPU.

A fault is one int64: `8 * place + code`, where place is token * k + slot, or for experts T * k + expert. The smallest is
reported, so the first bad (token, slot) is, whatever ran first.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from torch import Tensor

from specalign.routing.errors import RoutingError

NO_FAULT: Final = 2**63 - 1
OUT_OF_RANGE: Final = 1
TAKEN: Final = 2
OTHER_EXPERT: Final = 3
OUT_OF_ORDER: Final = 4
TOO_FEW: Final = 5
NO_ROOM: Final = 6

_TO_DO: Final = "; make a ReceiveLayout of the expert ids, whose positions are right"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What was checked, for the sentence.

    Attributes:
        positions: `[T, k]`.
        num_rows: how many rows there are.
        expert_ids, counts, offsets: what the rows must hold, if that was checked: `[T, k]`, `[E]`, `[E]`.
        alignment: each expert's rows are filled up to a multiple of it.
    """

    positions: Tensor
    num_rows: int
    expert_ids: Tensor | None = None
    counts: Tensor | None = None
    offsets: Tensor | None = None
    alignment: int = 1

    def describe(self, fault: int) -> RoutingError:
        """The error that a fault is."""
        place, code = divmod(fault, 8)
        slots = self.positions.shape[1]
        if code == TOO_FEW:
            return RoutingError(self._too_few(place - self.positions.numel()))
        if code == NO_ROOM:
            return RoutingError(self._no_room(place - self.positions.numel()))
        token, slot = divmod(place, slots)
        row = int(self.positions[token, slot])
        return RoutingError(f"token {token}, slot {slot}: " + self._of_route(code, row, place, slots) + _TO_DO)

    def _of_route(self, code: int, row: int, place: int, slots: int) -> str:
        if code == OUT_OF_RANGE:
            return f"position {row} is none of the {self.num_rows} rows, and not -1, which means none"
        if code == TAKEN:
            first = int((self.positions.reshape(-1) == row).nonzero()[0])
            return f"position {row} is taken by token {first // slots}, slot {first % slots}: two routes would write one row"
        expert = int(self.expert_ids.reshape(-1)[place])  # type: ignore[union-attr]
        if code == OTHER_EXPERT:
            return f"position {row} is none of the rows of expert {expert}, {self._range(expert)}"
        return f"position {row} of expert {expert} is out of order: its routes follow one another row by row, by token and slot"

    def _range(self, expert: int) -> str:
        if not 0 <= expert < len(self.counts):  # type: ignore[arg-type]
            return f"of which there are {len(self.counts)}"  # type: ignore[arg-type]
        begin, count = int(self.offsets[expert]), int(self.counts[expert])  # type: ignore[index]
        return f"{begin} to {begin + count - 1}" if count else "which has none"

    def _too_few(self, expert: int) -> str:
        begin, count = int(self.offsets[expert]), int(self.counts[expert])  # type: ignore[index]
        have = int((self.expert_ids == expert).logical_and(self.positions >= 0).sum())  # type: ignore[union-attr]
        return f"expert {expert} has {have} routes, and {count} are counted: row {begin + count - 1} stays empty{_TO_DO}"

    def _no_room(self, expert: int) -> str:
        begin, count = int(self.offsets[expert]), int(self.counts[expert])  # type: ignore[index]
        if count < 0:
            return f"expert {expert} is counted {count} times{_TO_DO}"
        end = begin - -count // self.alignment * self.alignment
        filled = f", filled up to a multiple of {self.alignment}," if self.alignment > 1 else ""
        return f"expert {expert} has rows {begin} to {end - 1}{filled} and there are {self.num_rows} rows{_TO_DO}"

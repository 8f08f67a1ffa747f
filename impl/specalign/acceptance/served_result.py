"""What a serving engine reported, in the definitions of this room."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from specalign.acceptance.errors import AcceptanceError

VLLM: Final = "vLLM"
SGLANG: Final = "SGLang"
TENSORRT_LLM: Final = "TensorRT-LLM"

END_NOT_KNOWN: Final = (
    "counts what was verified, not what was kept: a text whose end token is an accepted draft counts up to k tokens too many in"
    " its last round, and these figures do not tell how often that was"
)
"""k: drafts of a chain."""


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Acceptance figures of an engine.

    Attributes:
        engine: `VLLM`, `SGLANG` or `TENSORRT_LLM`.
        form: which of its figures were read.
        length: acceptance length as `rounds` defines it: tokens gained over rounds, without the token of prefill; None where the
            figures leave only bounds.
        low, high: what the length is between, as far as the figures tell: rounding, intervals that cannot be weighed, ranks that
            differ, ends of texts. Equal to `length` where nothing of that is open; what stays untold is in `notes`.
        per_position: of each position 1..: the share of the rounds that proposed so far which accepted so far; empty if unknown.
        rounds, accepted, proposed: sums, as far as they are known. `proposed` counts the nodes of a tree, not its depth.
        what_converted: how `length` was made of what the engine reports.
        notes: what these figures do not tell, one sentence each.
    """

    engine: str
    form: str
    length: float | None
    low: float
    high: float
    per_position: tuple[float, ...]
    rounds: int | None
    accepted: int | None
    proposed: int | None
    what_converted: str
    notes: tuple[str, ...] = ()


def of_means(
    engine: str, form: str, means: Sequence[float], *, half: float, what: str, unit: str, notes: tuple[str, ...]
) -> Served:
    """Figures of means whose numbers of rounds are unknown: the value if they agree, bounds if not.

    Args:
        means: each already in our definition; at least one.
        half: a printed mean is that far from the real one, at most.
        unit: what one mean is of, in the plural.
    """
    low, high = max(min(means) - half, 1.0), max(means) + half
    agree = min(means) == max(means)
    if not agree:
        notes = (f"{len(means)} {unit} differ, and how many rounds each counted is not known: bounds, no value", *notes)
    return Served(engine, form, means[0] if agree else None, low, high, (), None, None, None, what, notes)


def shares(accepted: Sequence[int], proposed: Sequence[int], place: str) -> tuple[float, ...]:
    """Accepted over proposed of each position, up to the last that was proposed.

    Raises:
        AcceptanceError: a position accepted more than it proposed, or more than the position before it.
    """
    for position, (right, asked) in enumerate(zip(accepted, proposed, strict=True)):
        before = accepted[position - 1] if position else right
        if right > asked or right > before:
            raise AcceptanceError(
                f"{place}: position {position} accepted {right} of {asked} drafts, and {before} rounds accepted the one before"
                " it; no run counts so. Were the figures taken in the middle of an update? Take them again while the server is"
                " idle"
            )
    return tuple(right / asked for right, asked in zip(accepted, proposed, strict=True) if asked)

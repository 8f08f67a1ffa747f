"""Which known fault a drop looks like: those of the golden's table whose length and rates lie near the run's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from specalign.acceptance.golden_file import KnownRow
from specalign.acceptance.metrics import Interval

FITS: Final = 2.0
"""Standard errors within which a run looks like a fault."""

Z: Final = 1.96
"""Standard errors from the middle of a 95% interval to its bounds."""


def looks_like(rows: Sequence[KnownRow], length: Interval, per_position: Sequence[float], rounds: int) -> tuple[str, ...]:
    """Faults within `FITS` standard errors, the nearest first.

    Args:
        rows: of the golden.
        length: of the run, with its 95% interval.
        per_position: the run's rates; empty if they are not known.
        rounds: of the run.
    """
    near = [
        (distance, row.name) for row in rows if row.fault and (distance := _distance(row, length, per_position, rounds)) <= FITS
    ]
    return tuple(name for _, name in sorted(near))


def format_likeness(names: Sequence[str]) -> str:
    """`looks like: ids +1, ids -1`."""
    return f"looks like: {', '.join(names) or 'none of the known faults'}"


def error_of(interval: Interval) -> float:
    """The standard error that a 95% interval tells."""
    return (interval.high - interval.low) / (2 * Z)


def spread(per_position: Sequence[float]) -> float:
    """Standard deviation of the tokens of one round, out of the shares of rounds that accepted so far."""
    rates = [1.0, *per_position, 0.0]
    chances = [a - b for a, b in itertools.pairwise(rates)]
    mean = sum(count * chance for count, chance in enumerate(chances))
    return math.sqrt(sum((count - mean) ** 2 * chance for count, chance in enumerate(chances)))


def _distance(row: KnownRow, length: Interval, per_position: Sequence[float], rounds: int) -> float:
    """The largest of the distances of length and rates, in standard errors of their difference."""
    errors = [math.hypot(error_of(row.length), error_of(length))]
    gaps = [abs(row.length.value - length.value)]
    # By how much the prompts widen the interval of the length beyond that of independent rounds.
    widening = max(1.0, error_of(length) / max(spread(per_position) / math.sqrt(rounds), 1e-9))
    for before, now in zip(row.per_position, per_position, strict=False):
        gaps.append(abs(before - now))
        # A rate varies with the prompts as the length does; without counts of its own, binomially, widened as the length is.
        errors.append(max(math.sqrt((before * (1 - before) + now * (1 - now)) / rounds), 1e-3) * widening)
    return max(gap / max(error, 1e-9) for gap, error in zip(gaps, errors, strict=True))

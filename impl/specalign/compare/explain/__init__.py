"""Known causes of a divergence, tried one after the other on the rows that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from specalign.compare.aligned import AlignedRows
from specalign.compare.explain.places import rows_permuted
from specalign.compare.explain.sample import Sample, take_sample
from specalign.compare.explain.sets import one_expert, one_phase, one_rounding, terminal_rows
from specalign.compare.explain.values import boundary_shifted, partial_sums, post_norm, residual_twice, residual_unadded
from specalign.compare.result import CompareReport, Explanation

CAUSES: Final[Mapping[str, tuple[str, Callable[[Sample], Explanation | None]]]] = {
    "boundary-shifted": ("one side holds the boundary after or before the one that it names", boundary_shifted),
    "post-norm": ("one side holds the state after the final norm", post_norm),
    "residual-not-added": ("one side holds what the block adds, without the residual stream", residual_unadded),
    "residual-twice": ("one side added the residual stream twice", residual_twice),
    "partial-sum": ("each rank of one side holds its own addend of a tensor-parallel sum", partial_sums),
    "rows-permuted": ("one side holds the right rows in another order, or two requests exchanged", rows_permuted),
    "terminal-rows": ("only the last row of each request differs", terminal_rows),
    "one-expert": ("only rows that were routed to one expert differ", one_expert),
    "one-phase": ("only rows of the prefill, or only rows of decode steps, differ", one_phase),
    "one-rounding": ("no element differs by more than one representable number", one_rounding),
}
"""Code → what it means, and the test for it. The first that fits is the explanation: values first, then places, then sizes."""


def explain_divergence(report: CompareReport, rows: AlignedRows) -> Explanation | None:
    """The known cause that fits the first key that differs; None if none does, which is the rule for a new fault.

    Raises:
        DumpError: the dump changed meanwhile.
    """
    sample = take_sample(report, rows)
    if sample is None:
        return None
    return next(filter(None, (test(sample) for _, test in CAUSES.values())), None)

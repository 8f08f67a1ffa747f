"""Causes that show in which rows differ, and in how small the differences are."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.explain.sample import Sample
from specalign.compare.result import Explanation
from specalign.dump.dtypes import DTYPES

CHANCE: Final = 1e-4
"""A set of rows explains nothing if rows that differ at random would all fall into it more often than this."""


def terminal_rows(sample: Sample) -> Explanation | None:
    """All rows that differ are the last ones of their requests."""
    last: dict[int, int] = {}
    for row in np.flatnonzero(sample.compared).tolist():  # ascending by position
        last[int(sample.aligned.requests_a[row])] = row
    inside = np.zeros(len(sample.wrong), np.bool_)
    inside[list(last.values())] = True
    if not _tells(sample, inside):
        return None
    count = int(np.count_nonzero(sample.wrong))
    return sample.explanation(
        "terminal-rows",
        f"the {count} rows that differ are the last compared rows of their requests, and no other row differs",
        "does one side run the last token with something else than its prefix (an overlap step, padding)?",
        count,
        count,
    )


def one_expert(sample: Sample) -> Explanation | None:
    """All rows that differ were routed to one expert, where routes were recorded."""
    if sample.key.layer is None:
        return None
    numbers = np.flatnonzero(sample.compared)
    found = sample.aligned.tensor("a", f"routes.{sample.key.layer}", numbers) or sample.aligned.tensor(
        "b", f"routes.{sample.key.layer}", numbers
    )
    if found is None:
        return None
    routes, wrong = found[0], sample.wrong[numbers]
    for expert in np.unique(routes[wrong][0]).tolist():
        chosen = (routes == expert).any(axis=1)
        inside = np.zeros(len(sample.wrong), np.bool_)
        inside[numbers[chosen]] = True
        if _tells(sample, inside):
            count = int(np.count_nonzero(wrong))
            return sample.explanation(
                "one-expert",
                f"all {count} rows that differ were routed to expert {expert} of layer {sample.key.layer}"
                f" ({int(np.count_nonzero(chosen))} rows were), and no other row differs",
                f"compare the weights, the scales and the order of expert {expert}",
                count,
                count,
            )
    return None


def one_phase(sample: Sample) -> Explanation | None:
    """All rows that differ ran in decode steps, or all in the prefill, of one side."""
    count = int(np.count_nonzero(sample.wrong))
    for side in ("b", "a"):
        decoded = sample.aligned.decoded("b" if side == "b" else "a")
        for phase, inside in (("decode steps", decoded), ("the prefill", ~decoded)):
            if _tells(sample, inside & sample.compared):
                return sample.explanation(
                    "one-phase",
                    f"all {count} rows that differ ran in {phase} of side {side}, and none of its other rows differs",
                    f"{phase} of side {side} use another kernel or another shape: is it invariant to the batch?",
                    count,
                    count,
                )
    return None


def one_rounding(sample: Sample) -> Explanation | None:
    """No element differs by more than one representable number."""
    result = sample.result
    if result.max_ulp != 1 or not DTYPES[result.dtype_a].is_float:
        return None
    return sample.explanation(
        "one-rounding",
        f"{result.elements_mismatching} elements of {result.rows_mismatching} rows differ, each by one representable number",
        "look for another order of a sum, a fused multiply-add, or a cast that one side makes and the other does not",
        result.rows_mismatching,
        result.rows_mismatching,
    )


def _tells(sample: Sample, inside: NDArray[np.bool_]) -> bool:
    """All rows that differ lie inside, some rows do not, and that is no accident."""
    wrong, compared = sample.wrong, sample.compared
    if (wrong & ~inside).any():
        return False
    share = float(np.count_nonzero(inside & compared)) / max(1, int(np.count_nonzero(compared)))
    return 0.0 < share < 1.0 and bool(_power(share, int(np.count_nonzero(wrong))) < CHANCE)


def _power(share: float, count: int) -> Any:
    return np.float64(share) ** count

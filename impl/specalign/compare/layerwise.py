"""Compare two dumps: match their rows, compare every tensor of every matched row, and account for everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from specalign.compare.aligned import AlignedRows
from specalign.compare.blocks import Settings
from specalign.compare.comparison import Comparison, position_edges, prepare
from specalign.compare.coverage import Coverage, Expect, sequence_of
from specalign.compare.declared import Declared
from specalign.compare.explain import explain_divergence
from specalign.compare.findings import (
    count_problems,
    key_problems,
    key_results,
    request_matches,
    unfinished_problems,
    value_problems,
)
from specalign.compare.modes import BITS, Mode
from specalign.compare.result import CompareReport, KeyResult, Problem
from specalign.compare.running import Compared, Progress, run
from specalign.compare.selection import EVERYTHING, Selection
from specalign.compare.tally import Tally
from specalign.dump.dtypes import DTYPES
from specalign.dump.nonfinite import has_nonfinite
from specalign.dump.passes import Dump, TensorSpec


def compare_dumps(
    a: Dump,
    b: Dump,
    *,
    selection: Selection = EVERYTHING,
    mode: Mode = BITS,
    expect: Expect = "both",
    declared: Sequence[Declared] = (),
    jobs: int = 1,
    progress: Progress | None = None,
    explain: bool = True,
    allow_unfinished: bool = False,
) -> CompareReport:
    """Compare two dumps of one model.

    Args:
        a, b: the dumps, of any format. Swapping them swaps the sides of the report and nothing else.
        selection: which layers.
        mode: what counts as equal; raw bits unless the caller chooses a tolerance.
        expect: which rows must be compared, see `Coverage`.
        declared: gaps that are known.
        jobs: processes that compare.
        progress: told how far the comparison is.
        explain: look for a known cause if something differs.
        allow_unfinished: take dumps without an end mark, such as those of a server that was killed; a note says so.

    Raises:
        DumpError: a dump that cannot be read.
        ValueError: a tolerance for dumps that hold fingerprints, which tell equal bits from others and nothing more.
    """
    comparison = prepare(a, b, selection)
    _refuse_tolerance(comparison, mode)
    settings = Settings(mode, position_edges(comparison.universe.positions))
    coverage = Coverage(comparison, expect, tuple(declared))
    compared, problems = run(comparison, settings, jobs, progress)
    unfinished = unfinished_problems(comparison)
    problems = problems if allow_unfinished else [*unfinished, *problems]
    report = _report(comparison, coverage, settings, compared, problems)
    if allow_unfinished and unfinished:
        report = dataclasses.replace(report, notes=(*report.notes, *(problem.what for problem in unfinished)))
    if not explain or report.first is None:
        return report
    return dataclasses.replace(report, explanation=explain_divergence(report, AlignedRows(comparison)))


def _report(
    comparison: Comparison, coverage: Coverage, settings: Settings, compared: Sequence[Compared], problems: Sequence[Problem]
) -> CompareReport:
    between: dict[str, Tally] = next((item.tallies for item in compared if item.kind == "a-b"), {})
    _note_wrong(comparison, between)
    keys, lacking = key_results(comparison, coverage, between)
    found = (
        *comparison.universe.problems,
        *coverage.unmatched(),
        *key_problems(comparison, coverage.declared),
        *coverage.missing(),
        *lacking,
        *problems,
        *(problem for item in compared for problem in value_problems(comparison, item.kind, item.tallies)),
        *coverage.stale(),
        *count_problems(coverage.expect, keys),
    )
    a, b = comparison.dumps
    return CompareReport(
        a=coverage.account("a"),
        b=coverage.account("b"),
        mode=str(settings.mode),
        keys=keys,
        problems=found,
        declared=tuple(entry.format() for entry in coverage.declared),
        requests=request_matches(comparison),
        notes=tuple(dict.fromkeys([*a.notes, *b.notes, *_blind(keys, comparison)])),
        position_edges=settings.edges,
    )


def _note_wrong(comparison: Comparison, tallies: dict[str, Tally]) -> None:
    for key, tally in tallies.items():
        if tally.wrong:
            wrong = np.zeros(len(comparison.universe.positions), np.bool_)
            wrong[np.concatenate(tally.wrong)] = True
            comparison.wrong[key] = wrong


def _blind(keys: Sequence[KeyResult], comparison: Comparison) -> list[str]:
    """What was compared by fingerprints on both sides that do not come with counts, and so tell nothing of infinities and NaN."""
    stored = [{key for f in side for info in f.infos for key, spec in info.tensors.items() if _is_blind(spec)}
              for side in comparison.forwards]  # fmt: skip
    blind = [key.key for key in keys if key.key in stored[0] & stored[1]]
    return (
        [
            f"both sides hold only fingerprints of {sequence_of(blind)}, without counts of non-finite elements: equal ones may"
            " hide equal infinities or NaN"
        ]
        if blind
        else []
    )


def _is_blind(spec: TensorSpec) -> bool:
    return spec.fingerprint and not spec.counted and has_nonfinite(DTYPES[spec.dtype])


def _refuse_tolerance(comparison: Comparison, mode: Mode) -> None:
    if mode.is_bits:
        return
    for side in comparison.forwards:
        for forward in side:
            hashed = [key for info in forward.infos for key, spec in info.tensors.items() if spec.fingerprint]
            if hashed:
                raise ValueError(
                    f"{forward.where} holds fingerprints ({hashed[0]}), which tell equal bits from others and nothing more:"
                    " compare with --mode bits, or record in full"
                )

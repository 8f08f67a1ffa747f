"""The comparison itself, in one process or in several."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import dataclasses
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator

from specalign.compare.blocks import Settings, Worker, merge_tallies
from specalign.compare.comparison import Comparison
from specalign.compare.pairing import Pairing
from specalign.compare.result import Problem
from specalign.compare.tally import Tally
from specalign.dump.errors import DumpError

Progress = Callable[[int, int], None]
"""Called with pairs of rows that are done, and all there are."""

PARTS = 4
"""Pieces of work for each process: enough for the last ones to end together, few enough to share what is open."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """What came out of one kind of pairing ("a-b", "a-a" or "b-b")."""

    kind: str
    tallies: dict[str, Tally]


def run(comparison: Comparison, settings: Settings, jobs: int, progress: Progress | None) -> tuple[list[Compared], list[Problem]]:
    """Compare all pairs of rows of all groups."""
    work = [(kind, part) for group in comparison.groups for kind, whole in comparison.pairings(group).items()
            for part in whole.split(PARTS * jobs if jobs > 1 else (PARTS if progress else 1))]  # fmt: skip
    total, done = sum(len(part) for _, part in work), 0
    results: list[Compared] = []
    problems: dict[tuple[str, str], Problem] = {}
    for kind, size, tallies, found in _results(comparison, settings, work, jobs):
        results.append(Compared(kind, tallies))
        for problem in found:
            problems.setdefault((problem.code, problem.what + problem.where), problem)
        done += size
        if progress is not None:
            progress(done, total)
    kinds = dict.fromkeys(item.kind for item in results)
    merged = [Compared(kind, merge_tallies([item.tallies for item in results if item.kind == kind])) for kind in kinds]
    return merged, list(problems.values())


_Result = tuple[str, int, dict[str, Tally], list[Problem]]


def _results(comparison: Comparison, settings: Settings, work: list[tuple[str, Pairing]], jobs: int) -> Iterator[_Result]:
    if jobs == 1 or len(work) < 2:
        yield from (_one(comparison, settings, kind, part) for kind, part in work)
        return
    context = multiprocessing.get_context(start_method())
    # All processes start at once where they are forked: no more of them than there is work or than the machine has cores.
    jobs = min(jobs, len(work), os.cpu_count() or 1)
    with concurrent.futures.ProcessPoolExecutor(jobs, context, _remember, (comparison, settings)) as pool:
        for future in [pool.submit(_one_of_a_worker, kind, part) for kind, part in work]:
            try:
                yield future.result()
            except concurrent.futures.process.BrokenProcessPool as error:
                raise DumpError(
                    "a process that compared was ended from outside (out of memory, or a dump that was cut off while it was"
                    " read): use fewer --jobs, and compare dumps that nobody writes to"
                ) from error


def start_method() -> str:
    """A process that has started threads, as torch does, must not be forked; a fresh one is sent everything, once."""
    return "spawn" if "torch" in sys.modules or "fork" not in multiprocessing.get_all_start_methods() else "fork"


_held: list[tuple[Comparison, Settings]] = []
"""In a worker process: what it works on."""


def _remember(comparison: Comparison, settings: Settings) -> None:
    _held[:] = [(comparison, settings)]


def _one_of_a_worker(kind: str, part: Pairing) -> _Result:
    return _one(*_held[0], kind, part)


def _one(comparison: Comparison, settings: Settings, kind: str, part: Pairing) -> _Result:
    left, right = (comparison.shelf(side, part.keys) for side in part.sides)
    tallies = Worker(left, right, comparison.universe.positions, settings).run(part.located(comparison.indexes))
    return kind, len(part), tallies, [*left.problems.values(), *right.problems.values()]

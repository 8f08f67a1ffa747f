"""`@pytest.mark.bitwise(runs=N)`: the test function runs N times, and what it observes must have the same bits each time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_specalign.determinism import save_for_next_run
from pytest_specalign.marks import BitwiseMark, read_mark
from pytest_specalign.options import is_active
from pytest_specalign.state import OBSERVER, RUNNING
from pytest_specalign.verdicts import Comparison, Verdict, note_comparison

if TYPE_CHECKING:
    from specalign.compare.leaves import Leaf

_SHOWN: Final = 10


class Observer:
    """What the fixture `bitwise` gives: takes tensors, and compares them with those of the first run."""

    def __init__(self) -> None:
        self.run = 0
        self.first: dict[str, list[Leaf]] = {}
        self._seen: list[str] = []
        self._found: list[str] = []
        self._tensors: dict[str, int] = {}
        self._different: dict[str, list[str]] = {}

    def observe(self, name: str, tensor: Any, *, allow_nan: bool = False) -> None:
        """Hand over a tensor whose bits must be the same in each run.

        It is copied in the first run and compared in the others; a difference fails the test after its last run.

        Args:
            name: each name once a run; the same names in the same order in each run.
            tensor: a torch tensor or a numpy array, or dicts, lists and tuples of them.
            allow_nan: take NaN as bits like any other. Otherwise one fails the test: where all is NaN, everything agrees.

        Raises:
            specalign.compare.leaves.NotComparableError: nothing that could be compared.
            ValueError: a name that is no text, is empty, or comes twice in one run; a call outside of the runs.
        """
        if self.run == 0:
            raise ValueError(
                f"bitwise.observe({name!r}): no run is going on. Observe in the test function itself, not in a fixture, and name"
                " bitwise among its arguments"
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"bitwise.observe: the name is {name!r}: give a text that tells the tensors of this test apart")
        if name in self._seen:
            raise ValueError(f"bitwise.observe: {name!r} was observed before in this run: give each tensor a name of its own")
        self._seen.append(name)
        read_leaves = importlib.import_module("specalign.compare.leaves").read_leaves
        leaves: list[Leaf] = read_leaves(repr(name), tensor, allow_nan=allow_nan)
        if self.run == 1:
            self.first[name] = leaves
        elif name in self.first:
            self._compare(name, leaves)

    def begin(self, run: int) -> None:
        """A run begins; runs count from 1."""
        self.run = run
        self._seen = []

    def end(self) -> None:
        """A run ends: it must have observed what the first one did."""
        first = list(self.first)
        if self._seen != first:
            self._found.append(f"run {self.run} observed {_names(self._seen)}, run 1 observed {_names(first)}")

    def report(self, runs: int) -> str | None:
        """Why the test fails, or None."""
        if not self.first and not self._found:
            return "nothing was observed, so nothing was compared: call bitwise.observe(name, tensor) in the test"
        if not self._found:
            return None
        more = [f"  … and {len(self._found) - _SHOWN} differences more"] if len(self._found) > _SHOWN else []
        lines = [f"not the same bits in {runs} runs:", *(f"  {text}" for text in self._found[:_SHOWN]), *more]
        return "\n".join(lines)

    def _compare(self, name: str, leaves: list[Leaf]) -> None:
        differences = importlib.import_module("specalign.compare.leaves").differences
        found = differences(repr(name), self.first[name], leaves, "in run 1", f"in run {self.run}")
        told = [f"run {self.run}, {text}" for text in found]
        self._found += told
        self._tensors[name] = self._tensors.get(name, 0) + len(leaves)
        self._different.setdefault(name, []).extend(told[: len(leaves)])

    def comparisons(self, runs: int) -> Iterator[Comparison]:
        """One for each name of the first run: its tensors, as often as another run gave them."""
        for name, leaves in self.first.items():
            compared, different = self._tensors.get(name, 0), self._different.get(name, [])
            whole = compared == len(leaves) * (runs - 1)
            verdict: Verdict = "different" if different else "equal" if whole else "not-proven"
            first = different[0] if different else "" if whole else f"not observed in each of {runs} runs"
            yield Comparison(name, verdict, compared, len(different), "tensors", "bitwise", first)


@pytest.fixture
def bitwise(request: pytest.FixtureRequest) -> Iterator[Observer]:
    """`bitwise.observe(name, tensor)` in a test with `@pytest.mark.bitwise(runs=2)`: the bits must be the same in each run.

    The test function is called again with the same values of its fixtures, which are set up once. A value that a run changes is
    changed for the next one. With the fixture `deterministic`, each run begins with the same random numbers.
    """
    item = request.node
    if item.get_closest_marker("bitwise") is None:
        pytest.fail(
            f"{item.nodeid}: the fixture bitwise compares nothing without its mark; add @pytest.mark.bitwise(runs=2)",
            pytrace=False,
        )
    if RUNNING in item.stash:  # asked for by name while the test runs
        yield item.stash[RUNNING]
        return
    item.stash[OBSERVER] = Observer()
    yield item.stash[OBSERVER]
    del item.stash[OBSERVER]  # it holds copies of tensors, and the item lives as long as the session


def run_repeatedly(item: pytest.Function) -> bool | None:
    """Call a test that is marked `bitwise` N times, each by way of pytest's own hook; None for any other test.

    A mark counts where the plugin is active or the test uses its fixture `bitwise`: elsewhere the name may be somebody else's.
    """
    mark = item.get_closest_marker("bitwise")
    if mark is None or RUNNING in item.stash or not (OBSERVER in item.stash or is_active(item.config)):
        return None
    read = read_mark(mark)
    runs = read.runs if isinstance(read, BitwiseMark) else 0
    observer = item.stash.get(OBSERVER, None) or Observer()
    item.stash[RUNNING] = observer
    try:
        _run_all(item, observer, runs)
    finally:
        observer.run = 0
        del item.stash[RUNNING]
        for comparison in observer.comparisons(runs):
            note_comparison(item, comparison)
    reason = observer.report(runs)
    if reason is not None:
        if not observer.first:
            note_comparison(item, Comparison("(nothing)", "not-proven", 0, 0, "tensors", "bitwise", "nothing was observed"))
        hint = "" if "deterministic" in item.fixturenames else _HINT
        pytest.fail(f"{item.nodeid}: {reason}{hint}", pytrace=False)
    return True


_HINT: Final = "\n  next: if it draws random numbers, ask for the fixture deterministic, under which each run draws the same"


def _run_all(item: pytest.Function, observer: Observer, runs: int) -> None:
    rewind = save_for_next_run(item)
    for run in range(1, runs + 1):
        if run > 1:
            rewind()
        observer.begin(run)
        try:
            item.ihook.pytest_pyfunc_call(pyfuncitem=item)
        except (pytest.skip.Exception, pytest.xfail.Exception) as outcome:
            if run == 1:
                raise
            pytest.fail(f"{item.nodeid}: run {run} of {runs} ended with {outcome!r}, and run 1 did not", pytrace=False)
        except Exception as error:
            error.add_note(f"bitwise: in run {run} of {runs}")
            raise
        observer.end()
        if run == 1 and not observer.first:
            return


def _names(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return f"{len(names)} ({shown})" if names else "nothing"

"""The fixture `specalign_golden`: results of a test held against approved ones that the repository keeps."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_specalign.bitwise import Observer
from pytest_specalign.golden_checker import Checker
from pytest_specalign.golden_sides import Asked, Keep
from pytest_specalign.state import BROKE, OBSERVER

if TYPE_CHECKING:
    from specalign.compare.modes import Mode
    from specalign.dump.passes import Dump
    from specalign.golden.check import GoldenReport, Nonfinite


class Expected:
    """A golden that a result is compared with by `==`, once.

    numpy and torch leave `==` to it: with their arrays on the left as well, there is one answer and no array of answers.
    """

    __array_ufunc__ = None  # else numpy would compare each element with this object
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, checker: Checker, asked: Asked) -> None:
        self._checker = checker
        self._asked = asked
        self._found: list[str] = []

    def __eq__(self, other: object) -> bool:
        __tracebackhide__ = True
        if isinstance(other, Expected):
            pytest.fail("a golden was compared with a golden; compare a result with it")
        report = _told(lambda: self._checker.check_tensors(self._asked, other))
        self._found = [] if report is None or report.ok else report.format().splitlines()
        self._checker.unequal += self._found[:1]
        return not self._found

    def __ne__(self, other: object) -> NoReturn:
        __tracebackhide__ = True
        pytest.fail("a golden says what a result is, not what it is not: write assert result == golden")

    def __bool__(self) -> NoReturn:
        __tracebackhide__ = True
        pytest.fail("a golden alone is neither true nor false: write assert result == golden, or golden.check(tensors=result)")

    def __repr__(self) -> str:
        return f"golden {self._asked.name!r}" if self._asked.name else "golden"

    def explain(self) -> list[str] | None:
        """What was found by the last `==`, for pytest's message."""
        return self._found or None


class Golden(Expected):
    """What the fixture gives: `golden.check(...)`, `result == golden`, and `result == golden("name")`."""

    def __call__(
        self,
        name: str,
        *,
        mode: str | Mode = "bits",
        keep: Keep = "values",
        arch: str | None = None,
        allow_nonfinite: Nonfinite | None = None,
    ) -> Expected:
        """The golden of that name, to be compared by `==`. Arguments as for `check`."""
        return Expected(self._checker, Asked(name, mode, keep, arch, allow_nonfinite))

    def check(
        self,
        name: str = "",
        *,
        tensors: Any = None,
        dump: Dump | str | os.PathLike[str] | None = None,
        mode: str | Mode = "bits",
        keep: Keep = "values",
        arch: str | None = None,
        allow_nonfinite: Nonfinite | None = None,
    ) -> None:
        """Hold a result against its golden; fail the test if it does not agree.

        Args:
            name: of the result, each once in a test; a test's only result needs none.
            tensors: a torch tensor, a numpy array, or dicts, lists and tuples of them.
            dump: in place of tensors, a dump or the path of one.
            mode: what counts as equal: "bits", or a tolerance "ulp:N", "abs:X", "rel:X".
            keep: how the golden is written: "values"; "fingerprint", 16 bytes a row, which tells only that bits differ;
                "external", in the store that the hook `pytest_specalign_golden_store` names.
            arch: where the result was computed ("sm90", "cpu"), where that is not the leased GPU and not where its tensors are.
                "any": every machine must give these bits.
            allow_nonfinite: "no" non-finite values, "inf" (−inf is legal), "all" (NaN too). By default none, and −inf in
                tensors called logits or logprobs.
        """
        __tracebackhide__ = True
        if (tensors is None) == (dump is None):
            pytest.fail("golden.check: give either tensors=… or dump=…, and not None: nothing was compared")
        asked = Asked(name, mode, keep, arch, allow_nonfinite)
        if dump is not None:
            report = _told(lambda: self._checker.check_dump(asked, dump))
        else:
            report = _told(lambda: self._checker.check_tensors(asked, tensors))
        if report is not None and not report.ok:
            pytest.fail(report.format())


@pytest.fixture
def specalign_golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """`golden.check(name=…, tensors=… | dump=…, mode="bits")`, or `assert result == golden`, against files in `__golden__`.

    Missing goldens are written with `--specalign-golden=new`, others replaced with `--specalign-golden=update`. A test that
    passes without having compared anything fails, and so does one whose `result == golden` was false. With
    `@pytest.mark.bitwise`, the results of each run must have the same bits.
    """
    item = request.node
    owns_observer = item.get_closest_marker("bitwise") is not None and OBSERVER not in item.stash
    if owns_observer:
        item.stash[OBSERVER] = Observer()
    checker = Checker(item)
    yield Golden(checker, Asked())
    if owns_observer and OBSERVER in item.stash:
        del item.stash[OBSERVER]
    if BROKE in item.stash:
        return
    if not checker.count:
        pytest.fail(
            f"{item.nodeid}: the test passed and compared nothing with a golden: call golden.check, or take the fixture away"
        )
    if checker.unequal:
        pytest.fail(
            f"{item.nodeid}: the test passed, and `result == golden` was false: {'; '.join(checker.unequal)}. Write assert before"
            " it; a test that expects a difference puts golden.check into pytest.raises(pytest.fail.Exception)"
        )


@pytest.fixture(name="golden")
def golden_alias(specalign_golden: Golden) -> Golden:
    """A short name for `specalign_golden`; a conftest's own `golden` takes its place."""
    return specalign_golden


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """pytest's lines for a failed `result == golden`; None for any other comparison."""
    golden = next((side for side in (left, right) if isinstance(side, Expected)), None)
    return golden.explain() if golden is not None and op == "==" else None


def _told(check: Callable[[], GoldenReport | None]) -> GoldenReport | None:
    """What a check found; what makes it impossible fails the test at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return check()
    except importlib.import_module("specalign.layer_ids.files").InputError as error:
        reason = str(error)
    pytest.fail(f"golden: {reason}")

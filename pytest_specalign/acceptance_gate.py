"""The fixture `acceptance_gate`: what a draft head reached is held against the golden of its pair, which the repository keeps.

A golden belongs to a pair and not to a test, so tests of one folder may share it by its name. Nothing of the library is imported
before a test asks.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from pytest_specalign.golden_keys import owner_of
from pytest_specalign.golden_run import get_run
from pytest_specalign.state import BROKE
from pytest_specalign.verdicts import Comparison, Verdict, note_comparison

if TYPE_CHECKING:
    from specalign.acceptance.gate import GateVerdict, Problem
    from specalign.acceptance.golden_file import AcceptanceGolden
    from specalign.acceptance.rounds import PromptRounds
    from specalign.acceptance.served_gate import ServedVerdict
    from specalign.acceptance.served_result import Served
    from specalign.acceptance.table import Table

ARCH: Final = "acceptance-golden"
"""Stands where other goldens have an architecture, which has no hyphen: neither kind is taken for the other."""

_KIND: Final = "acceptance"
_Found = TypeVar("_Found")


class AcceptanceGate:
    """What the fixture gives.

    Attributes:
        count: how often something was held against a golden, or made one.
    """

    def __init__(self, item: pytest.Item) -> None:
        self.count = 0
        self._item = item
        self._run = get_run(item.config)
        self._folder = owner_of(item).folder

    def check(
        self,
        name: str,
        measured: Table | Sequence[PromptRounds],
        *,
        pair: Mapping[str, str],
        depth: int | None = None,
        new_tokens: int | None = None,
    ) -> GateVerdict:
        """Hold what was measured against the golden of that name; fail the test if anything dropped.

        Args:
            name: of the pair, such as "smollm2-A": its golden is `__golden__/<name>.acceptance-golden.json` beside the test.
            measured: a table, or the rounds of the right way, prompt by prompt. A golden is made of a whole table only.
            pair: what the golden is of, as `specalign.integrations.pair.Pair.identity` tells it; keys and values are yours, and
                a run with others is refused.
            depth: drafts of a chain; a table says it itself.
            new_tokens: wanted of each answer; the same.

        Returns:
            The verdict, which passes; for whoever asks more of it.
        """
        __tracebackhide__ = True
        self.count += 1
        asked = _told(name, lambda: _asked(name, self._path(name), measured, pair, depth, new_tokens))
        verdict: GateVerdict = _told(name, lambda: self._settle(asked))
        text = _library("gate").format_verdict(verdict)
        unproven = () if asked.table is None else asked.table.problems
        if unproven:
            text = f"FAIL: the table proves too little: {'; '.join(unproven)}\n  {text}"
        self._tell(name, text, (*verdict.found, *unproven), 1 + len(verdict.position_drops))
        self._figures(name, verdict.run.length.value, verdict.run.per_position)
        if unproven or not verdict.ok:
            pytest.fail(f"acceptance {name!r}: {text}\n  golden: {asked.path}")
        return verdict

    def check_served(self, name: str, served: Served) -> ServedVerdict:
        """Hold the figures of a running engine against the golden of that name; fail the test if anything dropped.

        Args:
            name: as for `check`. No golden is made of an engine's figures.
            served: what `specalign.acceptance.read_served` or `served_between` gives.
        """
        __tracebackhide__ = True
        self.count += 1
        path = self._path(name)
        if not isinstance(served, _library("served_result").Served):
            pytest.fail(f"acceptance {name!r}: check_served takes what read_served gives, and got {type(served).__name__}")
        if not path.exists():
            self._missing(name, path, "make it of a measured table first: acceptance_gate.check, or specalign acceptance --table")
        room = _library("served_gate")
        verdict: ServedVerdict = _told(name, lambda: room.judge_served(_library("golden_file").read_golden(path), served))
        text = room.format_served_verdict(verdict)
        self._tell(name, text, verdict.found, 1 + len(verdict.position_drops))
        self._figures(name, verdict.length.value, served.per_position)
        if not verdict.ok:
            pytest.fail(f"acceptance {name!r}: {text}\n  golden: {path}")
        return verdict

    def _path(self, name: str) -> Path:
        """The golden's file; fails the test over a name that cannot be one."""
        __tracebackhide__ = True
        keys = importlib.import_module("specalign.golden.keys")
        stem = keys.encode(name) if isinstance(name, str) and name.isprintable() else ""
        if not stem or len(stem) > keys.MAX_STEM:
            pytest.fail(f"the name of a pair is {name!a}: give a short text without control characters")
        path = self._folder / f"{stem}.{ARCH}.json"
        there = [one.name for one in self._folder.iterdir()] if self._folder.is_dir() else []
        alike = [one for one in there if one != path.name and one.casefold() == path.name.casefold()]
        if alike:
            pytest.fail(f"acceptance {name!r}: differs from {alike[0]} in capitals alone, which some disks do not tell apart")
        return path

    def _settle(self, asked: _Asked) -> GateVerdict:
        """Judge, or write where the run may."""
        __tracebackhide__ = True
        files = importlib.import_module("specalign.golden.files")
        text = f"{self._item.nodeid}::{asked.name}"
        place = files.Place(asked.path.parent, asked.path.name.removesuffix(f".{ARCH}.json"), ARCH)
        if not asked.path.exists():
            if not self._run.may_write(text, missing=True):
                self._missing(asked.name, asked.path, self._run.why_not(text))
            with files.locked(place):
                if not asked.path.exists():  # another worker may have written it meanwhile; then this run must agree
                    return self._write(asked, text, "new")
        elif self._run.may_write(text, missing=False):
            with files.locked(place):
                why = asked.outdated()
                if why:
                    return self._write(asked, text, f"updated: {why}")
        return asked.judge(_library("golden_file").read_golden(asked.path))

    def _write(self, asked: _Asked, text: str, what: str) -> GateVerdict:
        """Write what was measured as the golden, unless it could hold nothing."""
        golden = asked.as_golden()
        verdict = asked.judge(golden)
        if not verdict.ok:
            return verdict  # a golden that fails itself, of too few prompts say
        asked.path.parent.mkdir(parents=True, exist_ok=True)
        _library("golden_file").write_golden(golden, asked.path)
        self._run.written.append(f"{text} {what}")
        self._property(f"specalign_{_KIND}_golden_{asked.name}", what)
        return verdict

    def _missing(self, name: str, path: Path, how: str) -> None:
        __tracebackhide__ = True
        first = f"there is no golden of this pair: {path}"
        note_comparison(self._item, Comparison(name, "not-proven", 0, 0, "figures", _KIND, first))
        self._property(f"specalign_{_KIND}_{name}", "missing")
        pytest.fail(f"acceptance {name!r}: {first}\n  next: {how}")

    def _tell(self, name: str, text: str, found: Sequence[Problem | str], figures: int) -> None:
        """For JUnit, the summary and the overview of the run."""
        dropped = sum(not isinstance(problem, str) and problem.is_drop for problem in found)
        first = next((problem if isinstance(problem, str) else problem.text for problem in found), "")
        verdict: Verdict = "equal" if not found else "different" if dropped else "not-proven"
        note_comparison(self._item, Comparison(name, verdict, figures, dropped, "figures", _KIND, first))
        self._property(f"specalign_{_KIND}_{name}", text.splitlines()[0])

    def _figures(self, name: str, length: float, rates: Sequence[float]) -> None:
        self._property(f"specalign_{_KIND}_length_{name}", f"{length:.4f}")
        self._property(f"specalign_{_KIND}_per_position_{name}", " ".join(f"{rate:.4f}" for rate in rates))

    def _property(self, name: str, value: str) -> None:
        """Once, also where a test checks repeatedly."""
        others = [pair for pair in self._item.user_properties if pair[0] != name]
        self._item.user_properties[:] = [*others, (name, value)]


@dataclasses.dataclass(frozen=True)
class _Asked:
    """One check: what was measured, and its golden's place."""

    name: str
    path: Path
    table: Table | None
    counts: Sequence[PromptRounds]
    pair: Mapping[str, str]
    depth: int
    new_tokens: int

    def judge(self, golden: AcceptanceGolden) -> GateVerdict:
        """Raises `AcceptanceError` for another pair, other settings, other prompts."""
        gate = _library("gate")
        gate.check_settings(golden, self.pair, self.depth, self.new_tokens)
        verdict: GateVerdict = gate.judge(golden, self.counts)
        return verdict

    def as_golden(self) -> AcceptanceGolden:
        """Raises `AcceptanceError` for anything but a whole table that proves something."""
        if self.table is None:
            raise _error(
                "a golden is made of a whole table, which knows what each fault costs, and these are rounds of the right way"
                " alone: hand over what specalign.speculate.table.measure_table gives"
            )
        golden: AcceptanceGolden = _library("golden_file").golden_of(self.table, self.pair)
        return golden

    def outdated(self) -> str:
        """Why the golden that is there gives way to what was measured; empty if it agrees and did not rise."""
        try:
            verdict = self.judge(_library("golden_file").read_golden(self.path))
        except _library("errors").AcceptanceError as error:
            return f"it could not be used: {error}"
        if verdict.ok and not verdict.rose:
            return ""
        return "it rose" if verdict.ok else verdict.problems[0]


def _asked(
    name: str,
    path: Path,
    measured: Table | Sequence[PromptRounds],
    pair: Mapping[str, str],
    depth: int | None,
    new_tokens: int | None,
) -> _Asked:
    """What a test handed over.

    Raises:
        AcceptanceError: it says too little, or is neither a table nor rounds.
    """
    table = measured if isinstance(measured, _library("table").Table) else None
    counts = measured if table is None else table.counts
    if not isinstance(counts, Sequence) or not all(isinstance(one, _library("rounds").PromptRounds) for one in counts):
        raise _error(f"acceptance_gate.check takes a table or a list of PromptRounds, and got {type(measured).__name__}")
    depth, new_tokens = (depth, new_tokens) if table is None else (table.depth, table.new_tokens)
    if depth is None or new_tokens is None:
        raise _error("rounds alone do not say how they were made: give depth=… and new_tokens=…")
    if not isinstance(pair, Mapping | None):
        raise _error(f"pair is a mapping of texts, such as Pair.identity() gives, and not {type(pair).__name__}")
    if not pair:
        raise _error("pair says what was measured, and is empty: nothing would tell another pair")
    return _Asked(name, path, table, counts, {str(key): str(value) for key, value in pair.items()}, depth, new_tokens)


@pytest.fixture
def acceptance_gate(request: pytest.FixtureRequest) -> Iterator[AcceptanceGate]:
    """`acceptance_gate.check(name, table, pair=…)`: acceptance held against `__golden__/<name>.acceptance-golden.json`.

    Missing goldens are written with `--specalign-golden=new`, those that do not agree any more replaced with
    `--specalign-golden=update`. `check_served(name, served)` does the same for figures of a running engine, and writes nothing. A
    test that passes without having checked anything fails.
    """
    gate = AcceptanceGate(request.node)
    yield gate
    if BROKE not in request.node.stash and not gate.count:
        pytest.fail(
            f"{request.node.nodeid}: the test passed and held nothing against a golden: call acceptance_gate.check, or take the"
            " fixture away"
        )


def _library(module: str) -> Any:
    return importlib.import_module(f"specalign.acceptance.{module}")


def _error(text: str) -> Exception:
    made: Exception = _library("errors").AcceptanceError(text)
    return made


def _told(name: str, check: Callable[[], _Found]) -> _Found:
    """What a check found; what makes it impossible fails the test at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return check()
    except (ValueError, OSError) as error:  # AcceptanceError and InputError are ValueErrors
        reason = str(error)
    pytest.fail(f"acceptance {name!r}: {reason}")

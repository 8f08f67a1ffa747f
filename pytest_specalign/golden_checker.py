"""One test's goldens: each result is held against its file, or written where the run may."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.golden_keys import owner_of
from pytest_specalign.golden_run import get_fetcher, get_run
from pytest_specalign.golden_sides import KEEPS, Asked, DumpSide, Side, TensorSide, library
from pytest_specalign.state import RUNNING
from pytest_specalign.verdicts import Comparison, Verdict, note_comparison

if TYPE_CHECKING:
    from specalign.compare.leaves import Leaf
    from specalign.compare.modes import Mode
    from specalign.dump.passes import Dump
    from specalign.golden.check import GoldenReport
    from specalign.golden.environment import Environment
    from specalign.golden.files import Golden, Place
    from specalign.golden.keys import Key


class Checker:
    """Checks the results of one test.

    Attributes:
        count: how many were handed over.
        unequal: what was found by each `result == golden` that was false: only `assert` makes the test fail by it.
    """

    def __init__(self, item: pytest.Item) -> None:
        self.count = 0
        self.unequal: list[str] = []
        self._item = item
        self._owner = owner_of(item)
        self._run = get_run(item.config)
        self._names: dict[str, str] = {}
        self._number = 0

    def check_tensors(self, asked: Asked, tensors: Any) -> GoldenReport | None:
        """Hold tensors against their golden; None in a later run of a `bitwise` test, where they are held against the first.

        Raises:
            specalign.layer_ids.files.InputError: nothing could be compared.
        """
        key, mode = self._claim(asked), _mode(asked)
        leaves: list[Leaf] = library("check").read_result(asked.name, tensors, asked.allow_nonfinite)
        if not self._observe(asked, lambda: tensors):
            return None
        arch = asked.arch or self._leased() or library("environment").arch_of(tensors) or "cpu"
        environment: Environment = library("environment").named_environment(arch)
        return self._settle(TensorSide(asked, key, environment, mode, leaves))

    def check_dump(self, asked: Asked, dump: Dump | str | os.PathLike[str]) -> GoldenReport | None:
        """The same for a dump, or the path of one."""
        key, mode = self._claim(asked), _mode(asked)
        if asked.keep == "external":
            raise _error('keep="external" is for tensors: keep a dump as fingerprints where its values are too large')
        dumps = library("dumps")
        opened: Dump = dumps.open_result(dump)
        if not self._observe(asked, lambda: dumps.observed(opened)):
            return None
        arch = asked.arch or opened.manifest.arch or self._leased() or "cpu"
        environment: Environment = library("environment").named_environment(arch)
        environment = dataclasses.replace(environment, versions=dict(opened.manifest.versions) or environment.versions)
        return self._settle(DumpSide(asked, key, environment, mode, opened))

    def _claim(self, asked: Asked) -> Key:
        """The key of a result, once no other result of this run of the test has its name."""
        self._begin_run()
        if not isinstance(asked.name, str):
            raise _error(f"the name of a golden is {asked.name!r}: give a text")
        if not asked.name.isprintable():  # JUnit's XML, and what carries reports between processes, take no such characters
            raise _error(f"the name of a golden is {asked.name!a}: give a text without control characters and lone surrogates")
        if asked.keep not in KEEPS:
            raise _error(f"keep is {asked.keep!r}: choose one of {', '.join(KEEPS)}")
        if asked.keep == "fingerprint" and not _mode(asked).is_bits:
            raise _error(f"fingerprints tell equal bits from others and nothing more, and the mode is {asked.mode}: keep values")
        key = self._owner.named(asked.name)
        other = self._names.get(key.folded)
        if other is not None:
            what = "was used before in this test" if other == asked.name else f"differs from {other!r} in capitals alone"
            raise _error(f"the name {asked.name!r} {what}: give each golden of a test a name of its own, as name=…")
        self._names[key.folded] = asked.name
        self.count += 1
        return key

    def _begin_run(self) -> None:
        """A test marked `bitwise` uses each name once a run."""
        observer = self._item.stash.get(RUNNING, None)
        if observer is not None and observer.run != self._number:
            self._number, self._names = observer.run, {}

    def _observe(self, asked: Asked, tensors: Callable[[], Any]) -> bool:
        """Hand what is checked to `bitwise` too; whether the golden is looked at, which is so in the first run only: what the
        others hand over must have the bits of the first."""
        observer = self._item.stash.get(RUNNING, None)
        if observer is None:
            return True
        observer.observe(f"golden {asked.name}".strip(), tensors(), allow_nan=True)
        return bool(observer.run == 1)

    def _leased(self) -> str | None:
        lease = getattr(self._item, "funcargs", {}).get("gpu_lease")
        capability = lease.devices[0].capability if lease is not None and lease.devices else None
        return None if capability is None else f"sm{capability[0]}{capability[1]}"

    def _settle(self, side: Side) -> GoldenReport:
        """Check, or write; then tell everybody who wants to know."""
        files = library("files")
        place: Place = files.Place(self._owner.folder, side.key.stem, side.environment.arch)
        self._note_use(side.key)
        found = place.found()
        if found is None and self._run.may_write(self._text(side), missing=True):
            with files.locked(place):
                found = place.found()
                if found is None:  # another worker may have written it meanwhile; then this result must agree
                    return self._write(side, place, "")
        if found is None:
            return self._fail(side, self._missing(side, place), None)
        if self._run.may_write(self._text(side), missing=False):
            with files.locked(place):
                return self._update(side, place, place.found() or found)
        report, golden = self._compare(side, found)
        return self._pass(side, report) if report.ok else self._fail(side, report, golden)

    def _note_use(self, key: Key) -> None:
        """Remember that this test uses the golden. Collection refuses tests that would share one, but sees no fixture that is
        asked for while the test runs."""
        golden = self._owner.golden(key.name)
        other = self._run.owners.setdefault(golden.casefold(), self._owner.test)
        if other != self._owner.test:
            raise _error(
                f"{key.text}: another test uses this golden, {other}: their files have one name, or differ in capitals alone"
            )
        self._run.used.setdefault(golden, set()).add(self._owner.test)

    def _compare(self, side: Side, found: Path) -> tuple[GoldenReport, Golden]:
        golden: Golden = library("files").read_golden(found)
        if golden.document.form == "external":
            golden = _never_skip(lambda: get_fetcher(self._item.config).open(golden))
        return dataclasses.replace(side.check(golden), path=found), golden

    def _update(self, side: Side, place: Place, found: Path) -> GoldenReport:
        """Write a golden anew unless the result agrees with it, in the form that is asked for."""
        form = ""
        try:
            golden: Golden = library("files").read_golden(found)
            form = golden.document.form
            report, _ = self._compare(side, found)
            form = side.form_of(golden)
        except library("errors").GoldenError as error:
            if form == "external":
                raise  # a store that cannot be reached is no reason to take another result
            return self._write(side, place, f"it could not be used: {error}")
        if report.ok and form == side.form:
            return self._pass(side, report)
        return self._write(side, place, f"it was kept as {form}" if report.ok else report.verdict)

    def _write(self, side: Side, place: Place, why: str) -> GoldenReport:
        refused = side.refuse_to_write()
        if refused:
            return self._fail(side, side.report(place.tensors, refused), None)
        path = _never_skip(lambda: side.write(place, self._item.config))
        verdict = f"updated: {why}" if why else "new"
        self._run.written.append(f"{self._text(side)} ({place.arch}) {verdict}")
        self._item.user_properties.append((_property(side), verdict))
        return side.report(path, (), compared=1)

    def _pass(self, side: Side, report: GoldenReport) -> GoldenReport:
        self._note(side, report)
        return report

    def _note(self, side: Side, report: GoldenReport) -> None:
        """For JUnit, the summary and the overview of the run."""
        self._item.user_properties.append((_property(side), report.verdict))
        compared, differing, unit = report.counts
        verdict: Verdict = "equal" if report.ok else "different" if differing else "not-proven"
        artifacts = () if report.artifacts is None else (str(report.artifacts),)
        name = side.key.name or "result"
        note_comparison(self._item, Comparison(name, verdict, compared, differing, unit, "golden", report.first_line, artifacts))

    def _fail(self, side: Side, report: GoldenReport, golden: Golden | None) -> GoldenReport:
        if self._run.artifacts is not None and golden is not None:
            folder = self._run.artifacts / "golden" / self._place() / f"{report.key.stem}.{side.environment.arch}"
            try:
                side.write_artifacts(folder, dataclasses.replace(report, artifacts=folder), golden, self._run.limit)
                report = dataclasses.replace(report, artifacts=folder)
            except library("artifacts").InputError as error:  # what was found must not get lost over it
                report = dataclasses.replace(report, problems=(*report.problems, f"both sides could not be written: {error}"))
        self._note(side, report)
        self._item.config.hook.pytest_specalign_divergence(config=self._item.config, report=report)
        return report

    def _missing(self, side: Side, place: Place) -> GoldenReport:
        others = place.others()
        known = f"; there is one for {', '.join(others)}, which says nothing of {place.arch}" if others else ""
        problem = f"there is no golden for {place.arch}{known}\n  next: {self._run.why_not(self._text(side))}"
        return dataclasses.replace(side.report(place.tensors, (problem,)), missing=True)

    def _place(self) -> Path:
        """The folder of the goldens within the artifacts, also where it lies outside of rootdir."""
        return Path(*(part for part in Path(self._owner.place).parts if part not in ("..", "/")))

    def _text(self, side: Side) -> str:
        """What `--specalign-golden-force` calls a golden."""
        return f"{self._item.nodeid}::{side.key.name}" if side.key.name else self._item.nodeid


def _property(side: Side) -> str:
    return f"specalign_golden_{side.key.name or 'result'}"


def _mode(asked: Asked) -> Mode:
    modes = importlib.import_module("specalign.compare.modes")
    made: Mode = asked.mode if isinstance(asked.mode, modes.Mode) else modes.parse_mode(str(asked.mode))
    return made


def _error(text: str) -> Exception:
    made: Exception = library("errors").GoldenError(text)
    return made


def _never_skip(call: Callable[[], Any]) -> Any:
    """A store that cannot be reached fails a test, also where its code says pytest.skip."""
    try:
        return call()
    except pytest.skip.Exception as skipped:
        raise _error(f"the store of goldens wants to skip ({skipped}), and a golden that is not there is an error") from skipped

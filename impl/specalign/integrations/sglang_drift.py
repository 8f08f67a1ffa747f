"""SGLang's own setters against the profiles: what `specalign engines verify` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from specalign.integrations.sglang_setters import SetterCase, SetterGap, SetterReport
from specalign.layer_ids.captured import capture_ids
from specalign.layer_ids.engine_profiles import CaptureProfile
from specalign.layer_ids.engines import EngineTable
from specalign.layer_ids.target_config import TargetSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a setter does with one list: the indices that it stores, or the name of what it raises."""

    stored: tuple[int, ...] | None
    error: str | None

    def __str__(self) -> str:
        return self.error or str(list(self.stored or ()))


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """One difference between a wheel and the profiles: which setter, which ids, what was expected and what it did."""

    setter: str
    ids: tuple[int, ...] | None
    expected: str
    found: str

    def format(self) -> str:
        """One line."""
        ids = "" if self.expected.startswith("no ") or self.found.startswith("no ") else f" {_text(self.ids)}"
        return f"{self.setter}{ids}: the profile says {self.expected}, the wheel {self.found}"


@dataclasses.dataclass(frozen=True, slots=True)
class DriftReport:
    """The comparison of a wheel with the profiles of its version.

    Attributes:
        version: of the wheel.
        compared: number of executed cases that a profile row was held against.
        unlisted: number of cases of classes inside the engine that no row covers and nobody can name as a target.
        drifts: every difference.
        gaps: setters that could not be executed, with the reason: nothing is known about them.
    """

    version: str
    compared: int
    unlisted: int
    drifts: tuple[Drift, ...]
    gaps: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Something was compared, and nothing differs."""
        return self.compared > 0 and not self.drifts

    def format(self) -> str:
        """A line a difference and a summary."""
        lines = [d.format() for d in self.drifts] + [f"not executed: {gap}" for gap in self.gaps]
        counts = f"{self.compared} cases compared, {len(self.drifts)} differ, {len(self.gaps)} not executed"
        inner = f"; {self.unlisted} cases of inner classes have no row" if self.unlisted else ""
        return "\n".join((*lines, f"sglang {self.version}: {counts}{inner}"))


def expected_outcome(row: CaptureProfile, ids: tuple[int, ...] | None, num_layers: int) -> Outcome:
    """What the profile says that the engine's setter does with `ids`."""
    always, none = row.setter.get("always"), row.setter.get("none")
    if always or (ids is None and none):
        return Outcome(None, str(none if ids is None and none else always))
    stored = tuple(int(b) + row.stored for b in capture_ids(row, ids, num_layers).named if isinstance(b, int))
    raises = row.setter.get("raises")
    if raises and max(stored, default=0) > num_layers + int(row.setter["limit"]):
        return Outcome(None, str(raises))
    return Outcome(stored, None)


def row_for(table: EngineTable, version: str, module: str, class_name: str, kind: str) -> CaptureProfile | None:
    """The row that covers a class of the engine: by `module:Class` first, else by its name as a public architecture."""
    key = f"{module.rpartition('.')[2]}:{class_name}"
    for row in table.captures:
        if row.engine == "sglang" and kind in row.kinds and key in row.classes and table.covers(row, version):
            return row
    family = table.family_of(TargetSpec("", (class_name,), (), 1, 1, None))
    if family is None:
        return None
    return table.profile(f"sglang=={version}", kind=kind, family=family, architecture="").capture


def compare_setters(report: SetterReport, table: EngineTable) -> DriftReport:
    """Every executed case against its profile row; a setter for targets that the profiles call unsupported is a difference."""
    drifts: list[Drift] = []
    compared = unlisted = 0
    for case in report.cases:
        row = row_for(table, report.version, case.module, case.class_name, case.kind)
        if case.stored is None and case.error is None:
            continue  # delegated to a class outside the wheel
        if row is None:
            unlisted += 1
            continue
        compared += 1
        drifts.extend(_difference(case, row))
    drifts.extend(_gone(report, table))
    gaps = tuple(f"{gap.module}:{gap.class_name} {gap.kind} {_text(gap.ids)}: {gap.reason}" for gap in report.unsupported)
    return DriftReport(report.version, compared, unlisted, tuple(drifts), gaps)


def _difference(case: SetterCase, row: CaptureProfile) -> Iterator[Drift]:
    setter = f"{case.module}:{case.class_name} set_{case.kind}_layers_to_capture"
    found = Outcome(case.stored, case.error)
    if not row.supported:
        if found.stored is not None:
            yield Drift(setter, case.ids, "no setter", str(found))
        return
    expected = expected_outcome(row, case.ids, case.num_layers)
    if expected != found:
        yield Drift(setter, case.ids, str(expected), str(found))
    if case.flagged is not None and case.stored is not None and row.reach != "none":
        reachable = tuple(sorted({s for s in case.stored if s < case.num_layers}))
        if tuple(sorted(case.flagged)) != reachable:
            yield Drift(setter, case.ids, f"flags {list(reachable)}", f"flags {list(case.flagged)}")


def _gone(report: SetterReport, table: EngineTable) -> Iterator[Drift]:
    """Rows whose architectures have no setter left in the wheel (a DSpark target may use its DFlash setter)."""
    cases: list[SetterCase | SetterGap] = [*report.cases, *report.unsupported]
    seen = {(c.class_name, c.kind) for c in cases} | {(f"{c.module.rpartition('.')[2]}:{c.class_name}", c.kind) for c in cases}
    for row in table.captures:
        if row.engine != "sglang" or not row.supported or row.inner or not table.covers(row, report.version):
            continue
        for kind in row.kinds:
            setters = (kind, "dflash") if kind == "dspark" else (kind,)
            if any((key, s) in seen for key in row.classes for s in setters):
                continue
            for name in _architectures(row, table):
                if not any((name, s) in seen for s in setters):
                    yield Drift(f"{name} set_{kind}_layers_to_capture", None, f"the rule {row.rule}", "no setter")


def _architectures(row: CaptureProfile, table: EngineTable) -> Iterable[str]:
    return [name for family in row.families if family != "*" for name in table.families[family].architectures]


def _text(ids: tuple[int, ...] | None) -> str:
    return "None" if ids is None else str(list(ids))

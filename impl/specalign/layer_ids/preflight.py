"""`specalign check` as a function: a draft, a target and engines in, a report out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from specalign.layer_ids.checks import ENGINE_CHECKS, FILE_CHECKS, EngineCase, FileCase
from specalign.layer_ids.conventions import Convention, State, check_ids, format_states
from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.engines import EngineTable, load_engines
from specalign.layer_ids.findings import CODES, Finding, Severity, finding
from specalign.layer_ids.meaning import Meaning, meaning_of
from specalign.layer_ids.speculators import converted
from specalign.layer_ids.target_config import TargetSpec
from specalign.layer_ids.view import EngineView, view_of


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that a check saw.

    Attributes:
        draft, target, meaning: the pair, and what the ids were meant to say.
        family: the target's family in the engine table, or None.
        views: one reading an engine, in the order asked for.
        findings: all that count.
        ignored: findings that were ignored on request, with the reason given.
    """

    draft: DraftSpec
    target: TargetSpec
    meaning: Meaning
    family: str | None
    views: tuple[EngineView, ...]
    findings: tuple[Finding, ...]
    ignored: tuple[tuple[Finding, str], ...] = ()

    @property
    def ok(self) -> bool:
        """No finding is an error."""
        return not any(f.severity is Severity.ERROR for f in self.findings)

    @property
    def exit_code(self) -> int:
        """0 for clean or warnings, 1 for errors."""
        return 0 if self.ok else 1

    def of(self, engine: str | None) -> tuple[Finding, ...]:
        """The findings about one engine, or with None about the files."""
        return tuple(f for f in self.findings if f.engine == engine)


def check(
    draft: DraftSpec,
    target: TargetSpec,
    *,
    engines: Sequence[str] = (),
    convention: Convention | None = None,
    flag_ids: Sequence[int] | None = None,
    pp_size: int = 1,
    ignore: Mapping[str, str] | None = None,
    table: EngineTable | None = None,
) -> CheckReport:
    """Check a pair against engines.

    Args:
        engines: `NAME` or `NAME==VERSION`; none means all that the table lists.
        convention: the user's word on what the ids mean.
        flag_ids: the ids that you pass by the engine's own flag (TensorRT-LLM's eagle3_layers_to_capture, say); engines without
            such a flag do not see them.
        pp_size: number of pipeline stages that will serve the target.
        ignore: finding code, or `code@engine`, → reason.
        table: engine data; the package's own by default.

    Raises:
        EngineDataError: an engine that nobody profiled.
        ValueError: pp_size below 1, or an unknown code in `ignore`.
    """
    table = table or load_engines()
    _check_arguments(pp_size, ignore or {}, table)
    meaning = meaning_of(draft, target, declared=convention)
    family = table.family_of(target)
    flags = None if flag_ids is None else check_ids(flag_ids, target.num_layers, negative=True)
    found = list(_file_findings(FileCase(draft, target, meaning)))
    views: dict[str, EngineView] = {}
    for label in engines or table.default_labels():
        engine = table.engine_of(label)
        seen = converted(draft) if engine.converts_speculators else draft
        profile = table.profile(label, kind=draft.kind, family=family, architecture=seen.architecture)
        if profile.label in views:
            continue
        view = views[profile.label] = view_of(profile, seen, target, flag_ids=flags)
        case = EngineCase(seen, target, meaning, engine, view, pp_size)
        found.extend(f for run in ENGINE_CHECKS for f in run(case))
    found.extend(_disagreement(tuple(views.values()), meaning))
    kept, ignored = _split_ignored(found, ignore or {})
    return CheckReport(draft, target, meaning, family, tuple(views.values()), kept, ignored)


def _check_arguments(pp_size: int, ignore: Mapping[str, str], table: EngineTable) -> None:
    if pp_size < 1:
        raise ValueError(f"pp_size must be at least 1, not {pp_size}")
    for key in ignore:
        code, at, engine = key.partition("@")
        if code not in CODES:
            raise ValueError(f"no finding has the code {code!r}: there are {', '.join(CODES)}")
        if at:
            table.engine_of(engine)


def _file_findings(case: FileCase) -> Iterable[Finding]:
    for run in FILE_CHECKS:
        yield from run(case)


def _disagreement(views: Sequence[EngineView], meaning: Meaning) -> Iterable[Finding]:
    groups: dict[tuple[State, ...], list[str]] = {}
    for view in views:
        if view.named:
            groups.setdefault(view.named, []).append(view.label)
    if len(groups) > 1 and not meaning.is_certain:
        yield finding(
            "engines-disagree",
            Severity.WARNING,
            f"the same files name {len(groups)} different lists of states, depending on the engine",
            where=meaning.place or "the engines' defaults",
            how_much="; ".join(f"{format_states(states)}: {', '.join(labels)}" for states, labels in groups.items()),
            next="say --convention, then see which engines are right",
        )


def _split_ignored(
    found: Iterable[Finding], ignore: Mapping[str, str]
) -> tuple[tuple[Finding, ...], tuple[tuple[Finding, str], ...]]:
    kept, ignored = [], []
    for f in found:
        keys = (f.code, f"{f.code}@{f.engine}", f"{f.code}@{(f.engine or '').partition('==')[0]}")
        reason = next((ignore[key] for key in keys if key in ignore), None)
        if reason is None:
            kept.append(f)
        else:
            ignored.append((f, reason))
    return tuple(kept), tuple(ignored)

"""The table of engine profiles: loading it, and finding the profile of an engine version for a pair.

The facts are in `engine_data/*.toml`, one file an engine. Nothing is parsed before `load_engines` is called.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, Engine, EngineProfile, Family
from specalign.layer_ids.engine_tables import TABLES, EngineDataError, build, parse_toml
from specalign.layer_ids.rules import RULES
from specalign.layer_ids.target_config import TargetSpec

SCHEMA: Final = "specalign.engines/1"


@dataclasses.dataclass(frozen=True, slots=True)
class EngineTable:
    """Everything in `engine_data`."""

    engines: Mapping[str, Engine]
    families: Mapping[str, Family]
    captures: tuple[CaptureProfile, ...]
    drafts: tuple[DraftProfile, ...]

    def family_of(self, target: TargetSpec) -> str | None:
        """The family of a target: by architecture first, by model type otherwise; None when nobody profiled it."""
        for names, attribute in ((target.architectures, "architectures"), (target.model_types, "model_types")):
            for name in names:
                for family in self.families.values():
                    if name in getattr(family, attribute):
                        return family.name
        return None

    def default_labels(self) -> tuple[str, ...]:
        """`name==version` of all that `specalign check` looks at when no engine is named."""
        return tuple(f"{e.name}=={v}" if v else e.name for e in self.engines.values() for v in e.checked)

    def engine_of(self, label: str) -> Engine:
        """The engine that `NAME` or `NAME==VERSION` names.

        Raises:
            EngineDataError: no such engine, or no version number.
        """
        return self.engines[self._split(label)[0]]

    def profile(self, label: str, *, kind: str, family: str | None, architecture: str) -> EngineProfile:
        """The profile for `NAME` (its newest version here) or `NAME==VERSION`.

        Raises:
            EngineDataError: no such engine, or no version number.
        """
        name, version = self._split(label)
        captures = [
            row
            for row in self.captures
            if row.engine == name and kind in row.kinds and not row.inner and _fits(architecture, row.drafts)
        ]
        drafts = [row for row in self.drafts if row.engine == name and kind in row.kinds]

        def at(profiled: str) -> EngineProfile:
            capture = _pick(captures, profiled, lambda row: row.families, family or "")
            draft = _pick(drafts, profiled, lambda row: row.architectures, architecture)
            return EngineProfile(name, version, profiled, capture, draft)

        exact = at(version)
        whole = exact.capture is not None and (exact.draft is not None or not drafts)
        return exact if whole or version in self.engines[name].checked else at(self._nearest(name, version))

    def covers(self, row: CaptureProfile | DraftProfile, version: str) -> bool:
        """The row is for that version."""
        return _matches(version, row.versions)

    def _split(self, label: str) -> tuple[str, str]:
        name, separator, version = label.partition("==")
        name = name.strip().lower()
        if name not in self.engines:
            raise EngineDataError(f"no engine is called {name!r}: there are {', '.join(self.engines)}")
        newest = self.engines[name].checked[-1]
        if not separator:
            return name, newest
        version = version.strip().removeprefix("v")
        if _version(version) is None:
            raise EngineDataError(f"{label!r}: {version!r} is no version number; write {name}=={newest or '1.0'}")
        return name, version

    def _nearest(self, name: str, version: str) -> str:
        """The newest checked version of the engine below `version`, else the oldest."""
        known = [v for v in self.engines[name].checked if v]
        wanted = _version(version)
        older = [v for v in known if wanted is not None and Version(v) <= wanted]
        return (older or known or [version])[-1 if older else 0]


def _pick(rows: Sequence[Any], version: str, names: Any, wanted: str) -> Any:
    """The row that names `wanted`, else the row for "*"; None when neither is there for that version."""
    fitting = [row for row in rows if _matches(version, row.versions)]
    for exact in (True, False):
        for row in fitting:
            if _fits(wanted, [pattern for pattern in names(row) if (pattern != "*") == exact]):
                return row
    return None


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@functools.lru_cache(maxsize=1024)
def _matches(version: str, spec: str) -> bool:
    return spec == "*" or not version or SpecifierSet(spec).contains(version, prereleases=True)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def dflash_even(num_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The ids that engines take for a DFlash or DSpark head that names none: n//2 for one draft layer, else as many ids as the
    draft has layers, evenly from 1 to n-3 (z-lab's reference and SGLang's `dflash_utils.py`). No check."""
    if draft_layers == 1:
        return (num_layers // 2,)
    return tuple(round(1 + i * (num_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def load_engines(folder: Path | None = None) -> EngineTable:
    """The table of the package, or of another folder of TOML files in the same form; validated in full.

    Raises:
        EngineDataError: naming the row and the key that are wrong.
    """
    return _packaged() if folder is None else parse_engines({f.name: f.read_text("utf-8") for f in sorted(folder.glob("*.toml"))})


@functools.cache
def _packaged() -> EngineTable:
    return load_engines(Path(__file__).with_name("engine_data"))


def parse_engines(files: Mapping[str, str]) -> EngineTable:
    """An `EngineTable` out of TOML texts by file name.

    Raises:
        EngineDataError: naming the row and the key that are wrong.
    """
    rows: dict[str, list[Any]] = {table: [] for table in TABLES}
    classes: tuple[type[Any], ...] = (Engine, Family, CaptureProfile, DraftProfile)
    for name, text in files.items():
        data = parse_toml(name, text, SCHEMA)
        for key, cls in zip(TABLES, classes, strict=True):
            rows[key].extend(build(cls, data, key, name))
    table = EngineTable(
        engines={e.name: e for e in rows["engine"]},
        families={f.name: f for f in rows["family"]},
        captures=tuple(rows["capture"]),
        drafts=tuple(rows["draft"]),
    )
    _check_references(table)
    return table


def _check_references(table: EngineTable) -> None:
    rows: list[CaptureProfile | DraftProfile] = [*table.captures, *table.drafts]
    for row in rows:
        where = f"{row.engine} {row.versions} {'/'.join(row.kinds)}"
        if row.engine not in table.engines:
            raise EngineDataError(f"{where}: no [[engine]] entry has that name")
        try:
            SpecifierSet("" if row.versions == "*" else row.versions)
        except InvalidSpecifier:
            raise EngineDataError(f"{where}: {row.versions!r} is no version range") from None
    for capture in table.captures:
        families = [f for f in capture.families if f != "*" and f not in table.families]
        rules = [r for r in (capture.rule, *capture.place_rules.values()) if r not in RULES]
        if families or rules:
            what = f"unknown families {families}" if families else f"unknown rules {rules}"
            raise EngineDataError(f"{capture.engine} {capture.versions} {capture.kinds}: {what}")

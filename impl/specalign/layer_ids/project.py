"""`[tool.specalign]` of the nearest `pyproject.toml`."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specalign.layer_ids.files import InputError


@dataclasses.dataclass(frozen=True, slots=True)
class ProjectSettings:
    """What a project says once for all its checks.

    Attributes:
        engines: engines to check when none is named.
        ignore: finding code, or `code@engine`, → reason; the reason is not optional.
    """

    engines: tuple[str, ...] = ()
    ignore: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_project_settings(start: Path) -> ProjectSettings:
    """The settings of the first `pyproject.toml` in `start` or above it; empty where none has the table.

    Raises:
        InputError: no TOML, an unknown key, or an ignored code without a reason.
    """
    file = next((f for f in (folder / "pyproject.toml" for folder in (start, *start.parents)) if _is_file(f)), None)
    if file is None:
        return ProjectSettings()
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise InputError(f"{file}: {error}") from None
    tool = data.get("tool", {})
    return _settings(tool.get("specalign", {}) if isinstance(tool, dict) else tool, file)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above that may not be looked into
        return False


def _settings(table: Any, file: Path) -> ProjectSettings:
    where = f"{file}: [tool.specalign]"
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table with the keys engines and ignore, not {table!r:.60}")
    if set(table) - {"engines", "ignore"}:
        raise InputError(f"{where} takes the keys engines and ignore, not {', '.join(table)}")
    engines, ignore = table.get("engines", []), table.get("ignore", {})
    if not isinstance(engines, list) or not all(isinstance(name, str) for name in engines):
        raise InputError(f"{where} engines must be a list of names such as 'sglang==0.5.23'")
    if not isinstance(ignore, dict) or not all(isinstance(reason, str) and reason.strip() for reason in ignore.values()):
        raise InputError(f"{where} ignore must be a table of code = 'reason': a code without a reason is not ignored")
    return ProjectSettings(tuple(engines), ignore)

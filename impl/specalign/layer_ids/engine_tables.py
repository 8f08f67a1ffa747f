"""From the tables of `engine_data/*.toml` to dataclasses, with every key and value checked."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

TABLES: Final = ("engine", "family", "capture", "draft")

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "grade": ("R", "X", "T", "I"),
    "default": ("rule", "refused", "dflash-even"),
    "reach": ("n", "n-1", "none"),
    "order": ("layer", "config"),
    "duplicates": ("collapse", "keep", "error"),
    "pipeline": ("last-stage-only", "forwarded", "refused", "unchecked"),
    "role": ("server", "trainer", "reference"),
    "d2t": ("", "offsets", "absolute", "ignored"),
    "target_hidden_size_null": ("", "error", "hidden_size"),
    "lm_head_missing": ("", "random", "target", "target-cut", "error", "random-if-draft-vocab"),
    "d2t_missing": ("", "identity", "error"),
    "unknown_weights": ("", "dropped", "error", "warned"),
    "missing_weights": ("", "silent", "error", "warned"),
    "both_norms": ("", "both-applied", "fc_norm-only", "error"),
}


class EngineDataError(ValueError):
    """A row of engine data, or a request for an engine, is wrong. The message names it and says what is allowed."""


def parse_toml(name: str, text: str, schema: str) -> Mapping[str, Any]:
    """The tables of one file.

    Raises:
        EngineDataError: no TOML, another schema, or a table that nobody reads.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EngineDataError(f"{name}: not TOML: {error}") from None
    if data.get("schema") != schema or set(data) - {"schema", *TABLES}:
        raise EngineDataError(f"{name}: wants schema = {schema!r} and the tables {', '.join(TABLES)}; has {', '.join(data)}")
    return data


def build(cls: type[T], data: Mapping[str, Any], table: str, source: str) -> Iterator[T]:
    """One `cls` for each row of `data[table]`.

    Raises:
        EngineDataError: a table or row of the wrong type, an unknown or missing key, a value of the wrong type or not among the
            allowed ones.
    """
    rows = data.get(table, [])
    if not isinstance(rows, list):
        raise EngineDataError(f"{source}: {table} must be an array of tables: write [[{table}]]")
    hints = typing.get_type_hints(cls)
    for number, row in enumerate(rows, start=1):
        where = f"{source}: [[{table}]] number {number} ({row.get('engine', row.get('name', '?'))})"
        yield _row(cls, hints, row, where)


def _row(cls: type[T], hints: Mapping[str, Any], row: Mapping[str, Any], where: str) -> T:
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every cls is a dataclass
    unknown = sorted(set(row) - set(fields))
    if unknown:
        raise EngineDataError(f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(fields)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in row and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise EngineDataError(f"{where}: {missing[0]!r} is missing")
    return cls(**{key: _value(value, hints[key], f"{where}: {key}") for key, value in row.items()})


def _value(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    key = where.rpartition(": ")[2]
    if hint in (str, int, bool):
        if type(value) is not hint:
            raise EngineDataError(f"{where} must be of type {hint.__name__}, not {value!r}")
        if hint is str and key in _CHOICES and value not in _CHOICES[key]:
            raise EngineDataError(f"{where} must be one of {', '.join(map(repr, _CHOICES[key]))}, not {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise EngineDataError(f"{where} must be a list of strings, not {value!r}")
        return tuple(value)
    if not isinstance(value, dict):
        raise EngineDataError(f"{where} must be a table, not {value!r}")
    inner = typing.get_args(hint)[1]
    items = {name: item if inner is Any else _value(item, inner, f"{where}: {name}") for name, item in value.items()}
    return types.MappingProxyType(items)

"""Reads what ci_shard.py wrote; apart from it, since a gate has no pytest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

SCHEMA = "ci-account/1"


class BadAccountError(Exception):
    """The file is no account; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Account:
    """One shard of a stage: `shard` of `shards`, from 1; the tests that it collected, and those that it took."""

    file: Path
    stage: str
    shard: int
    shards: int
    collected: tuple[str, ...]
    selected: tuple[str, ...]


def read_account(file: Path) -> Account:
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, expected {SCHEMA}")
        number, count = (int(value) for value in data["shard"])
        return Account(file, str(data["stage"]), number, count, _tests(data["collected"]), _tests(data["selected"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadAccountError(f"{file}: no account: {error!r}") from error


def _tests(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise ValueError(f"expected a list of node ids, found {value!r:.80}")
    return tuple(value)

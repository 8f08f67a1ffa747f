"""The file of waivers: GPU tests that may stay unrun although GPUs are required, each with a reason and an expiry date.

    [[waiver]]
    test = "tests/gpu/test_gemm.py::test_fp4[*]"   # a node id; * stands for any text, everything else for itself
    reason = "needs compute capability 10.0; the runner has 9.0"
    expires = 2027-03-31                           # the last day on which it holds, in UTC
    skip = "asked for 1 GPU of compute capability 10.0*"   # optional: only this reason of the skip is waived

A module that is skipped as a whole has its path as its node id.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

_NEEDED: Final = ("test", "reason", "expires")
_KEYS: Final = (*_NEEDED, "skip")


@dataclasses.dataclass(frozen=True)
class Waiver:
    """One entry of the file.

    Attributes:
        test: pattern of node ids.
        reason: why the tests may stay unrun.
        expires: the last day on which it holds, in UTC.
        skip: pattern of the skip's own reason; None takes any.
        place: `waivers.toml, waiver 3`, for messages.
    """

    test: str
    reason: str
    expires: datetime.date
    skip: str | None
    place: str

    def covers(self, nodeid: str) -> bool:
        return _matches(self.test, nodeid)

    def excuses(self, nodeid: str, why: str) -> bool:
        return self.covers(nodeid) and (self.skip is None or _matches(self.skip, why))

    def is_expired(self, today: datetime.date) -> bool:
        return self.expires < today

    def format(self) -> str:
        return f"{self.test} until {self.expires}: {self.reason}"


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers of a file, in its order.

    Raises:
        pytest.UsageError: no such file, no TOML, or an entry that is not whole: what it lacks is named.
    """
    tomllib = importlib.import_module("tomllib")
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise pytest.UsageError(f"waivers: cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"waivers: {path} is no TOML file: {error}") from None
    entries = document.pop("waiver", [])
    if document or not isinstance(entries, list):
        strange = ", ".join(map(repr, document)) or "'waiver'"
        raise pytest.UsageError(f"waivers: {path}: {strange}: write each waiver under a line [[waiver]], and nothing else")
    return tuple(_read(entry, f"{path.name}, waiver {number}") for number, entry in enumerate(entries, 1))


def is_in_reach(waiver: Waiver, args: Iterable[str], rootpath: Path, start: Path) -> bool:
    """Whether a run of these arguments, files or folders, would have collected all that the pattern can mean.

    Args:
        args: as pytest got them, relative to `start`; one with `::` reaches only part of a file.
    """
    file, _, _ = waiver.test.partition("::")
    fixed = file.split("*")[0]
    place = rootpath / (fixed if fixed == file else fixed.rpartition("/")[0])
    whole = [(start / arg).resolve() for arg in args if "::" not in arg]
    return any(place.resolve().is_relative_to(reach) for reach in whole)


def _read(entry: object, place: str) -> Waiver:
    if not isinstance(entry, dict):
        raise pytest.UsageError(f"waivers: {place}: {entry!r}: write each waiver under a line [[waiver]]")
    strange = [key for key in entry if key not in _KEYS]
    if strange:
        raise pytest.UsageError(f"waivers: {place}: {strange[0]!r} is no key of a waiver: {', '.join(_KEYS)}")
    lacking = [key for key in _NEEDED if key not in entry]
    if lacking:
        raise pytest.UsageError(f"waivers: {place} ({entry.get('test', '?')}) has no {' and no '.join(lacking)}")
    return Waiver(_text(entry, "test", place), _text(entry, "reason", place), _day(entry, place), _skip(entry, place), place)


def _skip(entry: Mapping[str, Any], place: str) -> str | None:
    return _text(entry, "skip", place) if "skip" in entry else None


def _text(entry: Mapping[str, Any], key: str, place: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise pytest.UsageError(f"waivers: {place}: {key} is {value!r}: give a text that is not empty")
    return value.strip()


def _day(entry: Mapping[str, Any], place: str) -> datetime.date:
    value = entry["expires"]
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise pytest.UsageError(f"waivers: {place}: expires is {value!r}: give a day without quotes, like 2027-03-31")
    return value


def _matches(pattern: str, text: str) -> bool:
    """`*` is any text; brackets stand for themselves, since node ids are full of them."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None

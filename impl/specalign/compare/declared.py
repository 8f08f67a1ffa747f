"""Gaps that the caller knows of, from a file, each with its reason. What is declared and is no gap fails too."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.result import Side
from specalign.layer_ids.files import InputError, decode_utf8, quoted, read_bounded, shown

MAX_BYTES: Final = 1024 * 1024
_FIELDS: Final = frozenset({"side", "requests", "positions", "keys", "reason"})
_POSITIONS: Final = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """One gap.

    Attributes:
        side: the side that lacks the rows.
        requests: pattern of the request ids on the side that has them (shell style).
        positions: first and last position; last is None for "to the end".
        keys: pattern of the tensor keys.
        reason: why that is no fault.
    """

    side: Side
    reason: str
    requests: str = "*"
    positions: tuple[int, int | None] = (0, None)
    keys: str = "*"

    def covers_key(self, key: str) -> bool:
        """Whether it is about this key."""
        return fnmatch.fnmatchcase(key, self.keys)

    def covers_rows(self, positions: NDArray[Any], requests: NDArray[Any], names: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which rows it is about, bool `[rows]`; `requests` indexes `names`, −1 where the row is not there."""
        first, last = self.positions
        named = np.array([fnmatch.fnmatchcase(name, self.requests) for name in names] + [False], np.bool_)
        inside = (positions >= first) & (True if last is None else positions <= last)
        return np.asarray(inside & named[requests])

    @property
    def is_whole(self) -> bool:
        """All rows of its keys."""
        return self.requests == "*" and self.positions == (0, None)

    def format(self) -> str:
        """One line."""
        first, last = self.positions
        what = f"keys {self.keys}, requests {self.requests}, positions {first}-{'' if last is None else last}"
        return f"missing on side {self.side}: {what}: {self.reason}"


def read_declared(path: Path) -> tuple[Declared, ...]:
    """The gaps in a TOML file: `[[missing]]` tables with side, reason and, where it is narrower than everything, requests,
    positions ("3", "0-9", "12-") and keys.

    Raises:
        InputError: not such a file.
    """
    where = shown(path)
    try:
        document = tomllib.loads(decode_utf8(read_bounded(path, MAX_BYTES), where))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: no TOML ({error}); write [[missing]] tables with side and reason") from None
    entries = document.get("missing")
    if set(document) != {"missing"} or not isinstance(entries, list) or not entries:
        raise InputError(
            f"{where}: holds {quoted(sorted(document))}; a list of [[missing]] tables, and nothing else, belongs here"
        )
    return tuple(_parse(entry, f"{where}: entry {number + 1}") for number, entry in enumerate(entries))


def _parse(entry: Mapping[str, Any], where: str) -> Declared:
    if not isinstance(entry, dict) or not {"side", "reason"} <= set(entry) <= _FIELDS:
        raise InputError(f"{where} needs side and reason, and may have {', '.join(sorted(_FIELDS - {'side', 'reason'}))}")
    wrong = [name for name, value in entry.items() if not isinstance(value, str) or not value.strip()]
    if wrong:
        raise InputError(f"{where}: {wrong[0]} is {quoted(entry[wrong[0]])}; it must be a text that is not empty")
    if entry["side"] not in ("a", "b"):
        raise InputError(f"{where}: side is {quoted(entry['side'])}; it is the side that lacks the rows, a or b")
    return Declared(
        entry["side"],
        entry["reason"],
        entry.get("requests", "*"),
        _range(entry.get("positions", "0-"), where),
        entry.get("keys", "*"),
    )


def _range(text: str, where: str) -> tuple[int, int | None]:
    match = _POSITIONS.fullmatch(text.strip())
    if match is None or match[1] is None or (match[3] is not None and int(match[3]) < int(match[1])):
        raise InputError(f"{where}: positions is {quoted(text)}; write 3, 0-9 or 12-")
    last = match[3] if match[2] else match[1]
    return int(match[1]), None if last is None else int(last)

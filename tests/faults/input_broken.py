"""Broken implementations that bend what they should refuse, or that go wrong beyond published heads."""

from __future__ import annotations

import re
from typing import Any

from tests.faults import right


def first_six(ids: Any, n: int) -> list[int]:
    return right.output(ids, n)[:6]


def first_twelve(ids: Any, n: int) -> list[int]:
    return right.output(ids, n)[:12]


def from_a_set(ids: Any, n: int) -> list[int]:
    return right.boundary(sorted(ids) if isinstance(ids, (set, frozenset)) else ids, n)


def from_a_mapping(ids: Any, n: int) -> list[int]:
    return right.boundary(list(ids) if isinstance(ids, dict) else ids, n)


def from_text(ids: Any, n: int) -> list[int]:
    return right.boundary([int(k) for k in re.findall(r"\d+", ids)] if isinstance(ids, str) else ids, n)


def from_bytes(ids: Any, n: int) -> list[int]:
    return right.boundary(list(ids) if isinstance(ids, bytes) else ids, n)


def from_a_number(ids: Any, n: int) -> list[int]:
    return right.boundary([ids] if type(ids) is int else ids, n)


def without_nulls(ids: Any, n: int) -> list[int]:
    return right.boundary([k for k in ids if k is not None] if isinstance(ids, list) else ids, n)


def cast(ids: Any, n: int) -> list[int]:
    return right.boundary([int(k) for k in ids] if isinstance(ids, list) else ids, n)


def stop_before_n(ids: Any, n: int) -> list[int]:
    return [b for b in right.output(ids, n) if b < n]


def read_floats(config: dict[str, Any]) -> Any:
    ids = right.read_ids(config)
    return None if ids is None else [float(k) for k in ids]


def read_once(config: dict[str, Any]) -> Any:
    ids = right.read_ids(config)
    return None if ids is None else list(dict.fromkeys(ids))


def width_once(config: dict[str, Any], hidden: int) -> int:
    return len(set(right.read_ids(config) or (0, 0, 0))) * hidden

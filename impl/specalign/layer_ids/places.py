"""Looking up dotted places such as `eagle_config.norm_before_fc` in a parsed config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The key is not in the file; a key that holds null is there and gives None."""


def look_up(config: Mapping[str, object], place: str) -> object:
    """The value at a dotted place, or `MISSING`. A step through something that is no object is `MISSING` too."""
    value: object = config
    for key in place.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return MISSING
        value = value[key]
    return value


def first_set(config: Mapping[str, object], places: Iterable[str]) -> tuple[str | None, object]:
    """The first of `places` that holds a value other than null, with the value; (None, None) when none does."""
    for place in places:
        value = look_up(config, place)
        if value is not MISSING and value is not None:
            return place, value
    return None, None


def int_or_none(value: object) -> int | None:
    """`value` if it is a plain integer (JSON true and 3.0 are not)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None

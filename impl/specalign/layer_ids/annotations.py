"""GitHub's workflow commands: a line of the log that GitHub shows as an annotation.

Escaping as in `@actions/core` (packages/core/src/command.ts): % CR LF in the message, and : , besides in a property.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Level = Literal["error", "warning", "notice"]


def workflow_command(level: Level, message: str, properties: Mapping[str, str]) -> str:
    """One line; a message of several lines stays readable in the annotation. Properties: `file`, `line`, `title`, …"""
    given = ",".join(f"{name}={_escape(value, True)}" for name, value in properties.items())
    return f"::{level} {given}::{_escape(message, False)}"


def _escape(text: str, is_property: bool) -> str:
    pairs: tuple[tuple[str, str], ...] = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
    if is_property:
        pairs = (*pairs, (":", "%3A"), (",", "%2C"))
    for char, code in pairs:
        text = text.replace(char, code)
    return text

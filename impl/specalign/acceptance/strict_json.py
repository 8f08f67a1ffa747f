"""JSON of unknown origin, read strictly: every refusal is one `AcceptanceError` that names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specalign.acceptance.errors import AcceptanceError
from specalign.layer_ids.files import quoted


class _TwiceError(ValueError):
    """A key came twice in one object; never leaves this module."""


def numbered_lines(data: bytes, where: str) -> Iterator[tuple[int, str]]:
    """Lines of UTF-8 bytes that are not blank, with their numbers from 1; lines end at newlines only.

    Raises:
        AcceptanceError: a line is not UTF-8.
    """
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise AcceptanceError(
                f"{where}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}); save the file as UTF-8"
            ) from error
        if text.strip():
            yield number, text


def parse(text: str, where: str) -> object:
    """The value of one JSON document.

    Raises:
        AcceptanceError: no JSON, a key twice in one object, nested too deep, or a number too long.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise AcceptanceError(f"{where}: JSON nested too deep to be read; is this the right file?") from error
    except _TwiceError as error:
        raise AcceptanceError(f"{where}: {error}") from error
    except json.JSONDecodeError as error:
        raise AcceptanceError(f"{where}: not JSON ({error.msg} at column {error.colno}): {quoted(text.strip())}") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise AcceptanceError(f"{where}: JSON holds a number too long to be read; is this the right file?") from error
    return value


def kind(value: object) -> str:
    """What a JSON value is, in words short enough for an error."""
    if isinstance(value, dict):
        names = ", ".join(quoted(str(key)) for key in list(value)[:6])
        return f"an object with keys {names}{', …' if len(value) > 6 else ''}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {quoted(value)}" if value.strip() else "a text without characters"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"key {quoted(twice)} comes twice in one object; which one counts is not known")
    return found

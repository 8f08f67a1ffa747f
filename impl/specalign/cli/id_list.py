"""Lists of layer ids on a command line."""

from __future__ import annotations

from specalign.layer_ids.files import InputError


def parse_ids(text: str) -> list[int]:
    """`24,30,36` (spaces and brackets allowed) as a list of ints.

    Raises:
        InputError: anything else.
    """
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise InputError(f"{text!r} is no list of layer ids: write them as 24,30,36") from None

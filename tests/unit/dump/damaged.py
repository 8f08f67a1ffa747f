"""Pass files that nobody should write: one thing changed in a good one, with the check of the header made right again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specalign.dump.errors import DumpError
from specalign.dump.header import seal

Header = dict[str, Any]


def split(data: bytes) -> tuple[Header, bytes]:
    """The header of a safetensors file and its data."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def join(header: Header, data: bytes) -> bytes:
    """A safetensors file."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def change_file(path: Path, change: Callable[[Header, bytes], tuple[Header, bytes]]) -> None:
    """Write a pass again with another header or data, sealed as its writer would."""
    header, data = change(*split(path.read_bytes()))
    path.write_bytes(seal(join(header, b"")) + data)


def change_document(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a pass again after `change` has changed its document in place."""

    def with_document(header: Header, data: bytes) -> tuple[Header, bytes]:
        document = json.loads(header["__metadata__"]["specalign"])
        change(document)
        header["__metadata__"]["specalign"] = json.dumps(document, separators=(",", ":"))
        return header, data

    change_file(path, with_document)


def refusal(action: Callable[[], object], *named: object) -> str:
    """The one clear line that `action` raises; it must name everything in `named`."""
    with pytest.raises(DumpError) as caught:
        action()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert [str(name) for name in named if str(name) not in message] == [], message
    return message


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir())

"""One way to open a dump of any format."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import cast

from specalign.dump.manifest import MANIFEST
from specalign.dump.passes import Dump
from specalign.dump.reader import open_specalign
from specalign.layer_ids.files import is_there


def open_dump(path: str | os.PathLike[str], *, partial: bool = False, reader: str | None = None) -> Dump:
    """A dump of whatever format: one with a `manifest.json` is our own, else the foreign readers look at it.

    Args:
        path: a folder, or for some formats a file.
        partial: take a dump of our own in which passes or ranks are missing.
        reader: the name of a foreign reader, where a path could be two things.

    Raises:
        DumpError: nothing is there, no format fits, or a dump that cannot be trusted.
    """
    place = Path(path)
    if reader is None and is_there(place / MANIFEST):
        return open_specalign(place, partial=partial)
    # Foreign formats may need torch, which our own must not load.
    readers = importlib.import_module("specalign.dump.readers")
    return cast(Dump, readers.open_foreign(place, reader=reader))

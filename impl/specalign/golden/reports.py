"""What `specalign golden list` and `diff` found, as JSON: `specalign.golden-list/1` and `specalign.golden-diff/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specalign.golden.catalog import Entry
from specalign.golden.difference import GoldenDifference

LIST_SCHEMA: Final = "specalign.golden-list/1"
DIFF_SCHEMA: Final = "specalign.golden-diff/1"


def format_list(folder: Path, entries: Sequence[Entry]) -> str:
    """The goldens below a folder, after the JSON Schema `schemas/golden-list-1.json`; ASCII, with a newline at the end."""
    told = [_entry(entry, folder) for entry in entries]
    return _text({"schema": LIST_SCHEMA, "folder": str(folder), "bytes": sum(one["bytes"] for one in told), "goldens": told})


def format_diff(old: Path, new: Path, mode: str, found: Sequence[GoldenDifference]) -> str:
    """What became of each golden, after the JSON Schema `schemas/golden-diff-1.json`; ASCII, with a newline at the end."""
    told = [
        {"name": one.name, "state": one.state, "old": one.old, "new": one.new, "max_ulp": one.max_ulp, "text": one.text}
        for one in found
    ]
    changed = sum(one.state != "same" for one in found)
    return _text({"schema": DIFF_SCHEMA, "old": str(old), "new": str(new), "mode": mode, "changed": changed, "goldens": told})


def _entry(entry: Entry, folder: Path) -> dict[str, Any]:
    document = entry.document
    tensors = () if document is None else document.tensors
    return {
        "path": entry.path.relative_to(folder).as_posix(),
        "problem": entry.problem,
        "test": None if document is None else document.key.test,
        "name": None if document is None else document.key.name,
        "arch": None if document is None else document.environment.arch,
        "form": None if document is None else document.form,
        "bytes": entry.size,
        "tensors": [{"path": one.path, "dtype": one.dtype, "shape": list(one.shape)} for one in tensors],
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"

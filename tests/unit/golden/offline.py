"""What a process without network and without fsspec does with a golden of the cache; `test_stores.py` starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from specalign.golden.files import read_golden
from specalign.golden.stores import Fetcher, FsspecStore


def fetch(folder: Path, pointer: Path) -> None:
    store = FsspecStore(f"file://{folder}/remote", cache=folder / "cache")
    golden = Fetcher(store).open(read_golden(pointer))
    if golden.data["tensor"].shape != (3, 4) or sys.modules["fsspec"] is not None:
        raise SystemExit("not the golden, or with fsspec")

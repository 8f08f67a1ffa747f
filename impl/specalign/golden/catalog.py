"""The goldens below a folder: what is there, what belongs to no test, and what killed runs left."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from specalign.golden.document import Document
from specalign.golden.dumps import SUFFIX, dump_folders, is_dump_folder
from specalign.golden.errors import GoldenError
from specalign.golden.files import FOLDER, Place, is_temporary, parse_name, read_golden
from specalign.golden.usage import Present
from specalign.layer_ids.files import shown

_SKIPPED: Final = frozenset({".git", ".hg", ".tox", ".venv", "node_modules", "__pycache__", "site-packages"})


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One golden of a folder.

    Attributes:
        path: the file.
        place: the same as a place.
        document: what it says; None for one that cannot be read.
        problem: why it cannot.
        size: bytes on disk, those of a dump included; of a golden in a store, of the file there.
    """

    path: Path
    place: Place
    document: Document | None
    problem: str
    size: int


def entries(folder: Path) -> list[Entry]:
    """Every golden that lies in a folder itself, by name; also a broken link or a folder in the place of one."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = parse_name(path.name)
        if name is not None:
            found.append(_entry(path, Place(folder, *name)))
    return found


def folders(top: Path) -> Iterator[Path]:
    """Every folder of goldens at or below `top`: those called `__golden__`, what is in them, and others that hold a golden."""
    for name, below, files in os.walk(top):
        below[:] = sorted(entry for entry in below if entry not in _SKIPPED and not entry.endswith(SUFFIX))
        inside = FOLDER in Path(name).parts or any(
            parse_name(file) is not None and _is_golden(Path(name, file)) for file in files
        )
        if inside:
            yield Path(name)


def present(test_folders: Mapping[str, str], root: Path) -> frozenset[Present]:
    """The goldens in these folders, for a usage record.

    Args:
        test_folders: folder of goldens → folder of the tests that they belong to; "" where that is not known.
        root: rootdir, which the record's paths are relative to.
    """
    found = set()
    for folder, tests in test_folders.items():
        place = Path(os.path.relpath(folder, root)).as_posix()
        for entry in entries(Path(folder)):
            if entry.document is not None:  # of another, nobody can tell whose it is
                key = entry.document.key
                exists = not tests or (Path(tests) / key.module).exists()
                found.add(Present(f"{place}/{entry.place.stem}", f"{place}::{key.test}", exists))
    return frozenset(found)


def paths_of(golden: str, root: Path) -> list[Path]:
    """Every file and folder of a golden that a usage record names, for all architectures."""
    path = root / golden
    found: list[Path] = []
    for entry in entries(path.parent):
        if entry.place.stem == path.name:
            found += [entry.path, *dump_folders(entry.place)]
    return sorted(set(found))


def leftovers(top: Path) -> list[Path]:
    """What runs that were killed left in folders of goldens: temporary files, and dumps of ours that no document names.

    A dump is no leftover where its golden's document cannot be read, after a merge with conflicts for instance.
    """
    found: list[Path] = []
    for folder in folders(top):
        found += (path for path in folder.iterdir() if path.is_file() and is_temporary(path.name))
        dumps = {path for path in folder.iterdir() if is_dump_folder(path.name) and path.is_dir()}
        for entry in entries(folder):
            if entry.document is None:  # it may name any of them
                dumps -= set(dump_folders(entry.place))
            else:
                dumps.discard(folder / entry.document.folder)
        found += dumps
    return sorted(found)


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders. Raises `GoldenError` for one that cannot be."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            raise GoldenError(f"{shown(path)}: cannot be removed: {error.strerror or error}") from error


def _entry(path: Path, place: Place) -> Entry:
    try:
        document = read_golden(path).document
    except GoldenError as error:
        return Entry(path, place, None, str(error), path.lstat().st_size if not path.is_file() else path.stat().st_size)
    if document.form == "external":
        return Entry(path, place, document, "", document.size)
    size = path.stat().st_size
    if document.form == "dump":
        size += sum(file.stat().st_size for file in (place.folder / document.folder).rglob("*") if file.is_file())
    return Entry(path, place, document, "", size)


def _is_golden(path: Path) -> bool:
    try:
        read_golden(path)
    except GoldenError:
        return False
    return True

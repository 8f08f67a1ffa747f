"""What the readers of foreign formats share: passes kept by rank and number, rows that the caller may know, loading by key."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from specalign.dump.errors import DumpError
from specalign.dump.files import reading
from specalign.dump.manifest import Manifest
from specalign.dump.passes import Dump, PassInfo, RawTensor, TensorSpec
from specalign.dump.readers.entries import Entry, read_entries
from specalign.dump.rows import Rows
from specalign.layer_ids.files import is_there, list_names, shown

GivenRows: TypeAlias = Mapping[int, Rows]
"""The rows of each pass by its number, of every rank, for formats or files that do not tell."""


class ForeignDump(Dump):
    """A dump in another program's format. Subclasses open the files and say how each key comes out of them."""

    def __init__(self, path: Path, manifest: Manifest, passes: Iterable[tuple[PassInfo, Rows]], notes: Iterable[str]) -> None:
        self.path = path
        self.manifest = manifest
        self.notes = tuple(notes)
        self._passes: dict[tuple[int, int], tuple[PassInfo, Rows]] = {}
        for info, rows in passes:
            if (info.rank, info.number) in self._passes:
                raise DumpError(f"{info.where}: rank {info.rank} wrote pass {info.number} twice; keep one run a folder")
            self._passes[info.rank, info.number] = (info, rows)
        if not self._passes:
            raise DumpError(f"{shown(path)}: holds no pass")

    def infos(self) -> Sequence[PassInfo]:
        """Every pass of every rank, by rank, then number."""
        return tuple(self._passes[place][0] for place in sorted(self._passes))

    def rows(self, info: PassInfo) -> Rows:
        """The rows of one pass, as they were read when the dump was opened."""
        return self._known(info)[1]

    def load(self, info: PassInfo, keys: Collection[str] | None = None) -> Mapping[str, RawTensor]:
        """The tensors of one pass, all of them or those of `keys` that it has.

        Raises:
            DumpError: a file is gone or changed since the dump was opened, or tensors that must be equal differ.
        """
        known, _ = self._known(info)
        entries = self._entries(known)
        wanted = [key for key in known.tensors if keys is None or key in keys]
        return read_entries([_expected(entries, known.tensors[key], known.where) for key in wanted], known.where)

    @abc.abstractmethod
    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        """What the files of a pass hold, by key."""

    def _known(self, info: PassInfo) -> tuple[PassInfo, Rows]:
        try:
            return self._passes[info.rank, info.number]
        except KeyError:
            raise DumpError(f"{shown(self.path)}: has no pass {info.number} of rank {info.rank}") from None


def _expected(entries: Mapping[str, Entry], spec: TensorSpec, where: str) -> Entry:
    made = entries.get(spec.key)
    if made is None or (made.spec is not spec and made.spec != spec):
        raise DumpError(
            f"{where}: {spec.key} is no longer what it was when the dump was opened; read it when nobody writes to it"
        )
    return made


def settle_rows(told: Rows | None, given: GivenRows | None, number: int, where: str, missing: str) -> Rows:
    """The rows of a pass: those the caller gives, which must agree with what the files tell, or those.

    Args:
        told: what the files tell; None if they do not.
        missing: how to record what is missing, for the message.

    Raises:
        DumpError: nobody knows the rows, or the two disagree.
    """
    if given is None or number not in given:
        if told is None:
            raise DumpError(
                f"{where}: does not say which tokens its rows are, so nothing can be matched. {missing}; or give rows="
            )
        return told
    rows = given[number]
    if told is not None and not (np.array_equal(told.tokens, rows.tokens) and np.array_equal(told.positions, rows.positions)):
        raise DumpError(f"{where}: the rows given for pass {number} have other tokens or positions than the file says")
    return rows


def names_in(folder: Path) -> list[str]:
    """The names in a folder without those that begin with a dot; [] if it is none. For detection only."""
    with reading():
        names = list_names(folder) if folder.is_dir() else []
    return [name for name in names if not name.startswith(".")]


def require_numbers(numbers: Sequence[int], what: str, where: str) -> None:
    """Refuses a gap in a numbering from 0.

    Raises:
        DumpError: naming the first number that is missing.
    """
    gap = next((want for want, have in enumerate(sorted(numbers)) if want != have), None)
    if gap is not None:
        raise DumpError(f"{where}: {what} {gap} is missing, and {max(numbers)} is there; copy the whole folder again")


def require_there(path: Path) -> None:
    """Refuses a path that does not exist.

    Raises:
        DumpError: it does not.
    """
    with reading():
        there = is_there(path)
    if not there:
        raise DumpError(f"{shown(path)}: no such file or folder; check the path")

"""Files of one layout: the decode steps of a run differ in the bytes of their tensors, and in nothing that must be parsed.

A file that was parsed leaves its layout: all bytes that the parser looks at, but for the checksums of the tensors (which it does
not look at) and those names and numbers that may differ from file to file. Another file with the same bytes in the same places
holds the same pickle and the same records, so that its tensors lie where the other's lie.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import mmap
import zlib
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from specalign.dump.readers.torch_zip import CRC, ENTRY_BYTES, NAME_LENGTH, PICKLE, READ_OF_LOCAL, Record, Span, TorchZip

_Kept = TypeVar("_Kept")

_MOST: Final = 8
_MOST_PICKLES: Final = 64
_MOST_BYTES: Final = 128 * 1024
"""Of a layout, which takes nine times as much memory."""

_OWN_ID: Final = ".data/serialization_id"
"""A record that `torch.save` makes out of the tensors' checksums."""


_numbers: Final = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TorchLayout:
    """What the files of a layout have in common.

    Attributes:
        value: the plain value, with a `Span` for each tensor.
        size: bytes of a file.
        at, fixed: places in the file, and the bytes there.
        folders: places of the name of the folder in each entry of the directory, `[entries, letters]`.
        own_id: the record of that name; None if there is none.
        number: of this layout; no other has it, in this process.
    """

    value: Any
    size: int
    at: NDArray[np.intp]
    fixed: bytes
    folders: NDArray[np.intp]
    own_id: Record | None
    number: int = dataclasses.field(default_factory=_numbers.__next__)

    def fits(self, mapped: mmap.mmap) -> bool:
        """Whether a mapped file of the same size is of this layout."""
        data = np.frombuffer(mapped, np.uint8)
        if data.take(self.at).tobytes() != self.fixed:
            return False
        folder = data.take(self.folders[0]).tobytes()
        if data.take(self.folders).tobytes() != folder * len(self.folders) or not folder.isascii() or b"/" in folder:
            return False
        own = self.own_id
        if own is None:
            return True
        said = int.from_bytes(mapped[own.entry + CRC.start : own.entry + CRC.stop], "little")
        return zlib.crc32(mapped[own.begin : own.begin + own.size]) == said


def filled(value: Any, mapped: mmap.mmap) -> Any:
    """A plain value with tensors in the places of their spans."""
    kind = type(value)
    if kind is Span:
        return value.tensor(mapped)
    if kind is dict:
        return {name: filled(item, mapped) for name, item in value.items()}
    return [filled(item, mapped) for item in value] if kind is list else value


def layout_of(archive: TorchZip, value: Any, mapped: mmap.mmap) -> TorchLayout | None:
    """The layout of a file that was parsed; None for one that no `torch.save` wrote, or that would take too much memory.

    Args:
        value: its plain value, with a `Span` for each tensor.
    """
    ranges: list[tuple[int, int]] = []
    folders: list[tuple[int, int]] = []
    directory = kept = min(record.entry for record in archive.records.values())
    listed: list[tuple[int, int]] = []
    for name, record in archive.records.items():
        entry = mapped[record.entry : record.entry + ENTRY_BYTES]
        begin = record.entry + ENTRY_BYTES
        folders.append((begin, begin + int.from_bytes(entry[NAME_LENGTH], "little") - len(f"/{name}".encode())))
        ranges += [(record.header + part.start, record.header + part.stop) for part in READ_OF_LOCAL]
        if name.startswith("data/") or name == _OWN_ID:
            listed.append((kept, record.entry + CRC.start))
            kept = record.entry + CRC.stop
        else:
            ranges.append((record.begin, record.begin + record.size))
        listed.append((kept, begin))
        kept = folders[-1][1]
    if any(end > directory for _, end in ranges):  # then what is free of the directory would not be free of them
        return None
    ranges += [*listed, (kept, len(mapped))]
    if sum(end - begin for begin, end in ranges) > _MOST_BYTES or len({end - begin for begin, end in folders}) != 1:
        return None
    at = _places(ranges)
    lines = np.array([np.arange(*folder) for folder in folders], np.intp)
    data = np.frombuffer(mapped, np.uint8)
    return TorchLayout(value, len(mapped), at, data.take(at).tobytes(), lines, archive.records.get(_OWN_ID))


def _places(ranges: list[tuple[int, int]]) -> NDArray[np.intp]:
    return np.concatenate([np.arange(begin, end, dtype=np.intp) for begin, end in ranges])


class Layouts:
    """The layouts of the last files, by size: one for each.

    A layout is worth keeping from the second file on that has the same pickle. In a run whose pickles differ from step to step,
    as they do if a plain number is recorded that counts up, none is made.
    """

    def __init__(self) -> None:
        self._known: collections.OrderedDict[int, TorchLayout] = collections.OrderedDict()
        self._pickles: collections.OrderedDict[int, int] = collections.OrderedDict()

    def find(self, mapped: mmap.mmap) -> TorchLayout | None:
        """The one that a file is of, if it is known."""
        known = self._known.get(len(mapped))
        return known if known is not None and known.fits(mapped) else None

    def is_second(self, archive: TorchZip, size: int) -> bool:
        """Whether the last file of this size that was parsed had the same pickle as this one."""
        checksum = archive.records[PICKLE].crc
        known = self._pickles.pop(size, None)
        _keep(self._pickles, size, checksum, _MOST_PICKLES)
        return known == checksum

    def add(self, layout: TorchLayout) -> None:
        """Remember one, in place of the oldest."""
        _keep(self._known, layout.size, layout, _MOST)


def _keep(kept: collections.OrderedDict[int, _Kept], name: int, value: _Kept, most: int) -> None:
    kept[name] = value
    while len(kept) > most:
        kept.popitem(last=False)

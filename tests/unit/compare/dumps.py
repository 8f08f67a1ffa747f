"""Dumps in memory, whose values depend on the tokens up to a row and on nothing else, as those of a right engine do."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.keys import RowKind
from specalign.dump.manifest import Manifest
from specalign.dump.nonfinite import count_nonfinite
from specalign.dump.passes import Dump, PassInfo, RawTensor, TensorSpec
from specalign.dump.rows import NO_REQUEST, Rows, make_rows

WIDTH = 6
KEYS = ("boundary.0", "boundary.1", "boundary.2", "boundary.3", "post_norm")

Row = tuple[str | None, int, int]
"""Request (None: padding), position, kind."""

Edit = Callable[[str, Row, NDArray[Any]], NDArray[Any]]
"""(key, row, value) → what the engine under test made of it."""


def value(tokens: Sequence[int], key: str, width: int = WIDTH, dtype: str = "BF16") -> NDArray[Any]:
    """The raw bits of a row after these tokens: finite, with all bits but the highest one of the exponent and the sign in use."""
    seed = zlib.crc32(repr((tuple(tokens), key)).encode())
    raw = np.dtype(DTYPES[dtype].raw)
    drawn = np.random.default_rng(seed).integers(0, 2 ** (8 * raw.itemsize - 2), width, dtype=np.uint64)
    return drawn.astype(raw)


@dataclasses.dataclass
class Pass:
    """What one rank wrote in one forward."""

    rows: Rows
    tensors: dict[str, RawTensor]
    rank: int = 0
    number: int = 0
    coords: tuple[tuple[str, int], ...] = ()


class MemoryDump(Dump):
    """A dump that lies in memory."""

    def __init__(self, passes: Sequence[Pass], name: str = "dump", **manifest: Any) -> None:
        self.path = Path(name)
        self.manifest = Manifest("a test", **manifest)
        self.passes = list(passes)
        self.loads: list[tuple[int, int]] = []

    def infos(self) -> list[PassInfo]:
        return [
            PassInfo(
                item.rank,
                item.number,
                len(item.rows),
                {key: tensor.spec for key, tensor in item.tensors.items()},
                item.coords,
                source=f"{self.path}/{item.rank}/{item.number}",
            )
            for item in sorted(self.passes, key=lambda item: (item.rank, item.number))
        ]

    def _find(self, info: PassInfo) -> Pass:
        return next(item for item in self.passes if (item.rank, item.number) == (info.rank, info.number))

    def rows(self, info: PassInfo) -> Rows:
        return self._find(info).rows

    def load(self, info: PassInfo, keys: Collection[str] | None = None) -> Mapping[str, RawTensor]:
        self.loads.append((info.rank, info.number))
        tensors = self._find(info).tensors
        return {key: tensor for key, tensor in tensors.items() if keys is None or key in keys}


def prefill(request: str, length: int, start: int = 0) -> list[Row]:
    """Rows of a prompt, or of a chunk of it."""
    return [(request, position, RowKind.PREFILL) for position in range(start, start + length)]


def decode(position: int, *requests: str) -> list[Row]:
    """One step of several requests."""
    return [(request, position, RowKind.DECODE) for request in requests]


PADDING: Row = (None, 0, RowKind.PADDING)


def run(
    requests: Mapping[str, Sequence[int]],
    *forwards: Sequence[Row],
    keys: Sequence[str] = KEYS,
    width: int = WIDTH,
    dtype: str = "BF16",
    edit: Edit | None = None,
    name: str = "dump",
) -> MemoryDump:
    """The dump of an engine that ran these forwards over these requests (id → all of its tokens)."""
    passes = []
    for number, rows in enumerate(forwards):
        tensors = {key: tensor(key, np.array([_value(requests, row, key, width, dtype, edit) for row in rows], DTYPES[dtype].raw).reshape(-1, width), dtype) for key in keys}  # fmt: skip
        passes.append(Pass(rows_of(requests, rows), tensors, number=number))
    return MemoryDump(passes, name)


def rows_of(requests: Mapping[str, Sequence[int]], rows: Sequence[Row]) -> Rows:
    """The columns of a forward."""
    ids = list(dict.fromkeys(request for request, *_ in rows if request is not None))
    return make_rows(
        [0 if request is None else requests[request][position] for request, position, _ in rows],
        [position for _, position, _ in rows],
        [NO_REQUEST if request is None else ids.index(request) for request, *_ in rows],
        [int(kind) for *_, kind in rows],
        ids,
    )


def tensor(key: str, data: NDArray[Any], dtype: str = "BF16", axis: str = "") -> RawTensor:
    """A tensor out of raw bits."""
    return RawTensor(TensorSpec(key, dtype, tuple(data.shape), axis=axis), data)


def _value(requests: Mapping[str, Sequence[int]], row: Row, key: str, width: int, dtype: str, edit: Edit | None) -> NDArray[Any]:
    request, position, _ = row
    made = value((), key, width, dtype) if request is None else value(requests[request][: position + 1], key, width, dtype)
    return made if edit is None else edit(key, row, made)


def fingerprinted(dump: MemoryDump, *, counted: bool = True) -> MemoryDump:
    """The same dump with fingerprints in place of its tensors; `counted=False` as older recorders wrote them."""
    passes = []
    for item in dump.passes:
        tensors = {}
        for key, t in item.tensors.items():
            with_counts = counted and t.dtype.is_float
            spec = dataclasses.replace(t.spec, fingerprint=True, counted=with_counts)
            counts = count_nonfinite(t.data, t.dtype) if with_counts else None
            tensors[key] = RawTensor(spec, fingerprint_rows(t.data), counts)
        passes.append(dataclasses.replace(item, tensors=tensors))
    return MemoryDump(passes, f"{dump.path}-fingerprints")


def flip(data: NDArray[Any], channel: int = 2) -> NDArray[Any]:
    """The row with the lowest bit of one element flipped."""
    changed = data.copy()
    changed[channel] ^= 1
    return changed

"""The forwards that are open at the moment, and no more of them than memory allows."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.forwards import Forward, Loaded, load_forward
from specalign.compare.result import Problem, Side
from specalign.dump.dtypes import DTYPES
from specalign.dump.passes import Dump, RawTensor, TensorSpec

CACHE_BYTES: Final = 8 * 1024 * 1024
"""Forwards of one side are kept while they take no more than this together; a larger one is read key by key."""


class Shelf:
    """Opens the forwards of one side as they are needed.

    Attributes:
        forwards: of the side.
        problems: what was found wrong while opening them, by code and place.
    """

    def __init__(self, dump: Dump, side: Side, forwards: Sequence[Forward], keys: Collection[str]) -> None:
        self.forwards = forwards
        self.problems: dict[tuple[str, str], Problem] = {}
        self._dump, self._side, self._keys = dump, side, frozenset(keys)
        self._open: collections.OrderedDict[int, Loaded] = collections.OrderedDict()
        self._gathered = np.empty(0, np.uint8)
        self._bytes = 0
        self._sizes: dict[tuple[int, ...], int] = {}

    def tensor(self, forward: int, key: str, *, whole: bool) -> RawTensor | None:
        """The tensor of a key. `whole`: all keys of the forward stay open; otherwise those of a large one are read one by one."""
        if not whole and self.size(forward) > CACHE_BYTES:
            return self._note(load_forward(self._dump, self._side, self.forwards[forward], {key}), key)
        loaded = self._open.get(forward)
        if loaded is None:
            loaded = self._add(forward)
        else:
            self._open.move_to_end(forward)
        return self._note(loaded, key)

    def gather(self, forwards: NDArray[Any], rows: NDArray[Any], key: str) -> RawTensor | None:
        """Rows of several forwards below each other, until the next call; None if these do not hold the same kind of tensor."""
        changes = np.diff(forwards) != 0
        starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(forwards)]
        in_order = bool((changes | (np.diff(rows) == 1)).all())  # each forward's rows lie below each other
        spec, pieces, counts = None, [], []
        for (start, end), forward, first in zip(
            itertools.pairwise(starts), forwards[starts[:-1]].tolist(), rows[starts[:-1]].tolist(), strict=True
        ):
            tensor = self.tensor(forward, key, whole=True)
            if tensor is None or (spec is not None and tensor.spec is not spec and _kind(tensor.spec) != _kind(spec)):
                return None
            spec = spec or tensor.spec
            pieces.append(tensor.data[first : first + end - start] if in_order else tensor.data)
            if tensor.nonfinite is not None:
                counts.append(tensor.nonfinite[rows[start:end]])
        if spec is None:
            return None
        data = self._buffer((len(rows), pieces[0].shape[1]), pieces[0].dtype)
        if in_order:
            np.concatenate(pieces, out=data)
        else:
            for (start, end), piece in zip(itertools.pairwise(starts), pieces, strict=True):
                # "clip" lets numpy write into the slice itself; the rows come from an index of this very forward.
                np.take(piece, rows[start:end], axis=0, out=data[start:end], mode="clip")
        return RawTensor(spec, data, np.concatenate(counts) if spec.counted else None)

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for what is gathered, taken from the system once: fresh pages cost more than all that is done with them."""
        size = math.prod(shape) * dtype.itemsize
        if len(self._gathered) < size:
            self._gathered = np.empty(size, np.uint8)
        return self._gathered[:size].view(dtype).reshape(shape)

    def size(self, forward: int) -> int:
        """Bytes of the tensors of a forward."""
        infos = self.forwards[forward].infos
        known = (*(id(info.tensors) for info in infos), *(info.rows for info in infos))
        if known not in self._sizes:
            self._sizes[known] = sum(_bytes(info.tensors, self._keys) for info in infos)
        return self._sizes[known]

    def _add(self, forward: int) -> Loaded:
        loaded = load_forward(self._dump, self._side, self.forwards[forward], self._keys)
        self._open[forward] = loaded
        self._bytes += self.size(forward)
        while len(self._open) > 1 and self._bytes > CACHE_BYTES:
            dropped, _ = self._open.popitem(last=False)
            self._bytes -= self.size(dropped)
        return loaded

    def _note(self, loaded: Loaded, key: str) -> RawTensor | None:
        tensor = loaded.whole(key)
        for problem in loaded.problems:
            self.problems.setdefault((problem.code, problem.where), problem)
        return tensor


def _kind(spec: TensorSpec) -> tuple[str, int, bool, bool]:
    return spec.dtype, spec.width, spec.fingerprint, spec.counted


def _bytes(specs: Mapping[str, TensorSpec], keys: Collection[str]) -> int:
    chosen = [spec for key, spec in specs.items() if key in keys and spec.shape]
    return sum(spec.shape[0] * (16 if spec.fingerprint else spec.width * DTYPES[spec.dtype].size) for spec in chosen)

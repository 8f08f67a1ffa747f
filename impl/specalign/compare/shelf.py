"""The forwards that are open at the moment, and no more of them than memory allows."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.bits import same_bits
from specalign.compare.forwards import Forward, Loaded, load_forward
from specalign.compare.result import Problem, Side
from specalign.dump.dtypes import DTYPES
from specalign.dump.nonfinite import COUNTED
from specalign.dump.passes import Dump, RawTensor, TensorSpec

CACHE_BYTES: Final = 24 * 1024 * 1024
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
        """Rows of several forwards below each other; None if these do not hold the same kind of tensor."""
        starts = [0, *(np.flatnonzero(np.diff(forwards)) + 1).tolist(), len(forwards)]
        spec, data, counts = None, None, None
        for start, end in itertools.pairwise(starts):
            tensor = self.tensor(int(forwards[start]), key, whole=True)
            if tensor is None or (spec is not None and _kind(tensor.spec) != _kind(spec)):
                return None
            if spec is None or data is None:
                spec, data = tensor.spec, np.empty((len(forwards), tensor.data.shape[1]), tensor.data.dtype)
                counts = np.empty((len(forwards), len(COUNTED)), np.uint32) if spec.counted else None
            # "clip" lets numpy write into the slice itself; the rows come from an index of this very forward.
            np.take(tensor.data, rows[start:end], axis=0, out=data[start:end], mode="clip")
            if counts is not None and tensor.nonfinite is not None:
                counts[start:end] = tensor.nonfinite[rows[start:end]]
        return None if spec is None or data is None else RawTensor(spec, data, counts)

    def has_bits(self, gathered: RawTensor, forwards: NDArray[Any], rows: NDArray[Any], key: str) -> bool:
        """Whether rows of several forwards have the bits that the other side gathered. False where that is not sure."""
        starts = [0, *(np.flatnonzero(np.diff(forwards)) + 1).tolist(), len(forwards)]
        for start, end in itertools.pairwise(starts):
            tensor = self.tensor(int(forwards[start]), key, whole=True)
            if tensor is None or tensor.spec.fingerprint or _kind(tensor.spec) != _kind(gathered.spec):
                return False
            first = int(rows[start])
            if int(rows[end - 1]) - first != end - 1 - start or (np.diff(rows[start:end]) != 1).any():
                return False
            if not same_bits(gathered.data[start:end], tensor.data[first : first + end - start]):
                return False
        return True

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

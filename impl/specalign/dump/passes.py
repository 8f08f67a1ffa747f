"""One forward pass of one rank in memory, and what a reader of any format has to offer."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES, DType
from specalign.dump.errors import DumpError
from specalign.dump.manifest import Manifest
from specalign.dump.rows import Rows


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a header says of one tensor.

    Attributes:
        key: without the prefix of a fingerprint.
        dtype: name of the element type of the tensor itself (not of its fingerprints).
        shape: of the tensor that was recorded, `[rows, *]`.
        site: "pre-block", "post-block", "post-norm" or "" for a module's own output.
        axis: how the ranks share it: "" (whole, or a copy on every rank), "hidden@tp" (columns, in order of the tp rank),
            "tokens@sp" (this rank holds the tp-rank-th equal slice of the pass's rows, Megatron's sequence parallel),
            "tokens@cp" or "tokens@cp:zigzag" (each rank's `tokens` and `positions` say which rows it holds), or
            "partial@tp" (each rank holds an addend).
        fingerprint: only the fingerprints of its rows are stored.
        counted: of a fingerprint: the non-finite elements of each row were counted.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    site: str = ""
    axis: str = ""
    fingerprint: bool = False
    counted: bool = False

    @property
    def width(self) -> int:
        """Elements of a row, of the share that this rank holds."""
        return math.prod(self.shape[1:])


@dataclasses.dataclass(frozen=True, slots=True)
class PassInfo:
    """One pass of one rank, as its header states it; cheap to keep for every pass of a long run.

    Attributes:
        rank: the global rank that wrote it, from 0.
        number: the pass, from 0; ranks that worked on one forward together gave it the same number.
        rows: number of token rows.
        tensors: what is stored, by key; shared between passes that store the same.
        coords: place in the parallel layout, ("tp", 1), …; axes of size 1 may be left out.
        stage: first block and end of the range of global layers that this rank ran; None if it is not known.
        source: file that holds it, for messages.
    """

    rank: int
    number: int
    rows: int
    tensors: Mapping[str, TensorSpec]
    coords: tuple[tuple[str, int], ...] = ()
    stage: tuple[int, int] | None = None
    source: str = ""

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.source or f"rank {self.rank} pass {self.number}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """The bits of a tensor, or the fingerprints of its rows.

    Attributes:
        spec: what it is.
        data: unsigned integers (`DType.raw`) of shape `spec.shape`; for fingerprints uint64 `[rows, 2]`.
        nonfinite: of a fingerprint that is `counted`: the non-finite elements of each row, uint32 `[rows, 2]` (see
            `nonfinite.COUNTED`); None for any other tensor.
    """

    spec: TensorSpec
    data: NDArray[Any]
    nonfinite: NDArray[np.uint32] | None = None

    @property
    def dtype(self) -> DType:
        """The element type of the tensor itself."""
        return DTYPES[self.spec.dtype]


class Dump(abc.ABC):
    """A dump that was opened: what every reader gives, whatever the format on disk.

    Attributes:
        path: the folder or file.
        manifest: who wrote it.
        notes: what the format cannot tell, and what was left out.
        unfinished: why the run that wrote it may not have come to its end; empty if it did, or if the format cannot tell.
    """

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @abc.abstractmethod
    def infos(self) -> Sequence[PassInfo]:
        """Every pass of every rank, by rank, then number."""

    @abc.abstractmethod
    def rows(self, info: PassInfo) -> Rows:
        """The rows of one pass.

        Raises:
            DumpError: the file is gone, was changed, or contradicts itself.
        """

    @abc.abstractmethod
    def load(self, info: PassInfo, keys: Collection[str] | None = None) -> Mapping[str, RawTensor]:
        """The tensors of one pass, all of them or those of `keys` that it has. They may be views of a mapped file: drop them
        before the next pass if memory matters.

        Raises:
            DumpError: as `rows`.
        """


def spec_of(info: PassInfo, key: str) -> TensorSpec:
    """What the pass stores under a key.

    Raises:
        DumpError: it has no such tensor.
    """
    spec = info.tensors.get(key)
    if spec is None:
        raise DumpError(f"{info.where}: has no {key}; it holds {', '.join(sorted(info.tensors)) or 'no tensor'}")
    return spec

"""What a foreign file holds under one of our keys: a tensor, or two to be added, and what must hold the same bits."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.keys import parse_key
from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.sums import add_all_rounded


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FileTensor:
    """A tensor as it lies in a file.

    Attributes:
        dtype: name of the element type, a key of `DTYPES`.
        data: raw bits, unsigned integers `DType.raw`, in C order; often a view of a mapped file.
    """

    dtype: str
    data: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.data.shape


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """How the tensor of one key comes out of a pass's files.

    Attributes:
        spec: key, element type, shape and site.
        parts: the tensor, or delta and residual.
        twins: tensors that must hold the same bits, with their names.
    """

    spec: TensorSpec
    parts: tuple[FileTensor, ...]
    twins: tuple[tuple[str, FileTensor], ...] = ()

    def with_twin(self, name: str, twin: FileTensor) -> Entry:
        """The same with one more tensor that must be equal."""
        return dataclasses.replace(self, twins=(*self.twins, (name, twin)))

    def check_twin(self, data: NDArray[Any], name: str, twin: FileTensor, where: str) -> None:
        """Raises `DumpError` unless a twin holds the bits."""
        key = self.spec.key
        advice = (
            "one of the two is of another forward or another point of the model, or holds one rank's addend. If only some"
            " layers were recorded, lay the model's config.json beside the files"
        )
        if (twin.dtype, twin.shape) != (self.spec.dtype, data.shape):
            raise DumpError(
                f"{where}: {key} is {self.spec.dtype} {list(data.shape)}, but {name}, which must equal it, is {twin.dtype}"
                f" {list(twin.shape)}; {advice}"
            )
        differ = data != twin.data
        if differ.any():
            at = tuple(int(i) for i in np.unravel_index(int(differ.argmax()), differ.shape))
            digits = DTYPES[twin.dtype].size * 2
            raise DumpError(
                f"{where}: {key} and {name} must hold the same bits and differ in {int(differ.sum())} of {differ.size} elements,"
                f" first at {list(at)}: 0x{int(data[at]):0{digits}x} and 0x{int(twin.data[at]):0{digits}x}; {advice}"
            )


def read_entries(entries: Sequence[Entry], where: str) -> dict[str, RawTensor]:
    """The bits of each, checked against its twins; all sums of one element type together.

    Raises:
        DumpError: a twin differs.
    """
    pairs: dict[str, list[Entry]] = {}
    found: dict[str, RawTensor] = {}
    for made in entries:
        found[made.spec.key] = RawTensor(made.spec, made.parts[0].data)
        if len(made.parts) > 1:
            pairs.setdefault(made.parts[0].dtype, []).append(made)
    for dtype, several in pairs.items():
        sums = add_all_rounded([(made.parts[0].data, made.parts[1].data) for made in several], dtype)
        found |= {made.spec.key: RawTensor(made.spec, data) for made, data in zip(several, sums, strict=True)}
    for made in entries:
        for name, twin in made.twins:
            made.check_twin(found[made.spec.key].data, name, twin, where)
    return found


def entry(key: str, *parts: FileTensor, site: str = "", axis: str = "") -> Entry:
    """An entry of one tensor, or of a delta and its residual.

    Raises:
        DumpError: no key of the format, or two parts that cannot be added.
    """
    parse_key(key)
    first = parts[0]
    for other in parts[1:]:
        if (other.dtype, other.shape) != (first.dtype, first.shape):
            raise DumpError(
                f"{key}: delta is {first.dtype} {list(first.shape)} and residual {other.dtype} {list(other.shape)}: they cannot"
                " be added as a layer's output"
            )
    return Entry(TensorSpec(key, first.dtype, first.shape, site, axis), parts)


class Notes:
    """Collects what was left out, each remark once, with the number of passes or tensors that it holds for."""

    def __init__(self) -> None:
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._plain: dict[str, None] = {}

    def add(self, text: str) -> None:
        """A remark on the whole dump."""
        self._plain[text] = None

    def count(self, text: str, plural: str = "passes") -> None:
        """A remark on one pass, or another thing by its plural; said once with their number."""
        self._counts[text, plural] += 1

    def texts(self) -> tuple[str, ...]:
        """All remarks."""
        counted = (f"{text} ({plural}: {n})" for (text, plural), n in self._counts.items())
        return (*self._plain, *counted)


def fitting(entries: Mapping[str, Entry], rows: int, where: str, notes: Notes) -> dict[str, Entry]:
    """The entries that hold one row for each token row; others are left out with a note.

    Raises:
        DumpError: a boundary or `post_norm` has another number of rows.
    """
    kept = {}
    for key, made in entries.items():
        shape = made.spec.shape
        if shape and shape[0] == rows:
            kept[key] = made
        elif parse_key(key).kind in ("boundary", "post_norm"):
            raise DumpError(
                f"{where}: {key} has shape {list(shape)}, but the pass has {rows} token rows; rows that are split over ranks"
                " (sequence or context parallel) or cut before the end cannot be told apart in this format"
            )
        else:
            # Logits of a prefill are those of each sequence's last row; which rows a module drops is its own business.
            notes.count(f"{key} is left out: not one row for each token")
    return kept


def integers(tensor: FileTensor, name: str, where: str) -> NDArray[np.int64]:
    """An integer tensor as int64, in its own shape.

    Raises:
        DumpError: it is of another type.
    """
    dtype = DTYPES[tensor.dtype]
    if dtype.kind not in ("int", "uint"):
        raise DumpError(f"{where}: {name} is {tensor.dtype}, which holds no integers")
    kind = "i" if dtype.kind == "int" else "u"
    return np.asarray(tensor.data.view(f"<{kind}{dtype.size}").astype(np.int64))


def flat_integers(tensor: FileTensor, name: str, where: str) -> NDArray[np.int64]:
    """One integer a row out of `[rows]`, `[1, rows]`, or `[3, rows]` with three equal rows (multimodal positions of text).

    Raises:
        DumpError: other shapes, or multimodal positions that differ.
    """
    value = integers(tensor, name, where)
    if value.ndim == 2 and len(value) == 3 and name == "positions":
        if (value != value[0]).any():
            raise DumpError(f"{where}: positions are multimodal ([3, rows], and the three differ): rows of text only are read")
        return np.asarray(value[0])
    if value.ndim == 1 or (value.ndim == 2 and len(value) == 1):
        return np.asarray(value.reshape(-1))
    raise DumpError(f"{where}: {name} has shape {list(value.shape)}, not one integer for each row of one batch")


def shared_specs(
    entries: Iterable[Entry], seen: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]]
) -> Mapping[str, TensorSpec]:
    """The specs by key; one mapping for all passes that store the same, so that a long run's passes stay small."""
    specs = tuple(made.spec for made in entries)
    return seen.setdefault(specs, {spec.key: spec for spec in specs})

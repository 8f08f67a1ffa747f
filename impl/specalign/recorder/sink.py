"""One forward on its way into the dump: tensors laid out as rows, as bits or as fingerprints."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray
from torch import Tensor

from specalign.dump.dtypes import BY_TORCH_NAME, DTYPES
from specalign.dump.fingerprint_torch import fingerprint_tensor
from specalign.dump.header import stored_name
from specalign.dump.nonfinite import has_nonfinite, unpack_counts
from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.shards import first_byte
from specalign.dump.writer import DumpWriter
from specalign.recorder.batch import COLUMNS, RowBatch, rows_of
from specalign.recorder.copying import OpenPass
from specalign.recorder.errors import RecordError

import torch  # isort: skip

Mode: TypeAlias = Literal["full", "fingerprint", "both"]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How the tensors of a model lie.

    Attributes:
        sequence_first: `[seq, batch, width]` instead of `[batch, seq, width]`.
        sequence_parallel: over how many ranks the rows of a block's output are split; 1 if they are not.
        axes: shard axis by pattern of keys (`{"module.layers.*.linear_fc1": "hidden@tp"}`); the first that fits counts.
        coords, sizes: this rank's place in the parallel layout, and the size of each axis: where a shard begins in its row.
    """

    sequence_first: bool = False
    sequence_parallel: int = 1
    axes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    coords: tuple[tuple[str, int], ...] = ()
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def axis_of(self, key: str) -> str:
        """What the caller said of a key; "" otherwise."""
        return next((axis for pattern, axis in self.axes.items() if fnmatch.fnmatchcase(key, pattern)), "")


class Sink:
    """Takes the tensors of one forward."""

    def __init__(self, opened: OpenPass, batch: RowBatch, mode: Mode, layout: Layout) -> None:
        self._opened, self._batch, self._mode, self._layout = opened, batch, mode, layout
        self._specs: dict[str, TensorSpec] = {}
        for name, column in batch.columns(sequence_first=layout.sequence_first).items():
            opened.add(name, column)

    @property
    def keeps_values(self) -> bool:
        """Whether `put` needs tensors that nobody else holds."""
        return self._mode != "fingerprint"

    def put(self, key: str, tensor: Tensor, *, site: str = "") -> None:
        """Send a tensor on its way. Unless the mode is "fingerprint" it must belong to nobody else.

        Raises:
            RecordError: its leading axes are not the rows of this forward, or the key has been put before.
        """
        rows, axis = as_rows(tensor.detach(), self._batch, self._layout, key)
        dtype = BY_TORCH_NAME.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None:
            raise RecordError(f"{key} is {tensor.dtype}: a dump holds {', '.join(DTYPES)}")
        whole = TensorSpec(key, dtype.name, tuple(rows.shape), site, axis)
        if self.keeps_values:
            self._add(whole, rows)
        if self._mode != "full":
            flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
            begin = first_byte(whole, self._layout.coords, self._layout.sizes, "this recording")
            counted = has_nonfinite(dtype)
            spec = dataclasses.replace(whole, fingerprint=True, counted=counted)
            self._add(spec, fingerprint_tensor(flat, first_byte=begin, count=counted))

    def commit(self, writer: DumpWriter, stage: tuple[int, int] | None, where: str) -> None:
        """The forward is over: write it."""
        specs, batch = dict(self._specs), self._batch

        def deliver(tensors: Mapping[str, Tensor]) -> None:
            columns = {name: tensors[name].numpy() for name in COLUMNS}
            rows = rows_of(columns, batch.request_ids, where, repeats=batch.repeats)
            raw = [_raw_tensor(spec, tensors[name]) for name, spec in specs.items()]
            writer.write_pass(rows, raw, stage=stage)

        self._opened.commit(deliver)

    def discard(self) -> None:
        """The forward failed."""
        self._opened.discard()

    def _add(self, spec: TensorSpec, tensor: Tensor) -> None:
        name = stored_name(spec)
        if name in self._specs:
            raise RecordError(
                f"{spec.key} came twice in one forward: one module is called for several things, so that which is meant cannot be"
                " told. Leave it out of modules="
            )
        self._specs[name] = spec
        self._opened.add(name, tensor)


def as_rows(tensor: Tensor, batch: RowBatch, layout: Layout, where: str) -> tuple[Tensor, str]:
    """`[rows, *]` in the order of `RowBatch.columns`, and the shard axis.

    Raises:
        RecordError: the leading axes are not the rows.
    """
    rows, axis, shape = len(batch), layout.axis_of(where), tuple(tensor.shape)
    parts = layout.sequence_parallel if axis in ("", "tokens@sp") else 1
    for split in dict.fromkeys((1, parts)):
        leading = _leading(shape, batch, layout, split)
        if leading is not None:
            return tensor.reshape(rows // split, *shape[leading:]), "tokens@sp" if split > 1 else axis
    grid = batch.grid
    expected = f"[{', '.join(map(str, reversed(grid) if layout.sequence_first else grid))}, …]" if grid else f"[{rows}, …]"
    raise RecordError(
        f"{where} is {list(shape)}, and the rows of this forward lead to {expected}: it holds other rows (routed tokens, the last"
        " token alone), or its axes come in another order (order='sequence_first' or 'batch_first')"
    )


def _leading(shape: tuple[int, ...], batch: RowBatch, layout: Layout, split: int) -> int | None:
    """How many leading axes of a shape are the rows, or a `split`-th of them; None if they are not."""
    rows, grid = len(batch), batch.grid
    if rows % split:
        return None
    if grid is not None and len(shape) >= 2 and (split == 1 or layout.sequence_first):
        count, length = grid
        lead = (length // split, count) if layout.sequence_first else (count, length)
        if shape[:2] == lead and length % split == 0:
            return 2
        if len(shape) > 2 and shape[:2] == lead[::-1] and 1 not in lead:
            return None  # turned round: these would be other rows
    if len(shape) >= 3 and shape[:2] in ((1, rows // split), (rows // split, 1)):
        return 2
    return 1 if shape and shape[0] == rows // split else None


def _raw_tensor(spec: TensorSpec, tensor: Tensor) -> RawTensor:
    """What arrived on the host; fingerprints that were counted come with a third column."""
    bits = raw_bits(tensor)
    return RawTensor(spec, bits[:, :2], unpack_counts(bits[:, 2])) if spec.counted else RawTensor(spec, bits)


def raw_bits(tensor: Tensor) -> NDArray[Any]:
    """The bits of a tensor on the host, `DType.raw` of the same shape: a view."""
    dtype = BY_TORCH_NAME[str(tensor.dtype).removeprefix("torch.")]
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.size]
    array: NDArray[Any] = tensor.contiguous().view(same_size).numpy().view(dtype.raw)
    return array

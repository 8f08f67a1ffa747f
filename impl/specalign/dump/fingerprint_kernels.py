"""Fingerprint v1 in Triton: reads each row once, at the speed of memory. Class *exact*: the bits of `fingerprint_torch.py`.

Two splitmix64 a word would be bound by integer multiplications, so the multipliers of a row are computed once and kept on the
device, and a program handles a few rows together, so that each multiplier is loaded once for all of them. They come as 32-bit
halves: words and halves then lie in threads alike, and w * m mod 2^64 takes one wide and one narrow multiplication.

A row need not begin at a multiple of 4 bytes (bf16 rows of odd width). It is then read in units of 2 bytes or 1: unit j is a part
of word i = j // k of k units, worth u_j * 2^(j % k * bits), so sum of w_i * m_i = sum of u_j * (m_i * 2^(j % k * bits)). One
kernel serves all three, with the multipliers of units in place of those of words, and an odd last half-word is nothing special.

Non-finite elements are counted in two steps, since rows have none as a rule: see `nonfinite_kernels.py`.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,unused-ignore"

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from typing import Final, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import SEEDS, WORD, check_first_byte
from specalign.dump.fingerprint_torch import flat_rows, torch_multipliers
from specalign.dump.nonfinite import check_width
from specalign.dump.nonfinite_kernels import Codes, any_of_four, count_units, load_units
from specalign.dump.nonfinite_torch import element_type

_CHUNK_UNITS: Final = 1 << 18  # of a row at a time: 4 MiB of multipliers
_KEPT_TABLES: Final = 16

_UNITS: Final = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""How a row is read, by the bytes of a unit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """The shape of a launch. It changes the speed and never the value.

    Attributes:
        rows: rows of one program, a power of two: how often a loaded multiplier is used.
        block: units of a row that a program reads at a time, a power of two of at least 4.
        warps: warps of a program.
        stages: blocks that are on their way at a time, through shared memory; 1: straight into registers.
    """

    rows: int = 4
    block: int = 512
    warps: int = 4
    stages: int = 1


_LAUNCH: Final = Launch()


def fingerprint_triton(tensor: Tensor, *, first_byte: int = 0, count: bool = False, launch: Launch | None = None) -> Tensor:
    """`fingerprint_reference` as a Triton kernel; same arguments, same bits, same errors.

    Nothing waits for the device, but for the first call with a width, which computes its multipliers. In the capture of a CUDA
    graph they are computed as a part of the graph. Rows whose elements lie apart are copied before. Rows that do not begin at
    multiples of 4 bytes are read in smaller units, which costs time.

    Args:
        tensor: `[*, width]` on CUDA; on any device where triton was imported with TRITON_INTERPRET=1.
        first_byte, count: as in `fingerprint_tensor`.
        launch: the shape of the launch; None chooses.

    Raises:
        DumpError: as `fingerprint_tensor`; or the tensor is not on CUDA and the kernel is compiled.
    """
    check_first_byte(first_byte)
    rows = flat_rows(tensor)
    if isinstance(_fingerprint_units, triton.JITFunction) and not rows.is_cuda:
        raise DumpError(
            f"the compiled kernel got a tensor on {rows.device}. Call fingerprint_tensor, which chooses by device, or set"
            " TRITON_INTERPRET=1 before triton is imported"
        )
    dtype = element_type(rows) if count else None
    if count:
        check_width(rows.shape[1])
    columns = len(SEEDS) + count
    if not rows.numel():
        return torch.zeros(len(rows), columns, dtype=torch.int64, device=rows.device)
    result = torch.empty(len(rows), columns, dtype=torch.int64, device=rows.device)  # the first launch fills it
    units = _as_units(rows, whole=count)
    codes = Codes.of(dtype, 8 * units.element_size())
    per_word, width = WORD // units.element_size(), units.shape[1]
    with torch.cuda.device(rows.device) if rows.is_cuda else contextlib.nullcontext():
        for left in range(0, width, _CHUNK_UNITS):
            chunk = units if width <= _CHUNK_UNITS else units[:, left : left + _CHUNK_UNITS]
            table = _TABLES.get((first_byte // WORD + left // per_word, chunk.shape[1], per_word, rows.device))
            _launch(chunk, table, result, launch or _LAUNCH, codes, add=left > 0)
    return result


def _launch(units: Tensor, table: Table, result: Tensor, launch: Launch, codes: Codes, *, add: bool) -> None:
    halves, base = table
    row_count, count = units.shape
    grid = (-(-row_count // launch.rows),)
    stride, size = units.stride(0), units.element_size()
    align = 4 if size == WORD and not (count | stride | units.data_ptr() // WORD) % 4 else 1
    _fingerprint_units[grid](
        units,
        halves,
        base,
        result,
        row_count,
        count // align,
        stride // align,
        ADD=add,
        ALIGN=align,
        BITS=8 * size,
        COLUMNS=result.shape[1],
        SPECIALS=codes.specials,
        ELEMENT=codes.element,
        FIRST=codes.first,
        SIGNS=codes.signs,
        CARRY=codes.carry,
        ROWS=launch.rows,
        BLOCK=launch.block,
        STAGES=launch.stages,
        num_warps=launch.warps,
        enable_fp_fusion=False,  # there is no floating point here; unset, newer versions warn of it
    )


@triton.jit
def _fingerprint_units(
    units: tl.tensor,
    halves: tl.tensor,
    base: tl.tensor,
    result: tl.tensor,
    row_count: tl.tensor,
    count: tl.tensor,
    row_stride: tl.tensor,
    ADD: tl.constexpr,
    ALIGN: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPECIALS: tl.constexpr,
    ELEMENT: tl.constexpr,
    FIRST: tl.constexpr,
    SIGNS: tl.constexpr,
    CARRY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Fingerprints of intBITS units [row_count, count], rows row_stride units apart: into result int64 [row_count, COLUMNS], or
    added to it. Three columns: the third counts the non-finite among elements of ELEMENT bits.

    count and row_stride come divided by ALIGN: Triton sees by itself which arguments are multiples of 16, but the shard of a row
    is often a multiple of 4 words only, which suffices to load 16 bytes at a time.

    halves int32 [4, count]: lane 0 low, lane 0 high, lane 1 low, lane 1 high; base int64 [2]: the sums of the words' multipliers.

    A unit may hold non-finite elements if its magnitudes (all bits but SIGNS, those of its elements' signs) plus CARRY reach the
    place of a sign; of FNUZ types, if that of a set sign stays free.
    """
    count *= ALIGN
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    ours = rows < row_count
    row_units = units + rows * row_stride * ALIGN  # rows are int64, hence the product
    lane_0 = tl.zeros([ROWS, BLOCK // 4], tl.uint64)
    lane_1 = tl.zeros([ROWS, BLOCK // 4], tl.uint64)
    carries = tl.zeros([ROWS, BLOCK // 4], tl.uint32)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)[None, :]
        inside = at < count
        u = load_units(row_units + at, inside & ours, BITS)
        if SPECIALS:
            carried = (u & ((1 << BITS) - 1 - SIGNS)) + CARRY
            if SPECIALS == 3:
                carried = u & ~carried
            if ELEMENT == 64:
                carried = tl.where(at % 2 == 1, carried, 0)
            carries |= any_of_four(carried)
        lane_0 += _products(u, halves, at, inside, count)
        lane_1 += _products(u, halves + 2 * count, at, inside, count)
    # Padding is zero and adds nothing; sum of (w + 1) * m = sum of w * m + base.
    sum_0 = tl.sum(lane_0, axis=1, keep_dims=True).to(tl.int64, bitcast=True) + tl.load(base)
    sum_1 = tl.sum(lane_1, axis=1, keep_dims=True).to(tl.int64, bitcast=True) + tl.load(base + 1)
    at_0 = result + rows * COLUMNS
    if ADD:
        sum_0 += tl.load(at_0, mask=ours)
        sum_1 += tl.load(at_0 + 1, mask=ours)
    tl.store(at_0, sum_0, mask=ours)
    tl.store(at_0 + 1, sum_1, mask=ours)
    if COLUMNS == 3:
        counted = tl.zeros([ROWS, 1], tl.int64)
        if SPECIALS:  # noqa: SIM102  # this is decided when the kernel is compiled
            if tl.max(tl.max(((carries & SIGNS) != 0).to(tl.int32), axis=1), axis=0) != 0:
                counted = count_units(row_units, ours, count, BITS, SPECIALS, ELEMENT, FIRST, ROWS, BLOCK)
        if ADD:
            counted += tl.load(at_0 + 2, mask=ours)
        tl.store(at_0 + 2, counted, mask=ours)


@triton.jit
def _products(u: tl.tensor, halves: tl.tensor, at: tl.tensor, inside: tl.tensor, count: tl.tensor) -> tl.tensor:
    """u * m of units uint32 [ROWS, BLOCK] mod 2^64, summed over each four neighbours: uint64 [ROWS, BLOCK // 4].

    A thread loads four words at a time, so this sum needs no exchange, and a quarter of the accumulators leaves registers for
    more programs at a time: that hides the latency of memory.
    """
    low = tl.load(halves + at, mask=inside, other=0, eviction_policy="evict_last").to(tl.uint32, bitcast=True)
    high = tl.load(halves + count + at, mask=inside, other=0, eviction_policy="evict_last").to(tl.uint32, bitcast=True)
    product = u.to(tl.uint64) * low.to(tl.uint64) + ((u * high).to(tl.uint64) << 32)
    return tl.sum(tl.reshape(product, [u.shape[0], u.shape[1] // 4, 4]), axis=2)


def _as_units(rows: Tensor, *, whole: bool = False) -> Tensor:
    """Rows `[rows, width]` as `[rows, units]` of the widest unit, 4, 2 or 1 bytes, at whose multiples all rows begin and end.

    Args:
        whole: no unit may be a part of an element, but for elements of 8 bytes; memory off the elements' own size is copied.
    """
    if rows.shape[1] > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    size = rows.element_size()
    if whole and rows.data_ptr() % min(size, WORD):
        rows = rows.clone(memory_format=torch.contiguous_format)
    count, width = rows.shape
    stride = rows.stride(0) if count > 1 else width
    edges = width * size | stride * size | int(rows.storage_offset()) * size | rows.data_ptr()
    unit = next(unit for unit in _UNITS if edges % unit == 0)
    # as_strided sets the stride of an axis of length 1, which may be anything, and which a view of other size looks at.
    return rows.as_strided((count, width), (stride, 1)).view(_UNITS[unit])


Table: TypeAlias = tuple[Tensor, Tensor]
"""Halves of the multipliers of units, int32 `[4, units]`, and the sums of the multipliers of words, int64 `[2]`."""

_Key: TypeAlias = tuple[int, int, int, torch.device]
"""First word, units, units of a word, device."""


def _table(first_word: int, units: int, per_word: int, device: torch.device) -> Table:
    words = torch_multipliers(first_word, -(-units // per_word), device)
    shifts = torch.arange(per_word, device=device) * (8 * WORD // per_word)
    of_units = (words[:, :, None] << shifts).flatten(1)[:, :units]
    halves = torch.stack([of_units & 0xFFFFFFFF, of_units >> 32], dim=1)
    signed = (halves + 0x80000000) % (1 << 32) - 0x80000000  # a cast of what does not fit into int32 is not defined
    return signed.to(torch.int32).reshape(4, units).contiguous(), words.sum(dim=1)


class _Tables:
    """The last tables that were used; for any thread and any stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: collections.OrderedDict[_Key, Table] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> Table:
        device = key[-1]
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # What is kept may be dropped long before a graph is replayed for the last time.
            return _table(*key)
        with self._lock:
            table = self._kept.get(key) or self._computed(key)
            self._kept[key] = table
            self._kept.move_to_end(key)
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        if device.type == "cuda":
            stream = torch.cuda.current_stream(device)
            for part in table:  # dropped while this stream still reads it, its memory must not be given away
                part.record_stream(stream)
        return table

    def clear(self) -> None:
        """Forget all; who still uses one keeps it."""
        with self._lock:
            self._kept.clear()

    def _computed(self, key: _Key) -> Table:
        table = _table(*key)
        if key[-1].type == "cuda":
            torch.cuda.current_stream(key[-1]).synchronize()  # another stream may read it next
        return table


_TABLES: Final = _Tables(_KEPT_TABLES)


def forget_tables() -> None:
    """Give the memory of the kept tables back, on every device; the next call computes its own again."""
    _TABLES.clear()

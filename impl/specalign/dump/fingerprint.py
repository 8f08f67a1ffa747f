"""Fingerprint v1: a 128-bit sum hash of the raw bits of each row. numpy only; class *exact*.

The bytes of a row are little-endian uint32 words w_i, the last one padded with zero bytes. Lane k of the fingerprint is

    h_k = sum over i of (w_i + 1) * m_k,i  mod 2^64        m_k,i = splitmix64(SEEDS[k] + i) | 1

where splitmix64(x) is `next()` of Sebastiano Vigna's splitmix64.c (https://prng.di.unimi.it/splitmix64.c) on the state x, and i
counts the words of the FULL row. So the fingerprints of the shards of a row add up to that of the row. A sum of integers does
not depend on the order: any device, any split into blocks and any launch shape gives the same value.

Why it detects: m is odd, hence invertible mod 2^64. One changed word changes w_i by some 0 < |d| < 2^32, and d * m is never 0
mod 2^64: a change within one word always changes both lanes. Changes in several words go unseen only if their sums cancel in
both lanes. What it does not tell: dtype and shape (they stand in a dump's header), and who changed a file on purpose: the
multipliers are public, so this is no cryptographic hash.

`fingerprint_torch.py` holds the same for tensors, on any device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from specalign.dump.errors import DumpError

UInt64s: TypeAlias = npt.NDArray[np.uint64]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
Raw: TypeAlias = npt.NDArray[Any]

SEEDS: Final = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""Where the multipliers of each lane begin: lane k multiplies word i by splitmix64(SEEDS[k] + i) | 1."""

INCREMENT: Final = 0x9E3779B97F4A7C15
SHIFTS_AND_FACTORS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT: Final = 31
"""The constants of splitmix64: the step of its state, then z = (z ^ z >> shift) * factor twice, and z ^ z >> 31."""

WORD: Final = 4
"""Bytes of a word."""

_MASK: Final = 2**64 - 1
_BLOCK_WORDS: Final = 1 << 18  # 1 MiB as they come and 2 MiB as uint64: stays in the cache of one core
_CHUNK_WORDS: Final = 1 << 13  # of a row: 128 KiB of multipliers, kept for the next rows and the next call


def multipliers(lane: int, first_word: int, count: int) -> UInt64s:
    """The multipliers of the words first_word .. first_word + count - 1 of a row, in lane 0 or 1: uint64 `[count]`, all odd."""
    states = np.arange(count, dtype=np.uint64)
    states += np.uint64((SEEDS[lane] + first_word) & _MASK)
    mixed = splitmix64(states)
    mixed |= np.uint64(1)
    return mixed


def splitmix64(states: UInt64s) -> UInt64s:
    """What splitmix64's `next()` returns in each of the states: uint64, same shape."""
    z = np.add(states, np.uint64(INCREMENT))
    high = np.empty_like(z)
    for shift, factor in SHIFTS_AND_FACTORS:
        z ^= np.right_shift(z, np.uint64(shift), out=high)
        z *= np.uint64(factor)
    z ^= np.right_shift(z, np.uint64(LAST_SHIFT), out=high)
    return z


def row_words(rows: Raw) -> UInt32s:
    """The words of each row, the last one padded with zero bytes: little-endian uint32 `[rows, ceil(bytes of a row / 4)]`.

    Args:
        rows: `[rows, ...]` raw bits, as in `fingerprint_rows`. Rows of two axes that are words already are not copied.

    Raises:
        DumpError: there is no axis of rows, or the elements are no plain bits.
    """
    _check_raw(rows)
    size = row_bytes(rows)
    words = -(-size // WORD)
    if not len(rows) or not size:
        return np.zeros((len(rows), words), "<u4")
    raw = rows.reshape(len(rows), -1)
    if raw.dtype.kind in "iuf":
        raw = raw.astype(raw.dtype.newbyteorder("<"), copy=False)
    if raw.strides[1] != raw.itemsize:  # a view of another size needs the elements of a row side by side, not the rows
        raw = np.ascontiguousarray(raw)
    if size % WORD == 0:
        return raw.view("<u4")
    padded = np.zeros((len(raw), words * WORD), np.uint8)
    padded[:, :size] = raw.view(np.uint8)
    return padded.view("<u4")


def row_bytes(rows: Raw) -> int:
    """Bytes of one row of `[rows, ...]`."""
    return math.prod(rows.shape[1:]) * rows.itemsize


def fingerprint_rows(rows: Raw, *, first_byte: int = 0) -> UInt64s:
    """The fingerprint of each row: uint64 `[rows, 2]`, one column a lane.

    Temporary memory is bounded by about 4 MiB and the multipliers kept for later calls by 8 MiB. Beyond that, a row of
    three axes or more whose elements do not lie in order is copied, one row or 1 MiB of rows at a time.

    Args:
        rows: `[rows, ...]` raw bits: the first axis counts rows, everything behind it in C order is the row, so `[rows]` has one
            element a row. bf16 and FP8 come as uint16 and uint8 views; bool, integers and floats count as their little-endian
            bytes. Rows may lie anywhere (slices, broadcasts, memory maps). No rows give `[0, 2]`; rows of no elements give zeros.
        first_byte: where these bytes begin within the full row, for a shard of it; a multiple of 4.

    A row whose bytes are no multiple of 4 ends in a word padded with zeros. Of the shards of a row only the last may be such;
    this function sees one shard and cannot tell. `add_shards` of shards that were cut elsewhere is not the row's fingerprint.

    Raises:
        DumpError: there is no axis of rows, the elements are no plain bits, or `first_byte` lies within a word.
    """
    check_first_byte(first_byte)
    _check_raw(rows)
    result = np.zeros((len(rows), len(SEEDS)), np.uint64)
    size = row_bytes(rows)
    if not len(rows) or not size:
        return result
    if rows.ndim == 2 or rows[0].flags.c_contiguous:
        _add_fingerprints(rows.reshape(len(rows), -1), first_byte // WORD, result)
        return result
    step = max(1, _BLOCK_WORDS * WORD // size)
    for at in range(0, len(rows), step):
        block = np.ascontiguousarray(rows[at : at + step])
        _add_fingerprints(block.reshape(len(block), -1), first_byte // WORD, result[at : at + step])
    return result


def add_shards(parts: Iterable[UInt64s]) -> UInt64s:
    """The fingerprints of full rows out of those of their shards: the sum mod 2^64, uint64 `[rows, 2]`.

    Every shard must be there once, each made with its own `first_byte`; a missing or doubled one gives another value, which
    equals the right one only by the accident of a hash.

    Raises:
        DumpError: there is no part, or the parts differ in shape or are no fingerprints.
    """
    total: UInt64s | None = None
    for place, part in enumerate(parts):
        if part.dtype != np.uint64 or part.ndim != 2 or part.shape[1] != 2:
            raise DumpError(
                f"part {place} is {part.dtype}{list(part.shape)}, and a fingerprint is uint64[rows, 2]."
                " Pass what fingerprint_rows returned for each shard"
            )
        if total is None:
            total = part.copy()
            continue
        if part.shape != total.shape:
            raise DumpError(
                f"part {place} has {len(part)} rows and part 0 has {len(total)}: shards of the same rows have equally many."
                " Pass one part for each shard of the same rows"
            )
        total += part
    if total is None:
        raise DumpError("there is no part to add: no shard of these rows was found. Pass one part for each shard")
    return total


def check_first_byte(first_byte: int) -> None:
    """Raises `DumpError` unless a shard may begin at this byte of its row."""
    if first_byte < 0 or first_byte % WORD:
        where = "before the row" if first_byte < 0 else f"{first_byte % WORD} bytes into word {first_byte // WORD}"
        raise DumpError(
            f"first_byte={first_byte} of the row is {where}, and a fingerprint adds up over shards only if each begins with a"
            f" whole word of {WORD} bytes. Cut the rows at multiples of {WORD} bytes, or gather the shards first"
        )


def _add_fingerprints(rows: Raw, first_word: int, result: UInt64s) -> None:
    """Adds the fingerprints of rows `[rows, elements]` to `result`, chunk by chunk of a row and block by block of rows."""
    elements = _CHUNK_WORDS * WORD // rows.itemsize
    for left in range(0, rows.shape[1], elements):
        chunk = rows[:, left : left + elements]
        words = -(-chunk.shape[1] * chunk.itemsize // WORD)
        both, base = _lanes(first_word + left * rows.itemsize // WORD, words)
        step = max(1, _BLOCK_WORDS // words)
        for top in range(0, len(chunk), step):
            block = row_words(chunk[top : top + step]).astype(np.uint64)
            # sum of (w + 1) * m = sum of w * m + sum of m; products and sums of uint64 wrap.
            result[top : top + step] += np.einsum("rw,kw->rk", block, both) + base


@functools.lru_cache(maxsize=64)
def _lanes(first_word: int, count: int) -> tuple[UInt64s, UInt64s]:
    """The multipliers of both lanes, uint64 `[2, count]`, and their sums, `[2]`: read-only, since calls share them."""
    both = np.stack([multipliers(lane, first_word, count) for lane in range(len(SEEDS))])
    base = both.sum(axis=1)
    both.flags.writeable = base.flags.writeable = False
    return both, base


def _check_raw(rows: Raw) -> None:
    if rows.ndim == 0:
        raise DumpError(
            "a single number has no rows, and a fingerprint is one for each row. Pass [rows, ...]; one row is row[None]"
        )
    plain = {"b": 1, "i": 8, "u": 8, "f": 8, "V": 16}.get(rows.dtype.kind, 0)
    if rows.itemsize > plain or rows.itemsize not in (1, 2, 4, 8, 16) or rows.dtype.names is not None:
        raise DumpError(
            f"rows of dtype {rows.dtype} have no bits of their own to fingerprint: bool, integers and floats of up to 8 bytes do."
            " Pass the raw bits, as rows.view(numpy.uint8)"
        )

"""Fingerprint v1 in numpy is what its definition says, on any rows, and adds up over shards."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.dump import fingerprint
from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import SEEDS, add_shards, fingerprint_rows, multipliers, row_words, splitmix64
from tests.unit.dump.plain_fingerprints import (
    GAMMA,
    MOD,
    pairs,
    plain,
    plain_fingerprint,
    plain_multiplier,
    plain_splitmix64,
    row,
    table,
    written_bytes,
)

PUBLISHED = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)
"""What splitmix64 gives from the seed 1234567, as published for implementations of it."""


def test_splitmix64_gives_the_published_sequence() -> None:
    states = [(1234567 + place * GAMMA) % MOD for place in range(len(PUBLISHED))]
    assert tuple(splitmix64(np.array(states, np.uint64)).tolist()) == PUBLISHED
    assert tuple(map(plain_splitmix64, states)) == PUBLISHED


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("first", [0, 1, 1535, 2**32 - 2, 2**62, 2**64 - 3])
def test_multipliers_follow_the_definition_and_are_odd(lane: int, first: int) -> None:
    got = multipliers(lane, first, 5)
    assert got.tolist() == [plain_multiplier(lane, first + place) for place in range(5)]
    assert (got & np.uint64(1)).all()


def test_the_lanes_begin_at_the_written_seeds() -> None:
    assert SEEDS == (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


@pytest.mark.parametrize(("lane", "i", "value"), table("Multipliers"))
def test_multipliers_are_those_of_the_page(lane: str, i: str, value: str) -> None:
    assert multipliers(int(lane), int(i), 1).tolist() == [int(value, 16)] == [plain_multiplier(int(lane), int(i))]


@pytest.mark.parametrize(("dtype", "values", "data", "first", "lane_0", "lane_1"), table("Rows"))
def test_rows_have_the_fingerprints_of_the_page(dtype: str, values: str, data: str, first: str, lane_0: str, lane_1: str) -> None:
    expected = [(int(lane_0, 16), int(lane_1, 16))]
    assert pairs(fingerprint_rows(row(written_bytes(data)), first_byte=int(first))) == expected
    assert [plain_fingerprint(written_bytes(data), int(first))] == expected


NUMPY_DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize(("dtype", "values", "data"), [line[:3] for line in table("Rows") if line[0] in NUMPY_DTYPES and line[1]])
def test_the_bytes_of_the_page_are_its_values(dtype: str, values: str, data: str) -> None:
    numbers = np.array([float(value) if "." in value else int(value) for value in values.split(", ")])
    assert numbers.astype(dtype).tobytes() == written_bytes(data)


# What can be said by hand.


@pytest.mark.parametrize("words", [1, 2, 3, 3072])
def test_a_row_of_zeros_gives_the_sum_of_its_multipliers(words: int) -> None:
    sums = tuple(sum(plain_multiplier(lane, i) for i in range(words)) % MOD for lane in (0, 1))
    assert pairs(fingerprint_rows(np.zeros((2, words), np.uint32))) == [sums, sums]


def test_one_word_is_multiplied_after_one_is_added() -> None:
    got = pairs(fingerprint_rows(np.array([[0], [41], [2**32 - 1]], np.uint32)))
    assert got == [tuple(w * plain_multiplier(lane, 0) % MOD for lane in (0, 1)) for w in (1, 42, 2**32)]


def test_longer_rows_of_zeros_differ() -> None:
    assert len({pairs(fingerprint_rows(np.zeros((1, words), np.uint32)))[0] for words in range(50)}) == 50


# Any array is its bytes.


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 63, 64])
def test_every_dtype_counts_as_its_bytes(dtype: str, width: int) -> None:
    bits = np.random.default_rng(width).integers(
        0, 2 if dtype == "bool" else 256, (3, width * np.dtype(dtype).itemsize), np.uint8
    )
    rows = bits.view(dtype)
    assert pairs(fingerprint_rows(rows)) == plain(rows)
    assert pairs(fingerprint_rows(bits)) == plain(rows)


def test_a_foreign_byte_order_counts_as_the_same_values() -> None:
    rows = np.arange(12, dtype="<u2").reshape(2, 6)
    assert pairs(fingerprint_rows(rows.astype(">u2"))) == plain(rows)
    assert pairs(fingerprint_rows(rows.astype(">f8"))) == plain(rows.astype("<f8"))


def views() -> dict[str, np.ndarray[Any, Any]]:
    """The same kind of bits, lying in every way that numpy knows."""
    base = np.random.default_rng(7).integers(0, 2**16, (40, 66), np.uint16)
    return {
        "whole": base,
        "every other row": base[::2],
        "rows backwards": base[::-1],
        "columns of wider rows": base[:, 5:36],
        "every third element": base[:, ::3],
        "elements backwards": base[:, ::-1],
        "transposed": base.T,
        "Fortran order": np.asfortranarray(base),
        "one row broadcast": np.broadcast_to(base[0], (5, 66)),
        "one element broadcast": np.broadcast_to(base[:1, :1], (3, 7)),
        "off any alignment": np.frombuffer(b"\0" + base.tobytes(), np.uint8)[1:141].reshape(20, 7),
        "off the alignment of its dtype": np.ndarray((4, 5), "<u4", b"\0" + base.tobytes(), 1, (24, 4)),
        "three axes": base[:, :60].reshape(40, 5, 12),
        "three axes, heads swapped": base[:, :60].reshape(40, 5, 12).swapaxes(1, 2),
        "rows of one element": base[:, :1],
        "rows of one element, transposed": base[1:2].T,
        "one element, transposed": base[1:2, 3:4].T,
        "one axis": base[:, 3],
        "one row": base[3:4, :7],
    }


@pytest.mark.parametrize("name", views())
def test_rows_may_lie_anywhere(name: str) -> None:
    rows = views()[name]
    before = rows.copy()
    assert pairs(fingerprint_rows(rows)) == plain(rows)
    assert (rows == before).all()


@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize(("block", "chunk"), [(1, 1), (7, 4), (64, 32), (1 << 20, 1 << 20)])
def test_the_cut_into_blocks_does_not_matter(monkeypatch: pytest.MonkeyPatch, name: str, block: int, chunk: int) -> None:
    monkeypatch.setattr(fingerprint, "_BLOCK_WORDS", block)
    monkeypatch.setattr(fingerprint, "_CHUNK_WORDS", chunk * 4)  # an element of 16 bytes is never cut
    rows = views()[name]
    assert pairs(fingerprint_rows(rows)) == plain(rows)


def test_rows_longer_than_a_chunk() -> None:
    rows = np.random.default_rng(3).integers(0, 256, (2, 4 * fingerprint._CHUNK_WORDS * 2 + 11), np.uint8)
    assert pairs(fingerprint_rows(rows)) == plain(rows)


def test_a_memory_map_is_read(tmp_path: Path) -> None:
    rows = np.arange(99, dtype=np.uint8).reshape(9, 11)
    (tmp_path / "rows").write_bytes(b"header!" + rows.tobytes())
    mapped = np.memmap(tmp_path / "rows", np.uint8, "r", offset=7, shape=(9, 11))
    assert pairs(fingerprint_rows(mapped)) == plain(rows)


@pytest.mark.parametrize("shape", [(0, 6), (0, 0), (0,), (0, 2, 3)])
def test_no_rows_have_no_fingerprints(shape: tuple[int, ...]) -> None:
    assert fingerprint_rows(np.zeros(shape, np.uint16)).shape == (0, 2)


@pytest.mark.parametrize("shape", [(3, 0), (3, 0, 4), (3, 4, 0)])
def test_rows_of_no_elements_give_zeros(shape: tuple[int, ...]) -> None:
    assert pairs(fingerprint_rows(np.zeros(shape, np.uint16), first_byte=8)) == [(0, 0)] * 3


@pytest.mark.parametrize("size", range(10))
def test_the_last_word_is_padded_with_zeros(size: int) -> None:
    words = row_words(np.arange(1, 2 * size + 1, dtype=np.uint8).reshape(2, size))
    assert words.dtype == np.dtype("<u4")
    padded = [bytes(range(1, size + 1)), bytes(range(size + 1, 2 * size + 1))]
    assert [line.tobytes() for line in words] == [data + bytes(-size % 4) for data in padded]


def test_words_are_not_copied() -> None:
    rows = np.arange(24, dtype=np.uint16).reshape(3, 8)[:, 2:6]
    assert np.shares_memory(row_words(rows), rows)


@pytest.mark.parametrize("layout", ["whole", "every other element", "heads swapped", "odd width", "one long row"])
def test_temporary_memory_is_bounded(layout: str) -> None:
    base = np.zeros((1024, 24_576), np.uint16)  # 48 MiB
    rows = {
        "whole": base,
        "every other element": base[:, ::2],
        "heads swapped": base.reshape(1024, 192, 128).swapaxes(1, 2),
        "odd width": base[:, :-1],
        "one long row": base.reshape(1, -1),
    }[layout]
    fingerprint._lanes.cache_clear()
    tracemalloc.start()
    try:
        fingerprint_rows(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 14 * 2**20, "about 4 MiB of blocks and 8 MiB of multipliers"


# Shards.


@given(st.binary(max_size=200), st.lists(st.integers(0, 50), max_size=4))
def test_shards_add_up_to_the_row(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(4 * cut, len(data) // 4 * 4) for cut in cuts), len(data)]
    shards = [fingerprint_rows(row(data[a:b]), first_byte=a) for a, b in itertools.pairwise(edges)]
    assert pairs(add_shards(shards)) == [plain_fingerprint(data)]


def test_tensor_parallel_shards_add_up() -> None:
    rows = np.random.default_rng(0).integers(0, 2**16, (17, 360), np.uint16)
    shards = [fingerprint_rows(rows[:, at : at + 90], first_byte=2 * at) for at in range(0, 360, 90)]
    assert pairs(add_shards(shards)) == plain(rows)
    assert pairs(add_shards(iter(shards[::-1]))) == plain(rows)
    assert pairs(add_shards(shards[:1])) == plain(rows[:, :90])


def test_adding_shards_leaves_them_as_they_are() -> None:
    first = fingerprint_rows(np.zeros((1, 1), np.uint32))
    kept = first.copy()
    add_shards([first, first])
    assert (first == kept).all()


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2**66))
def test_a_shard_far_along_a_row(data: bytes, word: int) -> None:
    assert pairs(fingerprint_rows(row(data), first_byte=4 * word)) == [plain_fingerprint(data, 4 * word)]


# What a fingerprint is for.


@given(st.binary(min_size=1, max_size=64), st.integers(0, 511), st.integers(0, 10))
def test_any_changed_bit_changes_both_lanes(data: bytes, bit: int, first_word: int) -> None:
    bit %= 8 * len(data)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    ((before, after),) = zip(
        *(pairs(fingerprint_rows(row(d), first_byte=4 * first_word)) for d in (data, bytes(changed))), strict=True
    )
    step = 1 << bit % 32 if changed[bit // 8] > data[bit // 8] else -(1 << bit % 32)
    for lane in (0, 1):
        assert before[lane] != after[lane]
        assert (after[lane] - before[lane] - step * plain_multiplier(lane, first_word + bit // 32)) % MOD == 0


@given(st.lists(st.binary(min_size=6, max_size=6), min_size=1, max_size=12), st.randoms())
def test_permuted_rows_have_permuted_fingerprints(rows: list[bytes], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    bits = np.frombuffer(b"".join(rows), np.uint16).reshape(-1, 3)
    assert (fingerprint_rows(bits[order]) == fingerprint_rows(bits)[order]).all()


def test_swapped_elements_and_signed_zeros_are_seen() -> None:
    rows = np.array([[0x3F80, 0x4000, 0], [0x4000, 0x3F80, 0], [0x3F80, 0x4000, 0x8000]], np.uint16)
    assert len(set(pairs(fingerprint_rows(rows)))) == 3


# What is refused.


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (1, r"first_byte=1 of the row is 1 bytes into word 0.*multiples of 4"),
        (90, r"2 bytes into word 22.*gather the shards"),
        (-4, r"-4 of the row is before the row"),
    ],
)
def test_a_shard_edge_within_a_word_is_refused(first: int, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        fingerprint_rows(np.zeros((1, 4), np.uint8), first_byte=first)


@pytest.mark.parametrize(
    "rows",
    [
        np.array([[None]]),
        np.array([["a"]]),
        np.array([[b"abcd"]]),
        np.zeros((1, 1), "u2,u2"),
        np.zeros((1, 1), "V3"),
        np.zeros((1, 1), np.complex64),
        np.zeros((1, 1), np.longdouble),
        np.zeros((1, 1), "M8[s]"),
    ],
    ids=lambda rows: str(rows.dtype),
)
def test_elements_that_are_no_plain_bits_are_refused(rows: np.ndarray[Any, Any]) -> None:
    for refuse in (fingerprint_rows, row_words):
        with pytest.raises(DumpError, match=re.escape(str(rows.dtype)) + r".*view\(numpy\.uint8\)"):
            refuse(rows)


def test_opaque_bits_of_two_bytes_are_taken() -> None:
    rows = np.arange(6, dtype=np.uint16).reshape(2, 3)
    assert pairs(fingerprint_rows(rows.view("V2"))) == plain(rows)


def test_a_single_number_is_refused() -> None:
    with pytest.raises(DumpError, match=r"no rows.*row\[None\]"):
        fingerprint_rows(np.array(1, np.uint32))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "no part"),
        ([np.zeros((2, 2), np.uint64), np.zeros((3, 2), np.uint64)], "part 1 has 3 rows and part 0 has 2"),
        ([np.zeros((2, 2), np.int64)], r"part 0 is int64\[2, 2\]"),
        ([np.zeros((2, 3), np.uint64)], r"part 0 is uint64\[2, 3\]"),
        ([np.zeros(2, np.uint64)], r"part 0 is uint64\[2\]"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: Sequence[Any], says: str) -> None:
    with pytest.raises(DumpError, match=says):
        add_shards(parts)


def test_kept_multipliers_cannot_be_written_to() -> None:
    both, base = fingerprint._lanes(0, 3)
    for kept in (both, base):
        with pytest.raises(ValueError, match="read-only"):
            kept[...] = 0

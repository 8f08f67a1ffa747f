"""What no comparison by numpy can do without, for benchmarks/compare.py: the floor below its baseline.

Each file of either side is opened and mapped once, its bytes are compared with as many of the other side, and looked through for
the largest magnitude, in blocks that stay in a cache. Nothing is parsed, and no row is matched. Where an engine writes pairs,
as many elements as there are of them are summed and rounded too, out of memory that stays in a cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specalign.dump.files import map_file
from specalign.dump.sums import add_all_rounded

BLOCK = 512 * 1024


def tensor_files(folder: Path) -> list[Path]:
    """The files of a dump that hold tensors."""
    return sorted(file for file in folder.rglob("*") if file.suffix in (".pt", ".safetensors"))


def look_through(a: Path, b: Path) -> int:
    """The bytes of `b` that were held against the one file of `a`."""
    (whole,) = (np.frombuffer(map_file(file), np.uint8) for file in tensor_files(a))
    flags, at, seen = np.empty(BLOCK // 8, np.bool_), 0, 0
    for file in tensor_files(b):
        data = np.frombuffer(map_file(file), np.uint8)
        for begin in range(0, len(data) - 7, BLOCK):
            part = data[begin : begin + BLOCK]
            size = min(len(part), len(whole) - at) // 8 * 8  # pairs are more bytes than their sums
            x, y = whole[at : at + size].view(np.uint64), part[:size].view(np.uint64)
            np.not_equal(x, y, out=flags[: len(x)]).any()
            magnitudes = part[: len(part) // 2 * 2].view(np.uint16)
            seen += magnitudes.nbytes + 0 * int(magnitudes.max()) + 0 * int(magnitudes.view(np.int16).max())
            at += size
    return seen


def sum_pairs(files: int, pairs: int, elements: int) -> int:
    """So many files of so many pairs of so many elements: the elements that were summed."""
    values = np.random.default_rng(0).integers(0x3E00, 0x4000, (2, elements), dtype=np.uint16)
    for _ in range(files):
        add_all_rounded([(values[0], values[1])] * pairs, "BF16")
    return files * pairs * elements

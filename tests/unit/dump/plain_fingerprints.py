"""Fingerprint v1 by its definition, in whole numbers, and the known answers of docs/formats.md; nothing of the library is used.

So are counts of non-finite elements: by Python's own struct, and for FP8 by the codes that its papers list.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VECTORS = Path(__file__).parents[3] / "docs" / "formats.md"

GAMMA, MOD = 0x9E3779B97F4A7C15, 2**64


def plain_splitmix64(state: int) -> int:
    z = (state + GAMMA) % MOD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % MOD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % MOD
    return z ^ (z >> 31)


def plain_multiplier(lane: int, i: int) -> int:
    seed = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)[lane]
    return plain_splitmix64((seed + i) % MOD) | 1


def plain_fingerprint(row: bytes, first_byte: int = 0) -> tuple[int, int]:
    padded = row + bytes(-len(row) % 4)
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4)]
    lanes = [sum((w + 1) * plain_multiplier(k, first_byte // 4 + i) for i, w in enumerate(words)) % MOD for k in (0, 1)]
    return lanes[0], lanes[1]


def plain(rows: np.ndarray[Any, Any], first_byte: int = 0) -> list[tuple[int, int]]:
    return [plain_fingerprint(row.tobytes(), first_byte) for row in rows]


def pairs(fingerprints: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    assert fingerprints.dtype == np.uint64
    assert fingerprints.shape == (len(fingerprints), 2)
    return [(int(first), int(second)) for first, second in fingerprints]


def row(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, np.uint8)[None]


def table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page of formats, without backquotes."""
    section = VECTORS.read_text("utf-8").split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def written_bytes(text: str) -> bytes:
    """The bytes that the page writes as hex, as `00 x 12` or as `00..ff`."""
    if repeated := re.fullmatch(r"([0-9a-f]{2}) x (\d+)", text):
        return bytes.fromhex(repeated[1]) * int(repeated[2])
    if ran := re.fullmatch(r"([0-9a-f]{2})\.\.([0-9a-f]{2})", text):
        return bytes(range(int(ran[1], 16), int(ran[2], 16) + 1))
    return bytes.fromhex("" if text == "none" else text)


def plain_value(code: int, dtype: str) -> float:
    """The value of a code: NaN, an infinity, or any finite number."""
    match dtype:
        case "F64":
            return float(struct.unpack("<d", struct.pack("<Q", code))[0])
        case "F32" | "BF16":
            return float(struct.unpack("<f", struct.pack("<I", code << (16 if dtype == "BF16" else 0)))[0])
        case "F16" | "F8_E5M2":  # E5M2 is the upper half of an F16
            return float(struct.unpack("<e", struct.pack("<H", code << (8 if dtype == "F8_E5M2" else 0)))[0])
        case "F8_E4M3":
            return math.nan if code in (0x7F, 0xFF) else 0.0
        case "F8_E4M3FNUZ" | "F8_E5M2FNUZ":
            return math.nan if code == 0x80 else 0.0
    return 0.0


def plain_counts(codes: Sequence[int], dtype: str) -> list[int]:
    """How many of a row's elements are NaN or +inf, and how many are -inf."""
    values = [plain_value(code, dtype) for code in codes]
    return [sum(math.isnan(value) or value == math.inf for value in values), values.count(-math.inf)]


SPECIAL_CODES = {
    "BF16": (0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF, 0x8000, 0xFF7F, 0xFF80, 0xFF81, 0xFFFF),
    "F16": (0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x8000, 0xFBFF, 0xFC00, 0xFC01, 0xFFFF),
    "F32": (0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x8000007F, 0xFF7FFFFF, 0xFF800000, 0xFF800001, 0xFFFFFFFF),
    "F64": (
        0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000, 0xFFEFFFFFFFFFFFFF,
        0xFFF0000000000000, 0xFFF0000000000001, 0xFFF0000100000000, 0x00000000FFF00000, 0x000000007FF00000, 0xFFFFFFFFFFFFFFFF,
    ),
    "F8_E4M3": (0x7E, 0x7F, 0x80, 0xFE, 0xFF, 0x00),
    "F8_E5M2": (0x7B, 0x7C, 0x7D, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFF),
    "F8_E4M3FNUZ": (0x7F, 0x80, 0x81, 0xFF, 0x00),
    "F8_E5M2FNUZ": (0x7F, 0x80, 0x81, 0xFF, 0x00),
}  # fmt: skip
"""Codes at the edges of what is finite, by type."""


def special_rows(dtype: str, raw: str, rows: int, width: int) -> npt.NDArray[Any]:
    """Raw bits `[rows, width]`: every third row holds finite bits alone, the others many codes at the edges."""
    random = np.random.default_rng([rows, width])
    drawn = random.integers(0, 2 ** (8 * np.dtype(raw).itemsize - 2), (rows, width), dtype=np.uint64)
    if dtype in SPECIAL_CODES:
        chosen = random.choice(np.array(SPECIAL_CODES[dtype], np.uint64), (rows, width))
        drawn = np.where(random.random((rows, width)) < 0.4, chosen, drawn)
        drawn[::3] &= np.uint64(2 ** (8 * np.dtype(raw).itemsize - 2) - 1)
    return drawn.astype(raw)

"""Fingerprint v1 by its definition, in whole numbers, and the known answers of docs/formats.md; nothing of the library is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

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

"""The pixels of a PNG as a browser writes it: 8 bits a channel, RGB or RGBA, not interlaced."""

from __future__ import annotations

import struct
import zlib
from collections import Counter


def colors(png: bytes) -> Counter[tuple[int, int, int]]:
    """How many pixels have which colour."""
    width, _, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    if depth != 8 or kind not in (2, 6) or interlaced:
        raise ValueError(f"PNG of depth {depth}, colour type {kind}, interlace {interlaced}")
    size = 3 if kind == 2 else 4
    found: Counter[tuple[int, int, int]] = Counter()
    for row in _rows(zlib.decompress(_data(png)), width * size, size):
        found.update(zip(row[0::size], row[1::size], row[2::size], strict=True))
    return found


def _data(png: bytes) -> bytes:
    at, parts = 8, []
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + length])
        at += length + 12
    return b"".join(parts)


def _rows(data: bytes, stride: int, size: int) -> list[bytearray]:
    rows, above = [], bytearray(stride)
    for start in range(0, len(data), stride + 1):
        row = bytearray(data[start + 1 : start + 1 + stride])
        _unfilter(data[start], row, above, size)
        rows.append(row)
        above = row
    return rows


def _unfilter(kind: int, row: bytearray, above: bytearray, size: int) -> None:
    for i in range(len(row)):
        left = row[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        guess = (0, left, above[i], (left + above[i]) // 2, _paeth(left, above[i], corner))[kind]
        row[i] = (row[i] + guess) & 0xFF


def _paeth(left: int, up: int, corner: int) -> int:
    near = left + up - corner
    return min((left, up, corner), key=lambda value: abs(near - value))

"""What a rollout engine would answer for made-up routes."""

from __future__ import annotations

import base64
import struct

LAYERS, TOPK, EXPERTS = 3, 2, 8


def expert(position: int, layer: int, slot: int) -> int:
    """Of a position, a layer and a slot: distinct in a row, and different where any of the three is off by one."""
    return (3 * position + 5 * layer + position // 8 + slot * (1 + (position + layer) % 6)) % EXPERTS


def row(position: int, layer: int) -> list[int]:
    return [expert(position, layer, slot) for slot in range(TOPK)]


def payload(start: int, end: int) -> str:
    """Base64 of the rows of positions start..end-1, written by struct: little-endian int32, layers within rows."""
    values = [expert(p, layer, slot) for p in range(start, end) for layer in range(LAYERS) for slot in range(TOPK)]
    return base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode()

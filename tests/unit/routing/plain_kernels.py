"""What the routing kernels must give, in Python numbers: exact fractions, each rounded where the rule says so."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def round_single(value: Fraction) -> float:
    """The nearest FP32 of an exact value, ties to even; normal and subnormal ones, and no infinity."""
    if value == 0:
        return 0.0
    sign, value = (-1, -value) if value < 0 else (1, value)
    exponent = max(math.floor(math.log2(value)) - 1, -126) if value > 0 else -126
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - 23)
    return float(sign * round(value / step) * step)


def fma(first: float, second: float, added: float) -> float:
    """FP32 first * second + added with one rounding."""
    return round_single(Fraction(first) * Fraction(second) + Fraction(added))


def weigh(rows: Sequence[float], weights: Sequence[float]) -> float:
    """The FP32 sum of a gather, before its rounding to the rows' dtype."""
    total = 0.0
    for row, weight in zip(rows, weights, strict=True):
        total = fma(row, weight, total)
    return total


def dot(first: Sequence[float], second: Sequence[float], lanes: int) -> float:
    """The FP32 dot product by lanes and a tree of neighbours."""
    sums = [0.0] * lanes
    for column, (left, right) in enumerate(zip(first, second, strict=True)):
        sums[column % lanes] = fma(left, right, sums[column % lanes])
    while len(sums) > 1:
        sums = [round_single(Fraction(a) + Fraction(b)) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def e4m3_values() -> list[float]:
    """The value of each non-negative finite E4M3 code, in order: 0 to 448."""
    return [(code % 8) * 2.0**-9 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7) for code in range(127)]


E4M3 = np.array(e4m3_values())


def round_e4m3(value: float) -> int:
    """The code of the nearest E4M3 value within ±448, ties to the even code."""
    size = min(abs(value), 448.0)
    above = int(np.searchsorted(E4M3, size))
    below = max(above - 1, 0)
    low, high = size - E4M3[below], E4M3[above] - size  # exact: few bits each
    code = above if high < low or (high == low and above % 2 == 0) else below
    return code | (0x80 if math.copysign(1, value) < 0 else 0)


def divide(first: float, second: float) -> float:
    """FP32 quotient with one rounding."""
    quotient = round_single(Fraction(first) / Fraction(second))
    return math.copysign(quotient, first * second) if quotient == 0 else quotient


def single(value: float) -> float:
    """The FP32 nearest to a Python number."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def quantize_group(values: Sequence[float]) -> tuple[list[int], float]:
    """E4M3 codes and the scale of one group of finite values."""
    scale = divide(max(max(map(abs, values)), single(1e-10)), 448.0)
    return [round_e4m3(divide(value, scale)) if value else round_e4m3(value) for value in values], scale

"""Reports made by hand: what a comparison could have found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from specalign.compare.result import (
    PROBLEMS,
    Account,
    Cell,
    CompareReport,
    Divergence,
    Explanation,
    KeyResult,
    Problem,
    RequestMatch,
)

Make = Callable[[], CompareReport]

ROWS = 4096
EDGES = tuple(range(0, 513, 8))


def account(side: str = "a", **changed: Any) -> Account:
    values: dict[str, Any] = {
        "dump": f"/runs/2026-11-30/{side}",
        "producer": {"a": "megatron 0.16", "b": "sglang 0.5.23"}.get(side, side),
        "passes": 12,
        "requests": 8,
        "rows": ROWS,
        "compared": ROWS,
        **dict.fromkeys(("repeated", "padding", "health_checks", "terminal", "declared", "missing"), 0),
    }
    return Account(**{**values, **changed})


def divergence(key: str = "boundary.5", layer: int | None = 4, **changed: Any) -> Divergence:
    values: dict[str, Any] = {
        "key": key,
        "layer": layer,
        "request_a": "r-17",
        "request_b": "cmpl-93",
        "position": 131,
        "token": 4021,
        "channel": 17,
        "dtype": "BF16",
        "bits_a": 0x3F80,
        "bits_b": 0x3F81,
        "value_a": 1.0,
        "value_b": 1.0078125,
        "ulp": 1,
        "where_a": "rank00000/pass00012.safetensors row 3",
        "where_b": "rank00000/pass00040.safetensors row 0",
    }
    return Divergence(**{**values, **changed})


def key_result(key: str = "boundary.1", layer: int | None = 0, **changed: Any) -> KeyResult:
    """A key that agrees."""
    values: dict[str, Any] = {
        "key": key,
        "layer": layer,
        "dtype_a": "BF16",
        "dtype_b": "BF16",
        "width": 2880,
        "fingerprint": False,
        "rows_expected": ROWS,
        "rows_compared": ROWS,
        "rows_mismatching": 0,
        "elements_compared": ROWS * 2880,
        "elements_mismatching": 0,
        "max_ulp": 0,
        "max_abs": 0.0,
        "zero_signs": 0,
        "nonfinite_a": 0,
        "nonfinite_b": 0,
        "first": None,
        "cells": (Cell(64, 0, 0),) * (len(EDGES) - 1),
    }
    return KeyResult(**{**values, **changed})


def different_key(
    key: str = "boundary.5", layer: int | None = 4, *, ulp: int | None = 37, since: int = 16, **changed: Any
) -> KeyResult:
    """A key that differs from cell `since` on, more and more."""
    cells = tuple(
        Cell(64, 0, 0) if i < since else Cell(64, min(64, 1 + i - since), None if ulp is None else 1 if i < since + 12 else ulp)
        for i in range(len(EDGES) - 1)
    )
    values: dict[str, Any] = {
        "rows_mismatching": sum(cell.mismatching for cell in cells),
        "elements_mismatching": 4 * sum(cell.mismatching for cell in cells),
        "max_ulp": ulp,
        "max_abs": 0.25 if ulp is not None else None,
        "first": divergence(key, layer),
        "cells": cells,
    }
    return key_result(key, layer, **{**values, **changed})


def report(keys: tuple[KeyResult, ...] | None = None, **changed: Any) -> CompareReport:
    """A comparison that agrees: 24 keys of 4,096 rows."""
    values: dict[str, Any] = {
        "a": account("a"),
        "b": account("b"),
        "mode": "bits",
        "keys": tuple(boundary(b) for b in range(24)) if keys is None else keys,
        "problems": (),
        "declared": (),
        "requests": tuple(RequestMatch(f"r-{i}", f"cmpl-{i}", 512, 0, "tokens") for i in range(8)),
        "notes": (),
        "position_edges": EDGES,
    }
    return CompareReport(**{**values, **changed})


def boundary(b: int, **changed: Any) -> KeyResult:
    return key_result(f"boundary.{b}", b - 1 if b else None, **changed)


def equal_report() -> CompareReport:
    return report()


def different_report(**changed: Any) -> CompareReport:
    """The first five boundaries agree, the rest differ; one rounding explains it."""
    keys = tuple(boundary(b) if b < 5 else different_key(f"boundary.{b}", b - 1, ulp=1 + (b - 5) ** 4) for b in range(24))
    values: dict[str, Any] = {
        "keys": keys,
        "explanation": Explanation(
            "rounding",
            "every element of boundary.5 that differs, differs by 1 ULP: 37 elements in 37 rows, spread over all channels",
            "look at what block 4 adds up in another order: the split of its GEMM, the order of its experts, a fused norm",
            37,
            37,
        ),
        "requests": (
            *(RequestMatch(f"r-{i}", f"cmpl-{i}", 512, 40 * (i % 3 == 0), "tokens") for i in range(7)),
            RequestMatch("r-17", "cmpl-93", 512, 37, "continuation"),
        ),
        "a": account("a", rows=ROWS + 124, repeated=16, padding=100, terminal=8),
        "b": account("b", rows=ROWS + 67, padding=64, health_checks=3),
        "notes": ("b does not say which rows are padding: rows without a request were taken for it",),
    }
    return report(**{**values, **changed})


def problem(code: str, n: int = 0) -> Problem:
    return Problem(
        code, PROBLEMS[code], f"request r-{n}, positions 12-24", "12 of 4,096 rows", f"do what helps against {code} number {n}"
    )


def unproven_report(**changed: Any) -> CompareReport:
    """Nothing that was compared differs, but something is missing."""
    keys = (boundary(0), boundary(1, rows_compared=ROWS - 12, cells=(Cell(), *(Cell(64, 0, 0),) * (len(EDGES) - 2))), boundary(2))
    values: dict[str, Any] = {
        "problems": (problem("rows-missing"),),
        "a": account("a", compared=ROWS - 12, missing=12),
        "b": account("b", rows=ROWS - 12, compared=ROWS - 12),
    }
    return report(keys, **{**values, **changed})


HOSTILE = "<script>alert('x')</script>\"&\n\x1b[31m\u202ered"
"""A name that must not become markup, a line of its own, a colour, or text from right to left."""


def hostile_report() -> CompareReport:
    """Every string that comes out of a dump is `HOSTILE`."""
    first = divergence(HOSTILE, 4, request_a=HOSTILE, request_b=HOSTILE, where_a=HOSTILE, where_b=HOSTILE)
    return CompareReport(
        a=account("a", dump=HOSTILE, producer=HOSTILE),
        b=account("b", dump=HOSTILE, producer=HOSTILE),
        mode="bits",
        keys=(
            key_result(HOSTILE + "0", 3, rows_compared=1, dtype_a=HOSTILE, dtype_b="BF16"),
            different_key(HOSTILE, 4, first=first),
        ),
        problems=(Problem("rows-missing", HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        declared=(HOSTILE,),
        requests=(RequestMatch(HOSTILE, HOSTILE, 2, 1, HOSTILE),),
        notes=(HOSTILE,),
        position_edges=EDGES,
        explanation=Explanation(HOSTILE, HOSTILE, HOSTILE, 1, 2),
    )


def fingerprint_report() -> CompareReport:
    """The rows of one side were stored as fingerprints only."""
    first = divergence(dtype="U64", channel=1, bits_a=0x1F, bits_b=2**64 - 1, value_a=math.nan, value_b=math.nan, ulp=None)
    prints = {"fingerprint": True, "max_ulp": None, "max_abs": None}
    agrees = boundary(4, **prints, cells=(Cell(64, 0, None),) * (len(EDGES) - 1))
    return report((agrees, different_key(ulp=None, first=first, fingerprint=True)))


def big_report() -> CompareReport:
    """200 keys of 96 cells and 10,000 requests, with every kind of cell and problem."""
    edges = tuple(range(0, 96 * 128 + 1, 128))
    keys = tuple(_big_key(i, len(edges) - 1) for i in range(200))
    requests = tuple(RequestMatch(f"req-{i:05d}", f"chatcmpl-{i:032x}", 12, int(i == 9_999), "tokens") for i in range(10_000))
    return different_report(
        keys=keys, requests=requests, position_edges=edges, problems=tuple(problem(code) for code in PROBLEMS)
    )


def _big_key(i: int, cells: int) -> KeyResult:
    layer, part = divmod(i, 5)
    name = ("boundary", "self_attn", "mlp.router", "mlp.experts", "residual_fp32")[part]
    key = f"boundary.{layer}" if part == 0 else f"module.layers.{layer}.{name}"
    block = layer - 1 if part == 0 else layer
    kinds = (Cell(), Cell(64, 0, 0), Cell(64, 3, 1), Cell(64, 40, 900), Cell(64, 9, None))
    chosen = tuple(
        kinds[0 if c > 90 else 1 if i < 60 or c < 30 else 2 if c < 50 else 4 if part == 3 else 3] for c in range(cells)
    )
    if i < 60:
        return key_result(key, block if block >= 0 else None, cells=chosen)
    return different_key(key, block, ulp=None if part == 3 else 10 ** (i // 30), cells=chosen, fingerprint=part == 3)


def replaced(made: CompareReport, **changed: Any) -> CompareReport:
    return dataclasses.replace(made, **changed)

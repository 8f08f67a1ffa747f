"""The report as JSON after `schemas/compare-1.json`: everything that was found, and nothing that depends on when it ran."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from specalign.compare.report.words import ACCOUNT_PARTS, hex_bits, verdict_of
from specalign.compare.result import Account, CompareReport, Divergence, Explanation, KeyResult, Problem, RequestMatch

JSON_SCHEMA_NAME: Final = "specalign.compare/1"


def format_json(report: CompareReport) -> str:
    """`to_json` as text, ASCII, with a newline at the end; equal reports give equal bytes."""
    return json.dumps(to_json(report), indent=1, allow_nan=False) + "\n"


def to_json(report: CompareReport) -> dict[str, Any]:
    """The report as plain objects after the JSON Schema `schemas/compare-1.json`.

    Bits are hex strings of the element type's width; NaN and infinities, which JSON has not, are the strings "NaN", "Infinity"
    and "-Infinity". Distances in ULP may exceed 2^53.
    """
    at = next((key for key in report.keys if key.first is not None), None)
    return {
        "schema": JSON_SCHEMA_NAME,
        "ok": report.ok,
        "verdict": verdict_of(report).value,
        "mode": report.mode,
        "first": _divergence(at.first, at.fingerprint) if at is not None and at.first is not None else None,
        "last_equal": report.last_equal,
        "explanation": _explanation(report.explanation),
        "problems": [_problem(problem) for problem in report.problems],
        "declared": list(report.declared),
        "notes": list(report.notes),
        "a": _account(report.a),
        "b": _account(report.b),
        "requests": [_request(match) for match in report.requests],
        "position_edges": [int(edge) for edge in report.position_edges],
        "keys": [_key(key) for key in report.keys],
    }


def _key(key: KeyResult) -> dict[str, Any]:
    return {
        "key": key.key,
        "layer": key.layer,
        "ok": key.ok,
        "dtype_a": key.dtype_a,
        "dtype_b": key.dtype_b,
        "width": int(key.width),
        "fingerprint": bool(key.fingerprint),
        "rows_expected": int(key.rows_expected),
        "rows_compared": int(key.rows_compared),
        "rows_mismatching": int(key.rows_mismatching),
        "elements_compared": int(key.elements_compared),
        "elements_mismatching": int(key.elements_mismatching),
        "max_ulp": _whole(key.max_ulp),
        "max_abs": None if key.max_abs is None else _number(key.max_abs),
        "zero_signs": int(key.zero_signs),
        "nonfinite_a": int(key.nonfinite_a),
        "nonfinite_b": int(key.nonfinite_b),
        "first": None if key.first is None else _divergence(key.first, key.fingerprint),
        "cells": [[int(cell.compared), int(cell.mismatching), _whole(cell.max_ulp)] for cell in key.cells],
    }


def _divergence(found: Divergence, fingerprint: bool) -> dict[str, Any]:
    return {
        "key": found.key,
        "layer": found.layer,
        "request_a": found.request_a,
        "request_b": found.request_b,
        "position": int(found.position),
        "token": int(found.token),
        "channel": int(found.channel),
        "dtype": found.dtype,
        "bits_a": hex_bits(int(found.bits_a), found.dtype),
        "bits_b": hex_bits(int(found.bits_b), found.dtype),
        "value_a": None if fingerprint else _number(found.value_a),
        "value_b": None if fingerprint else _number(found.value_b),
        "ulp": _whole(found.ulp),
        "where_a": found.where_a,
        "where_b": found.where_b,
    }


def _account(side: Account) -> dict[str, Any]:
    counts = {name: int(getattr(side, name)) for name in ("passes", "requests", "rows", *ACCOUNT_PARTS)}
    return {"dump": side.dump, "producer": side.producer, **counts}


def _request(match: RequestMatch) -> dict[str, Any]:
    return {
        "request_a": match.request_a,
        "request_b": match.request_b,
        "rows": int(match.rows),
        "rows_mismatching": int(match.rows_mismatching),
        "how": match.how,
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "what": problem.what,
        "where": problem.where,
        "how_much": problem.how_much or None,
        "next": problem.next,
    }


def _explanation(why: Explanation | None) -> dict[str, Any] | None:
    if why is None:
        return None
    return {"cause": why.cause, "text": why.text, "next": why.next, "fits": int(why.fits), "tried": int(why.tried)}


def _whole(value: int | None) -> int | None:
    return None if value is None else int(value)


def _number(value: float) -> float | str:
    """A number, or the name of one that JSON has not."""
    if math.isnan(value):
        return "NaN"
    return float(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"

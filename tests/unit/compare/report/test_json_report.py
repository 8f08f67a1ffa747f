"""The JSON: valid against its schema, nothing lost, and the same bytes for the same report."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from importlib import resources
from typing import Any

import jsonschema
import pytest

from specalign.compare.report import JSON_SCHEMA_NAME, format_json, to_json
from specalign.compare.result import (
    PROBLEMS,
    Account,
    CompareReport,
    Divergence,
    Explanation,
    KeyResult,
    Problem,
    RequestMatch,
)
from specalign.dump.dtypes import DTYPES
from tests.unit.compare.report import made

SCHEMA = json.loads(resources.files("specalign").joinpath("schemas/compare-1.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
REPORTS = {
    "equal": made.equal_report,
    "different": made.different_report,
    "unproven": made.unproven_report,
    "fingerprint": made.fingerprint_report,
    "hostile": made.hostile_report,
    "big": made.big_report,
    "empty": lambda: made.report(()),
}
every_report = pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)


def special_report() -> CompareReport:
    first = made.divergence(value_a=math.nan, value_b=-math.inf, ulp=None, bits_a=0x7FC0, bits_b=0xFF80)
    return made.report((made.different_key(first=first, max_abs=math.inf, ulp=2**64 - 1),))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == JSON_SCHEMA_NAME


@every_report
def test_a_report_is_valid(make: made.Make) -> None:
    VALIDATOR.validate(json.loads(format_json(make())))


def test_the_schema_knows_every_problem_and_every_type() -> None:
    assert SCHEMA["$defs"]["problem"]["properties"]["code"]["enum"] == list(PROBLEMS)
    assert SCHEMA["$defs"]["divergence"]["properties"]["dtype"]["enum"] == list(DTYPES)


@every_report
def test_the_same_report_gives_the_same_bytes(make: made.Make) -> None:
    assert format_json(make()) == format_json(make())


def test_nothing_tells_when_it_was_made() -> None:
    assert not {"time", "date", "created", "timestamp"} & set(
        json.dumps(to_json(made.different_report())).replace('"', " ").split()
    )


@pytest.mark.parametrize(
    ("make", "verdict"),
    [(made.equal_report, "equal"), (made.different_report, "different"), (made.unproven_report, "not-proven")],
)
def test_the_verdict_agrees_with_the_report(make: made.Make, verdict: str) -> None:
    plain = to_json(make())
    assert plain["verdict"] == verdict
    assert plain["ok"] is make().ok


def test_numbers_that_json_has_not_are_strings() -> None:
    plain = json.loads(format_json(special_report()), parse_constant=pytest.fail)
    VALIDATOR.validate(plain)
    assert (plain["first"]["value_a"], plain["first"]["value_b"]) == ("NaN", "-Infinity")
    assert plain["keys"][0]["max_abs"] == "Infinity"
    assert plain["keys"][0]["max_ulp"] == 2**64 - 1


def test_bits_are_hex_of_the_types_width() -> None:
    first = to_json(made.different_report())["first"]
    assert (first["bits_a"], first["bits_b"]) == ("0x3f80", "0x3f81")


def test_a_fingerprint_has_bits_and_no_values() -> None:
    first = to_json(made.fingerprint_report())["first"]
    assert (first["bits_a"], first["value_a"], first["ulp"]) == ("0x000000000000001f", None, None)


def test_a_problem_without_figures_has_null() -> None:
    bare = dataclasses.replace(made.problem("rows-missing"), how_much="")
    plain = to_json(made.unproven_report(problems=(bare,)))
    VALIDATOR.validate(plain)
    assert plain["problems"][0]["how_much"] is None


def test_every_field_of_the_report_is_there() -> None:
    report = made.different_report(problems=(made.problem("rows-missing"),), declared=("gap",))
    plain = to_json(report)
    for name in ("a", "b"):
        assert set(plain[name]) == set(Account.__dataclass_fields__)
    assert set(plain["keys"][0]) == {*KeyResult.__dataclass_fields__, "ok"}
    assert set(plain["first"]) == set(Divergence.__dataclass_fields__)
    assert set(plain["requests"][0]) == set(RequestMatch.__dataclass_fields__)
    assert set(plain["problems"][0]) == set(Problem.__dataclass_fields__)
    assert set(plain["explanation"]) == set(Explanation.__dataclass_fields__)
    assert set(plain) == {*CompareReport.__dataclass_fields__, "schema", "ok", "verdict", "first", "last_equal"}


def test_cells_are_triples_of_compared_differing_and_distance() -> None:
    key = to_json(made.different_report())["keys"][5]
    assert key["cells"][0] == [64, 0, 0]
    assert key["cells"][16] == [64, 1, 1]
    assert to_json(made.fingerprint_report())["keys"][0]["cells"][0] == [64, 0, None]


Plant = Callable[[dict[str, Any]], Any]
FAULTS: dict[str, Plant] = {
    "ok, though it differs": lambda r: r.update(ok=True),
    "equal, though not ok": lambda r: r.update(verdict="equal"),
    "another schema": lambda r: r.update(schema="specalign.compare/2"),
    "a new key": lambda r: r.update(when="today"),
    "a key gone": lambda r: r.pop("notes"),
    "a mode that is none": lambda r: r.update(mode="close enough"),
    "an unknown problem": lambda r: r["problems"].append({**r["problems"][0], "code": "bad-mood"}),
    "a problem without what to do": lambda r: r["problems"][0].pop("next"),
    "bits as a number": lambda r: r["first"].update(bits_a=0x3F80),
    "bits of another width": lambda r: r["first"].update(bits_a="0x3f800000"),
    "bits in capitals": lambda r: r["first"].update(bits_a="0X3F80"),
    "a value in words": lambda r: r["first"].update(value_a="one"),
    "a negative count": lambda r: r["keys"][0].update(rows_compared=-1),
    "rows as a float": lambda r: r["a"].update(rows=0.5),
    "figures that are empty": lambda r: r["problems"][0].update(how_much=""),
    "a cell of two": lambda r: r["keys"][0]["cells"].append([1, 2]),
    "a cell of four": lambda r: r["keys"][0]["cells"].append([1, 2, 3, 4]),
    "an unknown type": lambda r: r["first"].update(dtype="BF17"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_schema_refuses(fault: Plant) -> None:
    plain = to_json(made.different_report(problems=(made.problem("rows-missing"),)))
    VALIDATOR.validate(plain)
    broken = copy.deepcopy(plain)
    fault(broken)
    assert not VALIDATOR.is_valid(broken)

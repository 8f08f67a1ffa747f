"""Dotted places of a parsed config, and tables of plain text."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.places import MISSING, first_set, int_or_none, look_up
from specalign.layer_ids.tables import format_table

CONFIG: dict[str, Any] = {"a": 1, "null": None, "e": {"f": {"g": 7}, "null": None}, "list": ["g"], "e.f": 3}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("a", 1),
        ("null", None),
        ("e.null", None),
        ("e.f", {"g": 7}),  # a dot is always a step: the key "e.f" cannot be named
        ("e.f.g", 7),
        ("gone", MISSING),
        ("e.gone", MISSING),
        ("gone.f", MISSING),
        ("a.f", MISSING),
        ("null.f", MISSING),
        ("list.g", MISSING),
        ("e.f.g.h", MISSING),
    ],
)
def test_a_place_is_looked_up_step_by_step(place: str, value: object) -> None:
    assert look_up(CONFIG, place) == value


def test_a_missing_place_says_so_when_it_is_printed() -> None:
    assert repr(MISSING) == "MISSING"


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (("gone", "null", "e.f.g", "a"), ("e.f.g", 7)),
        (("a", "e.f.g"), ("a", 1)),
        (("gone", "null"), (None, None)),
        ((), (None, None)),
    ],
)
def test_the_first_place_that_is_set_wins_and_null_is_not_set(places: tuple[str, ...], found: tuple[str | None, object]) -> None:
    assert first_set(CONFIG, places) == found


@pytest.mark.parametrize("value", [False, 0, "", []])
def test_false_and_empty_values_are_set(value: object) -> None:
    assert first_set({"a": value, "b": 1}, ("a", "b")) == ("a", value)


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), (0, 0), (-1, -1), (True, None), (False, None), (3.0, None), ("3", None), (None, None)]
)
def test_only_a_plain_integer_is_one(value: object, number: int | None) -> None:
    found = int_or_none(value)
    assert (found, type(found)) == (number, type(number))


def test_columns_are_as_wide_as_their_widest_cell_and_the_last_one_is_not_padded() -> None:
    rows = [("engine", "n", "states"), ("a", "100", "[1]"), ("bb", "", "")]
    assert format_table(rows).split("\n") == ["engine  n    states", "a       100  [1]", "bb"]

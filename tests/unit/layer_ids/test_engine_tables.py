"""From the tables of engine data to dataclasses: every key and value is checked, and the message says where and what would do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from specalign.layer_ids.engine_profiles import CaptureProfile, EngineProfile
from specalign.layer_ids.engine_tables import EngineDataError, build, parse_toml
from specalign.layer_ids.errors import LayerIdError


@dataclasses.dataclass(frozen=True)
class Row:
    """One field of each kind that rows may have."""

    name: str
    number: int = 3
    on: bool = False
    grade: str = "R"
    words: tuple[str, ...] = ()
    table: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    anything: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def refusal(*rows: object) -> str:
    with pytest.raises(EngineDataError) as caught:
        list(build(Row, {"row": list(rows)}, "row", "x.toml"))
    return str(caught.value)


def test_rows_become_dataclasses_and_keep_their_order() -> None:
    full = {
        "name": "a",
        "number": 0,
        "on": True,
        "grade": "X",
        "words": ["b", "c"],
        "table": {"d": "e"},
        "lists": {"f": ["g"], "h": []},
        "anything": {"i": [1, {"j": 2}]},
    }
    first, second = build(Row, {"row": [full, {"name": "k"}]}, "row", "x.toml")
    assert first == Row("a", 0, True, "X", ("b", "c"), {"d": "e"}, {"f": ("g",), "h": ()}, {"i": [1, {"j": 2}]})
    assert second == Row("k")
    with pytest.raises(TypeError):
        first.table["d"] = "z"  # type: ignore[index]  # rows are shared by all that load them


def test_a_file_without_the_table_has_no_rows() -> None:
    assert list(build(Row, {}, "row", "x.toml")) == []


@pytest.mark.parametrize("rows", [{"name": "a"}, "a", 3])
def test_a_table_that_is_no_array_is_refused(rows: object) -> None:
    with pytest.raises(EngineDataError) as caught:
        list(build(Row, {"row": rows}, "row", "x.toml"))
    assert str(caught.value) == "x.toml: row must be an array of tables: write [[row]]"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"odd": 1, "name": "a", "even": 2},
            "(a): unknown key 'even'; the keys are name, number, on, grade, words, table, lists,",
        ),
        ({"number": 1}, "(?): 'name' is missing"),
        ({"name": "a", "number": True}, "(a): number must be of type int, not True"),
        ({"name": "a", "number": "1"}, "(a): number must be of type int, not '1'"),
        ({"name": "a", "on": 1}, "(a): on must be of type bool, not 1"),
        ({"name": 3}, "(3): name must be of type str, not 3"),
        ({"name": "a", "grade": "Z"}, "(a): grade must be one of 'R', 'X', 'T', 'I', not 'Z'"),
        ({"name": "a", "words": "b"}, "(a): words must be a list of strings, not 'b'"),
        ({"name": "a", "words": ["b", 1]}, "(a): words must be a list of strings, not ['b', 1]"),
        ({"name": "a", "table": ["b"]}, "(a): table must be a table, not ['b']"),
        ({"name": "a", "table": {"b": 1}}, "(a): table: b must be of type str, not 1"),
        ({"name": "a", "table": {"b": "c", "grade": "Z"}}, "(a): table: grade must be one of 'R', 'X', 'T', 'I', not 'Z'"),
        ({"name": "a", "lists": {"b": "c"}}, "(a): lists: b must be a list of strings, not 'c'"),
    ],
)
def test_a_wrong_row_is_named_by_file_number_and_name(row: dict[str, Any], says: str) -> None:
    assert refusal({"name": "before"}, row).startswith(f"x.toml: [[row]] number 2 {says}")


def test_a_row_is_named_by_its_engine_where_it_has_one() -> None:
    assert refusal({"engine": "e", "name": "a"}).startswith("x.toml: [[row]] number 1 (e): unknown key 'engine'")


SCHEMA = 'schema = "s/1"\n'


def test_the_tables_of_a_file_are_handed_on() -> None:
    text = SCHEMA + "[[engine]]\na = 1\n[[family]]\n[[capture]]\n[[draft]]\n"
    assert parse_toml("x.toml", text, "s/1") == {
        "schema": "s/1",
        "engine": [{"a": 1}],
        "family": [{}],
        "capture": [{}],
        "draft": [{}],
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = ", "x.toml: not TOML: "),
        ("", "x.toml: wants schema = 's/1' and the tables engine, family, capture, draft; has "),
        ('schema = "s/2"', "x.toml: wants schema = 's/1' and the tables engine, family, capture, draft; has schema"),
        (
            SCHEMA + "[[engine]]\n[[odd]]\n",
            "x.toml: wants schema = 's/1' and the tables engine, family, capture, draft; has schema, engine, odd",
        ),
    ],
)
def test_another_schema_or_table_is_refused_with_the_file(text: str, says: str) -> None:
    with pytest.raises(EngineDataError) as caught:
        parse_toml("x.toml", text, "s/1")
    assert str(caught.value).startswith(says)
    if "not TOML" not in says:
        assert str(caught.value) == says


# Profiles


def capture(**settings: Any) -> CaptureProfile:
    return CaptureProfile("e", "*", ("eagle3",), ("*",), "boundary", "s", "R", **settings)


def test_the_place_of_the_ids_may_have_a_rule_of_its_own() -> None:
    profile = capture(place_rules={"a": "output"})
    assert [profile.rule_for(place).named((1, 2), 9) for place in ("a", "b", None)] == [(2, 3), (1, 2), (1, 2)]
    assert profile.as_rule("a").named((1, 2), 9) == (2, 3)
    assert profile.as_rule().named((1, 2), 9) == (1, 2)


@pytest.mark.parametrize(
    ("settings", "ids", "states"),
    [
        ({}, (5, 2, 5), (2, 5)),
        ({"order": "config"}, (5, 2, 5), (5, 2)),
        ({"duplicates": "keep"}, (5, 2, 5), (2, 5, 5)),
        ({"order": "config", "duplicates": "keep"}, (5, 2, 5), (5, 2, 5)),
        ({"duplicates": "error"}, (5, 2, 5), None),
        ({"duplicates": "error"}, (5, 2), (2, 5)),
        ({"reach": "n"}, (9,), (9,)),
        ({"reach": "n-1"}, (9,), None),
        ({"reach": "n-1"}, (8,), (8,)),
        ({}, None, (2, 4, 6)),
        ({"default": "refused"}, None, None),
        ({"default": "dflash-even"}, None, None),
    ],
)
def test_the_rule_of_a_profile_has_the_limits_of_the_profile(
    settings: dict[str, Any], ids: tuple[int, ...] | None, states: tuple[int, ...] | None
) -> None:
    rule = capture(**settings).as_rule()
    if states is None:
        with pytest.raises(LayerIdError):
            rule.states(ids, 9)
    else:
        assert rule.states(ids, 9) == states


def test_an_engine_is_labelled_with_its_version_if_it_has_any() -> None:
    assert EngineProfile("e", "1.2", "1", None, None).label == "e==1.2"
    assert EngineProfile("e", "", "", None, None).label == "e"

"""The key of a golden and the name of its file."""

from __future__ import annotations

import dataclasses
import hashlib
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.golden.errors import GoldenError
from specalign.golden.keys import Key, encode, matches, parse_key

KEPT = string.ascii_letters + string.digits + "._=-"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.builds(Key, texts, texts, texts, texts, texts)


def test_the_name_says_whose_golden_it_is() -> None:
    key = Key("test_router.py", "TestA.TestB", "test_scores", "bf16-top_k=2", "h")
    assert key.stem == "test_router.py~TestA.TestB~test_scores~bf16-top_k=2~h"
    assert key.text == "test_router.py::TestA::TestB::test_scores[bf16-top_k=2]::h"
    assert Key("t.py", "", "test_f", None).stem == "t.py~~test_f"
    assert Key("t.py", "", "test_f", None).text == "t.py::test_f"


@given(texts)
def test_encoding_is_that_of_urls_outside_of_the_letters_that_are_kept(part: str) -> None:
    # urllib leaves ~ alone, which separates the parts here
    assert encode(part) == quote(part, safe="=").replace("~", "%7E")
    assert set(encode(part)) <= set(KEPT + "%")


@given(keys, keys)
def test_two_keys_have_one_name_only_if_they_are_one(a: Key, b: Key) -> None:
    assert (a.stem == b.stem) == (a == b)


@pytest.mark.parametrize("field", ["module", "classes", "function", "params", "name"])
def test_every_part_of_the_key_is_in_the_name(field: str) -> None:
    key = Key("a", "b", "c", "d", "e")
    assert dataclasses.replace(key, **{field: "other"}).stem != key.stem


def test_parameters_are_not_sorted() -> None:
    assert Key("t.py", "", "f", "a-b").stem != Key("t.py", "", "f", "b-a").stem


def test_a_long_name_is_cut_and_told_apart_by_its_hash() -> None:
    exact = Key("t.py", "", "f", "p" * (120 - len("t.py~~f~")))
    assert len(exact.stem) == 120
    assert "-" not in exact.stem
    longer = dataclasses.replace(exact, params=f"{exact.params}p")
    full = f"t.py~~f~{longer.params}"
    assert longer.stem == f"{full[:80]}-{hashlib.sha256(full.encode()).hexdigest()[:16]}"
    assert dataclasses.replace(longer, params=f"{exact.params}q").stem != longer.stem


def test_names_that_differ_in_capitals_are_one_on_some_file_systems() -> None:
    assert Key("t.py", "TestA", "f", None).folded == Key("t.py", "Testa", "f", None).folded
    assert Key("t.py", "TestA", "f", None).folded != Key("t.py", "TestB", "f", None).folded


@given(keys)
def test_a_key_survives_its_document(key: Key) -> None:
    assert parse_key(key.to_json(), "here") == key


@pytest.mark.parametrize("wrong", [None, {}, {"module": "m"}, dict.fromkeys(("module", "class", "function", "params", "name"))])
def test_what_is_no_key_is_refused(wrong: object) -> None:
    with pytest.raises(GoldenError, match="here: has the key"):
        parse_key(wrong, "here")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("a.py::test_f[x]", "a.py::test_f[x]", True),  # the brackets are no class of characters
        ("a.py::test_f[x]", "a.py::test_fx", False),
        ("a.py::*", "a.py::test_f[x]::h", True),
        ("*::h", "a.py::test_f[x]::h", True),
        ("a.py", "a.py::test_f", False),
        ("*.py::t?st", "a.py::test", False),
    ],
)
def test_a_pattern_knows_the_star_alone(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits

"""Which goldens are unused, and when nobody can tell; shards are merged."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specalign.golden.errors import GoldenError
from specalign.golden.usage import SCHEMA, Present, Usage, merge, parse_usage, read_usage, write_usage

JSON_SCHEMA = json.loads(resources.files("specalign").joinpath("schemas/golden-usage-1.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(JSON_SCHEMA)

A, B, C = (f"g::test_{name}.py::test_{name}" for name in "abc")


def names(*given: str) -> frozenset[str]:
    return frozenset(given)


def present(*entries: tuple[str, str, bool]) -> frozenset[Present]:
    return frozenset(Present(*entry) for entry in entries)


WHOLE = Usage(
    collected=names(A, B),
    passed=names(A, B),
    used={"g/a": names(A)},
    present=present(("g/a", A, True), ("g/b", B, True), ("g/gone", "g::test_gone.py::test_x", False)),
)


def test_what_no_test_used_is_unused_once_all_have_run() -> None:
    assert WHOLE.incomplete == ()
    assert WHOLE.unused == ("g/b", "g/gone")


def test_the_goldens_of_a_skipped_test_and_of_a_file_that_was_not_collected_are_not_unused() -> None:
    skipped = Usage(
        collected=names(A, B),
        passed=names(A),
        skipped=names(B),
        present=present(("g/b", B, True), ("g/c", C, True), ("g/old", "g::test_b.py::test_old", True)),
    )
    assert skipped.incomplete == ()
    assert skipped.unused == ("g/old",)


INCOMPLETE = {
    "a test that did not run": ({"passed": names(A)}, f"1 test ({B}) did not run"),
    "a test that failed": ({"passed": names(A), "failed": names(B)}, f"1 test ({B}) failed"),
    "a restricted collection": ({"restricted": names("paths were given")}, "paths were given"),
    "no test": ({"collected": names(), "passed": names()}, "no test was collected"),
}


@pytest.mark.parametrize("why", INCOMPLETE)
def test_otherwise_it_says_why_nobody_can_tell(why: str) -> None:
    changes, text = INCOMPLETE[why]
    fields: dict[str, Any] = {"collected": WHOLE.collected, "passed": WHOLE.passed}
    assert text in "; ".join(Usage(**(fields | changes)).incomplete)


def test_shards_make_up_for_each_other() -> None:
    one = Usage(collected=names(A, B), passed=names(A), used={"g/a": names(A)}, present=WHOLE.present)
    two = Usage(collected=names(A, B), passed=names(B), used={"g/b": names(B)}, present=WHOLE.present)
    assert one.incomplete
    assert two.incomplete
    merged = merge([one, two])
    assert merged.incomplete == ()
    assert merged.unused == ("g/gone",)
    assert merge([one, one]).incomplete == one.incomplete


def test_shards_by_path_need_one_record_that_collected_everything() -> None:
    one = Usage(restricted=names("paths"), collected=names(A), passed=names(A))
    two = Usage(restricted=names("paths"), collected=names(B), passed=names(B))
    assert merge([one, two]).incomplete == ("paths",)
    everything = Usage(collected=names(A, B))
    assert merge([one, two, everything]).incomplete == ()
    assert merge([one, everything]).incomplete == (f"1 test ({B}) did not run",)


def test_a_part_that_took_itself_for_the_whole_makes_up_for_no_other_file() -> None:
    """Started in a folder below rootdir, a run sees no reason why tests may be missing."""
    below = Usage(collected=names(A), passed=names(A))
    other = Usage(restricted=names("paths"), collected=names(B), passed=names(B))
    assert merge([below, other]).incomplete == ("paths",)
    all_of_it = Usage(collected=names(A, B, C))
    assert merge([below, other, all_of_it]).restricted == frozenset()


def test_a_test_that_one_shard_skips_and_another_runs_has_run() -> None:
    one = Usage(collected=names(A), skipped=names(A), present=present(("g/old", A, True)))
    two = Usage(collected=names(A), passed=names(A))
    assert one.unused == ()
    assert merge([one, two]).unused == ("g/old",)


def test_a_golden_of_two_tests_is_a_collision_across_shards() -> None:
    merged = merge([Usage(used={"g/a": names(A)}), Usage(used={"g/a": names(B), "g/b": names(B)})])
    assert merged.shared == {"g/a": (A, B)}
    capitals = merge([Usage(used={"g/a": names(A)}), Usage(used={"g/A": names(B), "g/b": names(B)})])
    assert capitals.shared == {"g/a": (A, B)}


def test_a_record_survives_its_file_and_fits_the_schema(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(JSON_SCHEMA)
    assert JSON_SCHEMA["$id"] == SCHEMA
    path = write_usage(WHOLE, tmp_path)
    assert read_usage(path) == WHOLE
    VALIDATOR.validate(json.loads(path.read_text("utf-8")))
    assert write_usage(WHOLE, tmp_path) == path
    assert write_usage(Usage(collected=names(A, B), passed=names(A)), tmp_path) != path


WRONG: dict[str, Any] = {
    "schema": "specalign.golden-usage/2",
    "restricted": "none",
    "passed": [1],
    "used": {"g/a": "A"},
    "present": [{"golden": "g/a", "test": A}],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_record_is_refused_by_reader_and_schema(field: str) -> None:
    document = WHOLE.to_json() | {field: WRONG[field]}
    with pytest.raises(GoldenError, match=r"^here: "):
        parse_usage(document, "here")
    assert not VALIDATOR.is_valid(document)

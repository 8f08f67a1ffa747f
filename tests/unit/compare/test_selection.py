"""`--layers`, `--declare-missing` and `--expect-rows`, as they are written and as they go wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specalign.compare.declared import Declared, read_declared
from specalign.compare.selection import EVERYTHING, parse_selection
from specalign.layer_ids.files import InputError

KEYS = (
    "module.embed_tokens", "boundary.0", "boundary.1", "module.layers.0.mlp", "routes.1", "boundary.2", "boundary.10", "post_norm",
    "logits", "logprobs",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", list(KEYS)),
        ("0", ["module.layers.0.mlp", "boundary.1"]),
        ("1-9", ["routes.1", "boundary.2", "boundary.10"]),
        ("0,9", ["module.layers.0.mlp", "boundary.1", "boundary.10"]),
        ("embedding", ["module.embed_tokens", "boundary.0"]),
        (" post_norm , logits ", ["post_norm", "logits"]),
    ],
)
def test_layer_i_is_the_boundary_behind_it_and_its_modules(text: str, keys: list[str]) -> None:
    assert parse_selection(text).of(reversed(KEYS)) == [key for key in parse_selection("").of(KEYS) if key in keys]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", []),
        ("0-1", []),
        ("2", ["boundary.3"]),
        ("embedding,0-3,logprobs", ["boundary.3", "boundary.4"]),
    ],
)
def test_layers_that_nobody_has(text: str, missing: list[str]) -> None:
    assert parse_selection(text).missing(KEYS) == missing


def test_a_layer_of_which_only_modules_were_recorded_is_there() -> None:
    assert parse_selection("7").missing(["module.layers.7.mlp"]) == []


def test_a_missing_embedding() -> None:
    assert parse_selection("embedding").missing(["boundary.1"]) == ["boundary.0"]


def test_everything_contains_any_key_and_nothing_else() -> None:
    assert all(key in EVERYTHING for key in KEYS)
    assert 3 not in EVERYTHING


@pytest.mark.parametrize(
    ("text", "says"), [("5-2", "write 2-5"), ("x", "neither a layer"), ("-3", "neither a layer"), (",", "names nothing")]
)
def test_lists_that_are_none(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_selection(text)


def declared(tmp_path: Path, text: str) -> tuple[Declared, ...]:
    path = tmp_path / "gaps.toml"
    path.write_text(text, "utf-8")
    return read_declared(path)


def test_a_declared_gap(tmp_path: Path) -> None:
    text = '[[missing]]\nside = "b"\nreason = "prefix cache"\nrequests = "warm*"\npositions = "2-4"\nkeys = "boundary.*"\n'
    (gap,) = declared(tmp_path, text)
    assert gap == Declared("b", "prefix cache", "warm*", (2, 4), "boundary.*")
    rows = gap.covers_rows(np.arange(6), np.array([0, 0, 0, 1, 0, -1]), ("warm1", "cold"))
    assert rows.tolist() == [False, False, True, False, True, False]
    assert gap.covers_key("boundary.3")
    assert not gap.covers_key("post_norm")
    assert not gap.is_whole
    assert "prefix cache" in gap.format()


@pytest.mark.parametrize(("text", "positions"), [("3", (3, 3)), ("12-", (12, None)), ("0-9", (0, 9)), ("0-", (0, None))])
def test_positions(tmp_path: Path, text: str, positions: tuple[int, int | None]) -> None:
    (gap,) = declared(tmp_path, f'[[missing]]\nside = "a"\nreason = "r"\npositions = "{text}"\n')
    assert gap.positions == positions
    assert gap.is_whole == (positions == (0, None))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "list of"),
        ("missing = []", "list of"),
        ('[[missing]]\nside = "b"', "needs side and reason"),
        ('[[missing]]\nside = "b"\nreason = ""', "reason is ''"),
        ('[[missing]]\nside = "c"\nreason = "r"', "a or b"),
        ('[[missing]]\nside = "b"\nreason = "r"\nrows = "1"', "needs side and reason"),
        ('[[missing]]\nside = "b"\nreason = "r"\npositions = "9-3"', "write 3, 0-9 or 12-"),
        ('[[missing]]\nside = "b"\nreason = "r"\npositions = "-3"', "write 3, 0-9 or 12-"),
        ('[[missing]]\nside = "b"\nreason = "r"\npositions = 3', "positions is 3"),
        ("[[missing]", "no TOML"),
        ('other = 1\n[[missing]]\nside = "b"\nreason = "r"', "nothing else"),
    ],
)
def test_files_of_gaps_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        declared(tmp_path, text)

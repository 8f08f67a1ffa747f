"""From ids to the states that arrive: every setting of a capture profile, on a 36-layer target and to the last field."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids import POST_NORM
from specalign.layer_ids.captured import Captured, capture_ids
from specalign.layer_ids.engine_profiles import CaptureProfile

TWICE = "an error for an id that is named twice"
NO_IDS = Captured(error="ValueError: no ids in the config, and no default here")


def profile(rule: str = "boundary", **settings: Any) -> CaptureProfile:
    return CaptureProfile("made-up", "*", ("eagle3",), ("*",), rule, "none", "I", **settings)


def arrives(*states: Any, named: tuple[Any, ...] | None = None, lost: tuple[Any, ...] = ()) -> Captured:
    return Captured(states if named is None else named, states, lost)


@pytest.mark.parametrize(
    ("settings", "ids", "expected"),
    [
        ({}, (5, 3), arrives(3, 5, named=(5, 3))),
        ({"order": "config"}, (5, 3), arrives(5, 3)),
        ({"rule": "hf"}, (36, 3), arrives(3, POST_NORM, named=(POST_NORM, 3))),
        ({}, (3, 3), arrives(3, named=(3, 3))),
        ({"duplicates": "keep"}, (3, 3), arrives(3, 3)),
        ({"duplicates": "error"}, (3, 3), Captured((3, 3), (), (), TWICE)),
        ({"duplicates": "error"}, (3, 36, 37), arrives(3, 36, named=(3, 36, 37), lost=(37,))),
        ({"duplicates": "error"}, (3, 37, 3), Captured((3, 37, 3), (), (37,), TWICE)),
    ],
)
def test_order_and_duplicates(settings: dict[str, Any], ids: tuple[int, ...], expected: Captured) -> None:
    assert capture_ids(profile(**settings), ids, 36) == expected


@pytest.mark.parametrize(
    ("settings", "ids", "expected"),
    [
        ({}, (0, 1, 36), arrives(0, 1, 36)),
        ({"boundary_0": "aliased"}, (0, 1, 36), arrives(0, 1, 36)),
        ({"boundary_0": "dropped"}, (0, 1, 36), arrives(1, 36, named=(0, 1, 36), lost=(0,))),
        ({"boundary_0": "IndexError"}, (0, 1), Captured((0, 1), (), (0,), "IndexError")),
        ({"boundary_0": "dropped", "unreachable": "KeyError"}, (0, 37), Captured((0, 37), (), (0, 37), "KeyError")),
        ({"reach": "n-1"}, (35, 36), arrives(35, named=(35, 36), lost=(36,))),
        ({"reach": "n-1", "unreachable": "IndexError"}, (35, 36), Captured((35, 36), (), (36,), "IndexError")),
        ({"reach": "none"}, (0, 1), arrives(named=(0, 1), lost=(0, 1))),
        ({"reach": "n"}, (36, 37), arrives(36, named=(36, 37), lost=(37,))),
        ({"rule": "output_n_final"}, (2, 34, 35), arrives(3, 35, named=(3, 35, 36), lost=(36,))),
        ({"rule": "output_n_final"}, (2, 36), arrives(3, 36)),
    ],
)
def test_what_an_engine_never_reaches_is_lost_or_an_error(
    settings: dict[str, Any], ids: tuple[int, ...], expected: Captured
) -> None:
    assert capture_ids(profile(**settings), ids, 36) == expected


@pytest.mark.parametrize(
    ("settings", "ids", "place", "expected"),
    [
        ({"range_checked": True}, (0, 35), None, arrives(0, 35)),
        ({"range_checked": True}, (0, 36), None, Captured((0, 36), error="ValueError: ids must lie in 0..35")),
        ({"range_checked": True}, (0, 36), "dspark_target_layer_ids", arrives(0, 36)),
        ({}, (0, 36), None, arrives(0, 36)),
        ({"exactly": 3}, (1, 2), None, Captured((1, 2), error="an error for 2 ids: it takes exactly 3")),
        ({"exactly": 3}, (1, 2, 3), None, arrives(1, 2, 3)),
        ({"place_rules": {"here": "output"}}, (1, 2), "here", arrives(2, 3)),
        ({"place_rules": {"here": "output"}}, (1, 2), "there", arrives(1, 2)),
        ({"place_rules": {"here": "output"}}, (1, 2), None, arrives(1, 2)),
    ],
)
def test_the_place_and_the_number_of_the_ids_count(
    settings: dict[str, Any], ids: tuple[int, ...], place: str | None, expected: Captured
) -> None:
    assert capture_ids(profile(**settings), ids, 36, place=place) == expected


@pytest.mark.parametrize(
    ("settings", "draft_layers", "layers", "expected"),
    [
        ({}, None, 36, arrives(2, 18, 33)),
        ({"rule": "output_default_shifted"}, None, 36, arrives(3, 19, 34)),
        ({"default_needs": 7}, None, 7, arrives(2, 3, 4)),
        ({"default_needs": 7}, None, 6, Captured(error="an error: the default needs 7 layers")),
        ({"default": "dflash-even", "rule": "output"}, 3, 36, arrives(2, 18, 34)),
        ({"default": "dflash-even", "rule": "output"}, 1, 36, arrives(19)),
        ({"default": "dflash-even", "rule": "output"}, None, 36, NO_IDS),
        ({"default": "none"}, 3, 36, NO_IDS),
        ({"rule": "hf_output"}, 3, 36, NO_IDS),
    ],
)
def test_without_ids_the_default_counts(
    settings: dict[str, Any], draft_layers: int | None, layers: int, expected: Captured
) -> None:
    assert capture_ids(profile(**settings), None, layers, draft_layers=draft_layers) == expected


def test_a_shallow_target_is_no_obstacle_to_ids_that_are_given() -> None:
    assert capture_ids(profile(default_needs=7), (1, 2), 6) == arrives(1, 2)

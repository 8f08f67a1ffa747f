"""Layer ids: the values here are written by hand, from what the engines do and from the closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids import (
    POST_NORM,
    RULES,
    Convention,
    LayerIdError,
    default_ids,
    dflash_boundaries,
    eagle3_boundaries,
    from_boundaries,
    infer_convention,
    rule_named,
    to_boundaries,
    to_states,
)

REFUSED = "refused"

# What the setters of SGLang 0.5.23 stored for a 36-layer target: ids None, [1,17,32], [2,18,33], [24,30,36], [1,17,35].
# REFUSED stands where the setter stored a boundary above n.
SETTERS_ON_36_LAYERS = {
    "output": ([2, 18, 33], [2, 18, 33], [3, 19, 34], REFUSED, [2, 18, 36]),
    "plus_one_if_first_is_1": ([2, 18, 33], [2, 18, 33], [2, 18, 33], [24, 30, 36], [2, 18, 36]),
    "as_is_if_max_is_n": ([2, 18, 33], [2, 18, 33], [3, 19, 34], [24, 30, 36], [2, 18, 36]),
    "output_default_shifted": ([3, 19, 34], [2, 18, 33], [3, 19, 34], REFUSED, [2, 18, 36]),
    "boundary": ([2, 18, 33], [1, 17, 32], [2, 18, 33], [24, 30, 36], [1, 17, 35]),
}
IDS_ON_36_LAYERS = (None, [1, 17, 32], [2, 18, 33], [24, 30, 36], [1, 17, 35])


@pytest.mark.parametrize("rule", SETTERS_ON_36_LAYERS)
@pytest.mark.parametrize("column", range(5))
def test_rules_give_what_the_engines_do_on_36_layers(rule: str, column: int) -> None:
    ids, expected = IDS_ON_36_LAYERS[column], SETTERS_ON_36_LAYERS[rule][column]
    if expected is REFUSED:
        with pytest.raises(LayerIdError, match="36"):
            to_states(ids, num_layers=36, rule=rule)
    else:
        assert list(to_states(ids, num_layers=36, rule=rule)) == expected


def test_the_trtllm_recipe_and_the_v3_config_name_the_same_states() -> None:
    as_outputs = to_states([23, 29, 35], num_layers=36, convention=Convention.OUTPUT)
    as_boundaries = to_states([24, 30, 36], num_layers=36, convention=Convention.BOUNDARY)
    assert as_outputs == as_boundaries == (24, 30, 36)


def test_hf_ids_are_boundaries_but_the_last_one_is_normed() -> None:
    assert to_states([0, 35, 36], num_layers=36, convention=Convention.HF) == (0, 35, POST_NORM)


@pytest.mark.parametrize(
    ("n", "boundaries"),
    [
        (7, (2, 3, 4)),
        (8, (2, 4, 5)),
        (24, (2, 12, 21)),
        (32, (2, 16, 29)),
        (36, (2, 18, 33)),
        (61, (2, 30, 58)),
        (80, (2, 40, 77)),
        (94, (2, 47, 91)),
    ],
)
def test_the_default_is_2_the_middle_and_three_before_the_end(n: int, boundaries: tuple[int, ...]) -> None:
    one_less = tuple(b - 1 for b in boundaries)
    assert eagle3_boundaries(None, n) == boundaries
    assert default_ids(n, convention=Convention.BOUNDARY) == boundaries
    assert default_ids(n, convention=Convention.OUTPUT) == one_less
    assert RULES["as_is_if_max_is_n"].explicit_default(n) == one_less
    assert RULES["plus_one_if_first_is_1"].explicit_default(n) in (boundaries, one_less)
    assert RULES["output_default_shifted"].explicit_default(n) == boundaries


@pytest.mark.parametrize(
    ("ids", "n", "boundaries"),
    [
        ([24, 30, 36], 36, (24, 30, 36)),
        ([1, 17, 32], 36, (2, 18, 33)),
        ([2, 18, 33], 36, (3, 19, 34)),
        ([1, 11, 21], 24, (2, 12, 22)),
        ([36, 1], 36, (36, 1)),
        ([0], 36, (1,)),
        ([0, 36], 36, (0, 36)),
    ],
)
def test_eagle3_ids_are_boundaries_only_if_the_highest_is_n(ids: list[int], n: int, boundaries: tuple[int, ...]) -> None:
    assert eagle3_boundaries(ids, n) == boundaries


@pytest.mark.parametrize(
    ("ids", "n", "boundaries"),
    [
        ([1, 9, 17, 25, 33], 36, (2, 10, 18, 26, 34)),
        ([3, 11, 19, 27, 31], 32, (4, 12, 20, 28, 32)),
        ([1, 10, 19, 28, 37], 40, (2, 11, 20, 29, 38)),
    ],
)
def test_dflash_ids_are_block_outputs(ids: list[int], n: int, boundaries: tuple[int, ...]) -> None:
    assert dflash_boundaries(ids, n) == boundaries


def test_the_order_of_the_config_is_kept_unless_the_rule_sorts() -> None:
    by_layer = RULES["boundary"].narrowed(order="layer")
    assert to_states([29, 2, 16], num_layers=36, rule="boundary") == (29, 2, 16)
    assert to_states([29, 2, 16], num_layers=36, rule=by_layer) == (2, 16, 29)


def test_duplicates_are_refused_kept_or_collapsed() -> None:
    ids, boundary = [5, 2, 5], RULES["boundary"]
    assert to_states(ids, num_layers=8, rule="boundary", duplicates="keep") == (5, 2, 5)
    assert to_states(ids, num_layers=8, rule=boundary.narrowed(duplicates="collapse")) == (5, 2)
    assert eagle3_boundaries(ids, 8, duplicates="keep") == (6, 3, 6)
    with pytest.raises(LayerIdError, match=r"id 5 .*twice"):
        to_states(ids, num_layers=8, rule="boundary")


def test_a_rule_that_never_reaches_n_refuses_the_id_that_names_it() -> None:
    dense = RULES["output"].narrowed(reaches_n=False)
    assert to_states([34], num_layers=36, rule=dense) == (35,)
    with pytest.raises(LayerIdError, match=r"35 cannot be reached.*boundary 36"):
        to_states([35], num_layers=36, rule=dense)


@pytest.mark.parametrize("n", [7, 8, 36, 61])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_from_boundaries_undoes_to_states(rule: str, n: int) -> None:
    states = to_states([1, 3], num_layers=n, rule=rule)
    assert to_states(from_boundaries(states, num_layers=n, rule=rule), num_layers=n, rule=rule) == states


def test_boundary_0_cannot_be_named_where_1_is_always_added() -> None:
    with pytest.raises(LayerIdError, match=r"\[0\].*'output' on 36 layers"):
        from_boundaries([0], num_layers=36, convention=Convention.OUTPUT)


@pytest.mark.parametrize("n", [7, 36])
@pytest.mark.parametrize("rule", ["boundary", "output", "hf", "as_is_if_max_is_n", "plus_one_if_first_is_1"])
@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([2, -1], "-1"),
        ([-5, 2], "-5"),
        ([True, 2], "True"),
        ([2.0, 3], "2.0"),
        ([2, 2.5], "2.5"),
        (["2", 3], "'2'"),
        ([None], "None"),
        ([2, 10_000], "10000"),
        ([2**70], str(2**70)),
        ([1, 1], "1"),
        ([[1]], "[1]"),
    ],
)
def test_bad_ids_are_refused_by_name(rule: str, n: int, ids: list[Any], named: str) -> None:
    with pytest.raises(LayerIdError) as caught:
        to_states(ids, num_layers=n, rule=rule)
    message = str(caught.value)
    assert named in message
    assert str(n) in message


@pytest.mark.parametrize("ids", [[], (), "24,30,36", b"\x01", {1, 2}, {1: 2}, 5, 1.5])
def test_what_is_no_list_of_ids_is_refused(ids: Any) -> None:
    with pytest.raises(LayerIdError, match="ids"):
        to_states(ids, num_layers=36, rule="boundary")


@pytest.mark.parametrize(
    ("rule", "highest"), [("boundary", 36), ("output", 35), ("hf", 36), ("as_is_if_max_is_n", 36), ("plus_one_if_first_is_1", 36)]
)
def test_the_message_says_what_would_be_valid(rule: str, highest: int) -> None:
    to_states([highest], num_layers=36, rule=rule)
    with pytest.raises(LayerIdError, match=rf"layer id {highest + 1} .*36.*0\.\.{highest}"):
        to_states([highest + 1], num_layers=36, rule=rule)


@pytest.mark.parametrize("n", range(1, 7))
def test_the_default_needs_seven_layers(n: int) -> None:
    with pytest.raises(LayerIdError, match=rf"at least 7 layers.*{n} layers"):
        eagle3_boundaries(None, n)
    with pytest.raises(LayerIdError, match="at least 7"):
        default_ids(n, convention=Convention.OUTPUT)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "36", None])
def test_the_number_of_layers_is_a_positive_integer(n: Any) -> None:
    with pytest.raises(LayerIdError, match="num_layers"):
        to_states([0], num_layers=n, rule="boundary")


def test_dflash_has_no_default() -> None:
    with pytest.raises(LayerIdError, match="no default"):
        dflash_boundaries(None, 36)


def test_post_norm_is_no_boundary() -> None:
    with pytest.raises(LayerIdError, match=r"POST_NORM.*to_states"):
        to_boundaries([36], num_layers=36, convention=Convention.HF)


def test_exactly_one_of_convention_and_rule() -> None:
    with pytest.raises(LayerIdError, match="exactly one"):
        to_states([1], num_layers=36)
    with pytest.raises(LayerIdError, match="exactly one"):
        to_states([1], num_layers=36, rule="boundary", convention=Convention.BOUNDARY)


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LayerIdError, match=r"'sideways'.*boundary, output"):
        rule_named("sideways")


@pytest.mark.parametrize(
    ("ids", "n", "proven", "hint"),
    [
        ([24, 30, 36], 36, Convention.BOUNDARY, None),
        ([36], 36, Convention.BOUNDARY, None),
        ([2, 18, 33], 36, None, Convention.BOUNDARY),
        ([1, 17, 32], 36, None, Convention.OUTPUT),
        ([1, 17, 33], 36, None, None),
        ([0, 17, 35], 36, None, None),
        ([33, 18, 2], 36, None, None),
        ([1, 29, 57], 61, None, Convention.OUTPUT),
        ([2, 30, 58], 61, None, Convention.BOUNDARY),
    ],
)
def test_only_the_id_n_proves_a_convention(ids: list[int], n: int, proven: Convention | None, hint: Convention | None) -> None:
    inferred = infer_convention(ids, n)
    assert (inferred.convention, inferred.hint) == (proven, hint)
    assert str(n) in inferred.why


def test_ids_that_no_convention_allows_prove_nothing() -> None:
    with pytest.raises(LayerIdError, match=r"37 .*every convention.*36"):
        infer_convention([24, 30, 37], 36)

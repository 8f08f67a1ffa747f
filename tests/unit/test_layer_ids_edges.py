"""The edges of the rules that few targets reach: ids that mean POST_NORM, the last block, the inverse of both, and d2t."""

from __future__ import annotations

import pytest

from specalign.layer_ids import (
    POST_NORM,
    RULES,
    Convention,
    LayerIdError,
    Rule,
    State,
    default_ids,
    eagle3_boundaries,
    from_boundaries,
    infer_convention,
    to_states,
)
from specalign.layer_ids.d2t import holds_token_ids
from specalign.layer_ids.rules import in_layer_order


@pytest.mark.parametrize(
    ("rule", "valid"),
    [
        (RULES["boundary"], "0..36"),
        (RULES["output"], "0..35"),
        (RULES["hf"], "0..36"),
        (RULES["as_is_if_max_is_n"], "0..36"),
        (RULES["hf_output"], "0..35"),
        (RULES["output_n_final"], "0..34 and 36"),
        (RULES["output_or_post_norm"], "-1..35"),
        (RULES["boundary"].narrowed(reaches_n=False), "0..35"),
        (RULES["output"].narrowed(reaches_n=False), "0..34"),
    ],
    ids=lambda value: value.name if isinstance(value, Rule) else value,
)
def test_the_range_of_valid_ids_ends_where_the_rule_does(rule: Rule, valid: str) -> None:
    assert rule.valid_ids(36) == valid


@pytest.mark.parametrize(
    ("rule", "ids", "states"),
    [
        ("output_or_post_norm", (-1, 3, 35), (POST_NORM, 4, 36)),
        ("output_n_final", (2, 34, 36), (3, 35, 36)),
        ("hf_output", (2, 34, 35), (3, 35, POST_NORM)),
        ("hf", (3, 35, 36), (3, 35, POST_NORM)),
    ],
)
def test_the_ends_of_a_target_have_ids_and_the_ids_are_found_back(
    rule: str, ids: tuple[int, ...], states: tuple[State, ...]
) -> None:
    assert to_states(ids, num_layers=36, rule=rule) == states
    assert from_boundaries(states, num_layers=36, rule=rule) == ids


@pytest.mark.parametrize(
    ("rule", "bad"),
    [("output_or_post_norm", -2), ("output_or_post_norm", 36), ("output_n_final", 35), ("output_n_final", 37), ("hf_output", 36)],
)
def test_one_id_further_is_refused(rule: str, bad: int) -> None:
    with pytest.raises(LayerIdError, match=rf"layer id {bad} .*valid ids are {RULES[rule].valid_ids(36)}"):
        to_states([1, bad], num_layers=36, rule=rule)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("k", [0, 34, 35, 36, 37])
def test_tokenspeed_alone_loses_an_id_the_output_of_the_last_block(rule: str, k: int) -> None:
    assert RULES[rule].loses(k, 36) == (rule == "output_n_final" and k == 35)


def test_post_norm_comes_after_every_boundary() -> None:
    assert in_layer_order([POST_NORM, 36, 2, 35], 36) == [2, 35, 36, POST_NORM]
    assert to_states([36, 35, 3], num_layers=36, rule=RULES["hf"].narrowed(order="layer")) == (3, 35, POST_NORM)


def test_post_norm_is_written_as_its_name() -> None:
    assert repr(POST_NORM) == str(POST_NORM) == "POST_NORM"


def test_a_default_can_be_asked_for_by_the_name_of_a_rule() -> None:
    assert default_ids(36, rule="output") == (1, 17, 32)
    assert default_ids(36, rule="boundary") == (2, 18, 33)


def test_eagle3_refuses_an_id_named_twice_unless_told_otherwise() -> None:
    with pytest.raises(LayerIdError, match="id 5 is named twice"):
        eagle3_boundaries([5, 5], 8)


class NoIndexAfterAll:
    """Says that it is an integer, and is not."""

    def __index__(self) -> int:
        raise TypeError("not today")


def test_a_wrong_type_is_named_together_with_the_depth_of_the_target() -> None:
    with pytest.raises(LayerIdError, match=r"True is a bool, not an integer: a 36-layer target takes 0\.\.36"):
        infer_convention([True], 36)
    with pytest.raises(LayerIdError, match=r"NoIndexAfterAll.*not an integer \(not today\); 0\.\.36 would be"):
        to_states([NoIndexAfterAll()], num_layers=36, convention=Convention.OUTPUT)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("table", "vocab", "absolute"),
    [
        ([], 10, False),
        ([9], 10, False),
        ([5, 9], 10, True),  # as an offset, the last entry would give token 1 + 9 of 10
        ([5, 8], 10, False),
        ([1, 5, 8], 10, True),
        ([5, 10], 10, False),  # a token 10 does not exist either
        ([5, 5, 9], 10, False),
        ([-1, 9], 10, False),
        ([0, 5], 1000, False),
        ([0, 1, 2], 1000, False),
        (range(7), 1000, False),
        (range(8), 1000, True),
        (range(1, 9), 1000, False),
        ([0, *range(2, 9)], 1000, False),
        (range(1, 256), 10_000, False),
        (range(1, 257), 10_000, True),
    ],
    ids=str,
)
def test_a_table_counts_as_token_ids_only_on_proof(table: list[int], vocab: int, absolute: bool) -> None:
    assert holds_token_ids(table, vocab) is absolute

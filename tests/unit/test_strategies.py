"""The strategies: what they give is valid or bad as they say, reaches the edges, and shrinks towards what they document."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument, NoSuchExample

from pytest_specalign.strategies import (
    BAD_ID_REASONS,
    CONFIG_FAULTS,
    BadIds,
    bad_layer_ids,
    draft_configs,
    layer_ids,
    num_layers,
)
from pytest_specalign.strategies.ids import ids_taken
from specalign.layer_ids import RULES, LayerIdError

QUICK = settings(max_examples=60, derandomize=True, database=None, deadline=None)
THOROUGH = settings(max_examples=1000, derandomize=True, database=None, deadline=None)
IDS = "eagle_aux_hidden_state_layer_ids"


def never(strategy: st.SearchStrategy[Any], where: Callable[[Any], bool]) -> bool:
    """No example among 200 is like that."""
    return not reaches(strategy, where, within=200)


def reaches(strategy: st.SearchStrategy[Any], where: Callable[[Any], bool], *, within: int) -> bool:
    """Some example among so many is like that. Without shrinking, which takes longer than finding."""
    try:
        find(strategy, where, settings=settings(THOROUGH, max_examples=within, phases=[Phase.generate]))
    except NoSuchExample:
        return False
    return True


def smallest(strategy: st.SearchStrategy[Any], where: Callable[[Any], bool] = lambda value: True) -> Any:
    return find(strategy, where, settings=THOROUGH)


def test_numbers_of_layers_stay_in_bounds_and_shrink_to_the_lowest() -> None:
    assert smallest(num_layers()) == 7
    assert smallest(num_layers(min_value=24, max_value=94)) == 24
    assert smallest(num_layers(), lambda n: n == 128) == 128
    assert never(num_layers(min_value=5, max_value=9), lambda n: not 5 <= n <= 9)


@pytest.mark.parametrize(
    ("rule", "wishes", "expected"),
    [
        ("boundary", {}, [0]),
        ("output", {}, [0]),
        ("as_is_if_max_is_n", {}, [0]),
        ("plus_one_if_first_is_1", {}, [0]),
        ("boundary", {"min_size": 3}, [0, 1, 2]),
        ("boundary", {"reach_n": True}, [36]),
        ("output", {"reach_n": True}, [35]),
        ("as_is_if_max_is_n", {"reach_n": False}, [0]),
        ("boundary", {"sorted": False, "min_size": 2}, [1, 0]),
        ("boundary", {"allow_default": True}, None),
    ],
)
def test_layer_ids_shrink_towards_the_fewest_and_lowest(rule: str, wishes: dict[str, Any], expected: list[int]) -> None:
    assert smallest(layer_ids(36, rule=rule, **wishes)) == expected


@pytest.mark.parametrize("n", [7, 8, 36])
@pytest.mark.parametrize(
    ("rule", "highest"), [("boundary", 0), ("output", -1), ("as_is_if_max_is_n", 0), ("plus_one_if_first_is_1", 0)]
)
def test_layer_ids_are_different_ids_in_range(rule: str, highest: int, n: int) -> None:
    @QUICK
    @given(layer_ids(n, rule=rule, min_size=2, max_size=5))
    def check(ids: list[int]) -> None:
        assert 2 <= len(ids) <= 5
        assert len(set(ids)) == len(ids)
        assert all(type(k) is int and 0 <= k <= n + highest for k in ids)

    check()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_layer_ids_are_what_the_rule_takes(rule: str) -> None:
    @QUICK
    @given(num_layers(min_value=7, max_value=40).flatmap(lambda n: st.tuples(layer_ids(n, rule=rule), st.just(n))))
    def check(call: tuple[list[int], int]) -> None:
        RULES[rule].states(*call)

    check()


@pytest.mark.parametrize(
    "ids", [[0], [1], [35], [36], [2, 18, 33], [1, 17, 32]], ids=["0", "1", "n-1", "n", "boundary-default", "output-default"]
)
def test_layer_ids_reach_the_edges_within_500_examples(ids: list[int]) -> None:
    assert reaches(layer_ids(36, rule="boundary", max_size=3), lambda drawn: drawn == ids, within=500)


def test_layer_ids_sorted_or_not_reaching_n_or_not_as_asked() -> None:
    @QUICK
    @given(
        up=layer_ids(36, rule="boundary", sorted=True),
        not_up=layer_ids(36, rule="boundary", sorted=False, min_size=2),
        with_n=layer_ids(36, rule="boundary", reach_n=True, min_size=2),
        without_n=layer_ids(36, rule="boundary", reach_n=False),
    )
    def check(up: list[int], not_up: list[int], with_n: list[int], without_n: list[int]) -> None:
        assert up == sorted(up)
        assert not_up != sorted(not_up)
        assert 36 in with_n
        assert len(with_n) >= 2
        assert 36 not in without_n

    check()


def test_duplicates_appear_only_where_the_rule_takes_them() -> None:
    def repeated(ids: list[int]) -> bool:
        return len(set(ids)) < len(ids)

    keeping = RULES["boundary"].narrowed(duplicates="keep")
    assert smallest(layer_ids(36, rule=keeping), repeated) == [0, 0]
    assert never(layer_ids(36, rule="boundary"), repeated)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_layer_ids_are_long_now_and_then_and_all_that_a_small_target_has(rule: str) -> None:
    assert reaches(layer_ids(36, rule=rule), lambda ids: len(ids) > 16, within=100)
    assert reaches(layer_ids(7, rule=rule), lambda ids: len(ids) == len(ids_taken(RULES[rule], 7)), within=300)
    assert never(layer_ids(128, rule=rule), lambda ids: len(ids) > 24)


def test_a_long_list_shrinks_to_as_few_ids_as_it_takes() -> None:
    assert sorted(smallest(layer_ids(36, rule="boundary"), lambda ids: len(ids) > 6)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", [set, frozenset, dict, str, bytes, int, float])
def test_bad_ids_come_as_everything_that_is_no_ordered_list(kind: type) -> None:
    assert reaches(bad_layer_ids(36, rule="output"), lambda bad: type(bad.layer_ids) is kind, within=500)


def test_the_default_is_given_only_if_allowed() -> None:
    assert smallest(layer_ids(36, rule="boundary", allow_default=True), lambda ids: ids is None) is None
    assert never(layer_ids(36, rule="boundary"), lambda ids: ids is None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("negative", [-1]),
        ("bool", [False]),
        ("float", [1.0]),
        ("str", ["1"]),
        ("null", [None]),
        ("no ordered list", {0}),
        ("out of range", [37]),
        ("duplicate", [0, 0]),
        ("empty", []),
    ],
)
def test_bad_ids_shrink_to_one_bad_entry(reason: str, expected: list[Any]) -> None:
    assert smallest(bad_layer_ids(36, rule="boundary"), lambda bad: bad.reason == reason) == BadIds(expected, reason)


def test_bad_ids_shrink_to_the_empty_list() -> None:
    assert smallest(bad_layer_ids(36, rule="output")) == BadIds([], "empty")


def test_bad_ids_reach_what_a_rule_never_captures() -> None:
    dense = RULES["output"].narrowed(reaches_n=False)
    assert smallest(bad_layer_ids(36, rule=dense), lambda bad: bad.reason == "unreachable").layer_ids == [35]


_IS_BAD: dict[str, Callable[[Any], bool]] = {
    "negative": lambda ids: any(type(k) is int and k < 0 for k in ids),
    "bool": lambda ids: any(type(k) is bool for k in ids),
    "float": lambda ids: any(type(k) is float for k in ids),
    "str": lambda ids: any(type(k) is str for k in ids),
    "null": lambda ids: None in ids,
    "no ordered list": lambda ids: not isinstance(ids, (list, tuple)),
    "out of range": lambda ids: any(k > 35 for k in ids),
    "duplicate": lambda ids: len(set(ids)) < len(ids),
    "empty": lambda ids: ids == [],
    "unreachable": lambda ids: 35 in ids,
}


def test_bad_ids_are_bad_for_the_reason_they_give() -> None:
    assert set(_IS_BAD) == set(BAD_ID_REASONS)

    @settings(QUICK, max_examples=300)
    @given(bad_layer_ids(36, rule=RULES["output"].narrowed(reaches_n=False)))
    def check(bad: BadIds) -> None:
        assert _IS_BAD[bad.reason](bad.layer_ids)
        with pytest.raises(LayerIdError):
            RULES["output"].narrowed(reaches_n=False).states(bad.layer_ids, 36)

    check()


def test_duplicates_are_no_reason_where_the_rule_keeps_them() -> None:
    keeping = RULES["boundary"].narrowed(duplicates="keep")
    assert never(bad_layer_ids(36, rule=keeping), lambda bad: bad.reason == "duplicate")


def ids_in(config: dict[str, Any]) -> list[Any]:
    nested, dflash = config.get("eagle_config", {}), config.get("dflash_config", {})
    spots = ((nested, IDS), (config, IDS), (dflash, "target_layer_ids"))
    return [home[key] for home, key in spots if key in home]


def test_configs_shrink_to_three_nested_ids_and_nothing_else() -> None:
    config = find(draft_configs(), lambda config: True, settings=settings(THOROUGH, max_examples=100))
    assert config["eagle_config"] == {IDS: [0, 1, 2], "use_aux_hidden_state": True}
    assert (config["hidden_size"], config["rope_scaling"], config["draft_vocab_size"]) == (2048, None, config["vocab_size"])
    assert not {"norm_before_fc", "fc_norm", IDS, "dflash_config", "num_aux_hidden_states"} & set(config)


@pytest.mark.parametrize(("place", "count"), [("nested", 1), ("top", 1), ("both", 2), ("dflash", 1)])
def test_valid_configs_state_valid_ids_where_asked(place: str, count: int) -> None:
    @QUICK
    @given(draft_configs(num_layers=36, place=place))
    def check(config: dict[str, Any]) -> None:
        stated = ids_in(config)
        assert len(stated) == count
        assert all(ids == sorted(set(stated[0])) and ids[0] >= 0 and ids[-1] <= 36 for ids in stated)
        assert (IDS in config) == (place in ("top", "both"))
        assert ("dflash_config" in config) == (place == "dflash")
        flags = (config.get("norm_before_fc") or config.get("eagle_config", {}).get("norm_before_fc"), config.get("fc_norm"))
        assert not all(flags)
        if place != "dflash":
            assert config.get("num_aux_hidden_states", 3) == len(stated[0])
        assert json.loads(json.dumps(config)) == config

    check()


@pytest.mark.parametrize("wanted", ["rope_parameters", "rope_scaling", "norm_before_fc", "fc_norm", "target_hidden_size"])
def test_valid_configs_vary(wanted: str) -> None:
    assert reaches(draft_configs(), lambda config: bool(config.get(wanted)), within=200)


def heads(config: dict[str, Any]) -> int:
    return config["num_attention_heads"] * config["head_dim"]


_SHOWS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "ids-missing": lambda c: ids_in(c) == [],
    "ids-null": lambda c: set(map(str, ids_in(c))) == {"None"},
    "ids-empty": lambda c: all(ids == [] for ids in ids_in(c)),
    "ids-negative": lambda c: min(ids_in(c)[0]) < 0,
    "ids-not-integers": lambda c: any(type(k) is not int for k in ids_in(c)[0]),
    "ids-out-of-range": lambda c: max(ids_in(c)[0]) > 36,
    "ids-duplicated": lambda c: len(set(ids_in(c)[0])) < len(ids_in(c)[0]),
    "ids-unsorted": lambda c: ids_in(c)[0] != sorted(ids_in(c)[0]),
    "ids-differ-by-place": lambda c: c["eagle_config"][IDS] != c[IDS],
    "ids-top-level-only-and-wide": lambda c: len(c[IDS]) == 4 and IDS not in c.get("eagle_config", {}),
    "count-differs-from-ids": lambda c: c["num_aux_hidden_states"] != len(ids_in(c)[0]),
    "aux-states-switched-off": lambda c: c["eagle_config"]["use_aux_hidden_state"] is False,
    "both-norms": lambda c: c["norm_before_fc"] is True and c["fc_norm"] is True,
    "norm-flag-differs-by-place": lambda c: c["norm_before_fc"] is not c["eagle_config"]["norm_before_fc"],
    "target-hidden-size-null": lambda c: "target_hidden_size" in c and c["target_hidden_size"] is None,
    "draft-vocab-too-large": lambda c: c["draft_vocab_size"] > c["vocab_size"],
    "rope-differs-by-place": lambda c: c["rope_theta"] != c["rope_parameters"]["rope_theta"],
    "head-dim-not-hidden-over-heads": lambda c: heads(c) != c["hidden_size"],
    "sliding-window": lambda c: c["sliding_window"] > 0 and set(c["layer_types"]) == {"sliding_attention"},
    "eagle-architecture": lambda c: c["architectures"] == ["LlamaForCausalLMEagle"],
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_broken_configs_show_their_fault_and_valid_ones_do_not(fault: str) -> None:
    shows = _SHOWS[fault]

    @QUICK
    @given(draft_configs(num_layers=36, broken=fault))
    def check(config: dict[str, Any]) -> None:
        assert shows(config)
        json.dumps(config)

    @QUICK
    @given(draft_configs(num_layers=36, place="both"))
    def check_valid(config: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError):
            assert not shows(config)

    check()
    check_valid()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: num_layers(min_value=0), "min_value=0"),
        (lambda: num_layers(max_value=True), "max_value=True"),
        (lambda: num_layers(min_value=9, max_value=8), "min_value=9 is above max_value=8"),
        (lambda: layer_ids(0, rule="boundary"), "num_layers=0"),
        (lambda: layer_ids(8, rule="sideways"), "rule='sideways'"),
        (lambda: layer_ids(8, rule="boundary", min_size=0), "min_size=0"),
        (lambda: layer_ids(8, rule="boundary", min_size=3, max_size=2), "min_size=3 is above max_size=2"),
        (lambda: layer_ids(2, rule="output", min_size=3), "min_size=3"),
        (lambda: layer_ids(1, rule=RULES["output"].narrowed(reaches_n=False)), "num_layers=1"),
        (lambda: layer_ids(6, rule="boundary", allow_default=True), "allow_default=True"),
        (lambda: layer_ids(8, rule="hf", reach_n=True), "reach_n=True"),
        (lambda: layer_ids(8, rule="boundary", sorted=False, max_size=1), "sorted=False"),
        (lambda: bad_layer_ids(-1, rule="boundary"), "num_layers=-1"),
        (lambda: draft_configs(num_layers="36"), "num_layers='36'"),
        (lambda: draft_configs(place="attic"), "place='attic'"),
        (lambda: draft_configs(broken="beyond repair"), "broken='beyond repair'"),
        (lambda: draft_configs(broken="both-norms", place="dflash"), "broken='both-norms'"),
        (lambda: draft_configs(min_ids=4, max_ids=3), "min_ids=4 is above max_ids=3"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], st.SearchStrategy[Any]], named: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{named}"):
        make()

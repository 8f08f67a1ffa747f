"""Each property of a contract fails on the fault it is there for; the faults here have no public report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_specalign.contracts import ConfigIdsContract, LayerIdContract, run_contract
from pytest_specalign.contracts.base import Contract
from specalign.layer_ids import RULES
from tests.faults import right
from tests.faults.runner import FAST


def fails(contract: type[Contract], property_name: str, **body: Any) -> str:
    """The message of a property that must fail."""
    functions = {key: staticmethod(value) if key in METHODS else value for key, value in body.items()}
    cls = type("Broken", (contract,), {"settings": FAST, **functions})
    result = run_contract(cls)
    assert property_name in result.failed, result.format()
    return result.failed[property_name]


METHODS = {"convert", "convert_dflash", "read_layer_ids", "fc_in_features"}


def test_a_boundary_outside_of_the_target_is_caught() -> None:
    message = fails(
        LayerIdContract, "test_stays_inside_the_target", rule="boundary", convert=lambda ids, n: [k + 1 for k in ids or ()]
    )
    assert "boundaries 0.." in message


def sort_in_place(ids: Any, n: int) -> list[int]:
    if ids is None:
        return right.default(n)
    ids.sort()
    return right.boundary(ids, n)


def same_list(ids: Any, n: int) -> list[int]:
    right.boundary(ids, n)
    return right.default(n) if ids is None else ids


def shared_default() -> Callable[[Any, int], list[int]]:
    kept: dict[int, list[int]] = {}
    return lambda ids, n: kept.setdefault(n, right.default(n)) if ids is None else right.boundary(ids, n)


@pytest.mark.parametrize(
    ("convert", "says"),
    [(sort_in_place, "changed its input"), (same_list, "returned its input"), (shared_default(), "after the caller changed")],
)
def test_a_changed_or_shared_list_is_caught(convert: Callable[[Any, int], Any], says: str) -> None:
    rule = RULES["boundary"].narrowed(order="layer") if convert is sort_in_place else "boundary"
    assert says in fails(LayerIdContract, "test_leaves_its_input_alone", rule=rule, convert=convert)


def test_two_paths_that_disagree_are_caught() -> None:
    message = fails(
        LayerIdContract,
        "test_dflash_agrees_with_eagle3",
        rule="as_is_if_max_is_n",
        convert=right.gpt_oss,
        convert_dflash=lambda ids, n: right.gpt_oss(right.dflash(ids, n), n),
    )
    assert "both must be" in message


def test_a_crash_is_no_refusal_unless_it_is_declared_one() -> None:
    def convert(ids: Any, n: int) -> list[int]:
        try:
            return right.boundary(ids, n)
        except ValueError as error:
            raise IndexError(str(error)) from None

    assert "IndexError" in fails(LayerIdContract, "test_refuses_bad_ids", rule="boundary", convert=convert)
    body = {"rule": "boundary", "convert": staticmethod(convert), "rejects": (IndexError,), "settings": FAST}
    assert run_contract(type("Declared", (LayerIdContract,), body)).ok


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (lambda ids: set(ids), "no ordered list"),
        (lambda ids: None, "no ordered list"),
        (lambda ids: [float(k) for k in ids], ".0"),
    ],
)
def test_what_is_no_list_of_integers_is_caught(result: Callable[[Any], Any], shown: str) -> None:
    message = fails(
        LayerIdContract, "test_matches_the_rule", rule="boundary", convert=lambda ids, n: result(right.boundary(ids, n))
    )
    assert shown in message


def test_a_default_where_the_rule_has_none_is_caught() -> None:
    none = RULES["output"].narrowed(refuse_default=True)
    message = fails(LayerIdContract, "test_none_is_the_explicit_default", rule=none, convert=right.output)
    assert "no default" in message


def test_valid_ids_that_are_refused_are_caught() -> None:
    message = fails(LayerIdContract, "test_matches_the_rule", rule="boundary", convert=right.output_up_to_n_minus_1)
    assert "ValueError" in message


def test_a_reader_that_hands_out_its_own_list_is_caught() -> None:
    def read(config: dict[str, Any]) -> Any:
        nested = (config.get("eagle_config") or {}).get(right.IDS)
        return config.get(right.IDS) if nested is None else nested

    assert "own list" in fails(ConfigIdsContract, "test_leaves_the_config_alone", read_layer_ids=read)


def test_a_reader_may_refuse_ids_named_twice() -> None:
    def read(config: dict[str, Any]) -> Any:
        ids = right.read_ids(config)
        if ids is not None and len(set(ids)) < len(ids):
            raise ValueError(f"{ids} names an id twice")
        return ids

    def width(config: dict[str, Any], hidden: int) -> int:
        return len(read(config) or (0, 0, 0)) * hidden

    methods = {"read_layer_ids": staticmethod(read), "fc_in_features": staticmethod(width)}
    assert run_contract(type("Refusing", (ConfigIdsContract,), {"settings": FAST, **methods})).ok


@pytest.mark.parametrize("as_read", [lambda k: k == 1 or k, str, lambda k: [k]], ids=["bool", "text", "lists"])
def test_a_reader_that_hands_on_anything_but_integers_is_caught(as_read: Callable[[int], Any]) -> None:
    def read(config: dict[str, Any]) -> Any:
        ids = right.read_ids(config)
        return ids and [as_read(k) for k in ids]

    fails(ConfigIdsContract, "test_reads_each_source", read_layer_ids=read)


def test_a_fault_that_nobody_reported_is_called_unknown() -> None:
    message = fails(
        LayerIdContract, "test_matches_the_rule", rule="boundary", convert=lambda ids, n: right.boundary(ids, n)[::-1]
    )
    assert "looks like: no known fault" in message
    assert "first difference: position 0" in message

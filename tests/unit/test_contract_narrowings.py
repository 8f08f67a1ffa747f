"""The contract never fails right code: every rule, narrowed in every way, on shallow and deep targets, passes it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import Phase, settings

from pytest_specalign.contracts import ContractResult, LayerIdContract, run_contract
from specalign.layer_ids import RULES, Rule

# The first example of each property is the smallest: the shallowest target of the range.
FEW = settings(max_examples=2, derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate))
NARROWINGS = [
    {"order": order, "duplicates": duplicates, "reaches_n": reaches_n, "refuse_default": refuse_default}
    for order, duplicates, reaches_n, refuse_default in itertools.product(
        ("config", "layer"), ("refuse", "keep", "collapse"), (True, False), (False, True)
    )
]


def result(rule: Rule, depths: tuple[int, int], *, dflash: bool = False) -> ContractResult:
    """What the contract says of the rule itself."""

    def convert(ids: Any, n: int) -> Any:
        return list(rule.states(ids, n))

    own = {"rule": rule, "dflash_rule": rule, "num_layers_range": depths, "settings": FEW, "convert": staticmethod(convert)}
    twice = {"convert_dflash": staticmethod(convert)} if dflash else {}
    return run_contract(type("Right", (LayerIdContract,), {**own, **twice}))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_narrowed_in_any_way_passes_its_own_contract(name: str) -> None:
    for narrowing in NARROWINGS:
        found = result(RULES[name].narrowed(**narrowing), (1, 40))
        assert found.ok, f"{name} {narrowing}\n{found.format()}"


@pytest.mark.parametrize("depths", [(1, 7), (7, 7), (36, 36), (7, 128)], ids=str)
def test_a_rule_passes_in_any_range_of_depths(depths: tuple[int, int]) -> None:
    for rule in RULES.values():
        found = result(rule.narrowed(reaches_n=False), depths, dflash=True)
        assert found.ok, f"{rule.name}\n{found.format()}"

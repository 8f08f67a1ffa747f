"""Runs a contract on a mutant without pytest: few examples, always the same, no shrinking."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from pytest_specalign.contracts import Contract, ContractResult, run_contract
from tests.faults.mutants import Mutant

FAST = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


def run_broken(mutant: Mutant) -> ContractResult:
    return run_contract(_implementation(mutant, {**mutant.right, **mutant.broken}))


def run_right(mutant: Mutant) -> ContractResult:
    return _run_right(mutant.contract, tuple(mutant.declares.items()), tuple(mutant.right.items()))


@functools.cache
def _run_right(contract: type[Contract], declares: tuple[Any, ...], methods: tuple[Any, ...]) -> ContractResult:
    """Many mutants share one right implementation: it runs once."""
    return run_contract(_class(contract, dict(declares), dict(methods)))


def _implementation(mutant: Mutant, methods: dict[str, Callable[..., Any]]) -> type[Contract]:
    return _class(mutant.contract, mutant.declares, methods)


def _class(contract: type[Contract], declares: dict[str, Any], methods: dict[str, Callable[..., Any]]) -> type[Contract]:
    body = {name: staticmethod(function) for name, function in methods.items()}
    return type("Implementation", (contract,), {**declares, **body, "settings": FAST})

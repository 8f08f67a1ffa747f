"""A fault as a small broken implementation: what it breaks, and what must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from pytest_specalign.contracts import ConfigIdsContract, Contract, LayerIdContract
from tests.faults import right

UNKNOWN: Final = "no known fault"
"""The diagnosis of a fault that no small function can stand for: the message shows the difference and names none."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        row: in the fault list.
        what: what the broken code does, for the table.
        reference: the public report.
        contract: the contract that must catch it.
        declares: the class attributes of the contract.
        right: the methods of a right implementation.
        broken: the methods that the fault replaces.
        diagnosis: the known fault that the message must name first, or `UNKNOWN`.
        killed_by: the property that must fail.
    """

    row: str
    what: str
    reference: str
    contract: type[Contract]
    declares: dict[str, Any]
    right: dict[str, Callable[..., Any]]
    broken: dict[str, Callable[..., Any]]
    diagnosis: str
    killed_by: str

    @property
    def id(self) -> str:
        return f"{self.row}-{self.diagnosis}"


def converts(
    row: str,
    what: str,
    reference: str,
    rule: Any,
    correct: Callable[..., Any],
    faulty: Callable[..., Any],
    diagnosis: str,
    killed_by: str = "test_matches_the_rule",
    **declares: Any,
) -> Mutant:
    declared = {"rule": rule, **declares}
    return Mutant(
        row, what, reference, LayerIdContract, declared, {"convert": correct}, {"convert": faulty}, diagnosis, killed_by
    )


def dflash_path(row: str, what: str, reference: str, faulty: Callable[..., Any], diagnosis: str) -> Mutant:
    """An engine whose EAGLE3 path is right and whose DFlash path is not."""
    replaced = {"convert_dflash": faulty}
    methods = {"convert": right.boundary, "convert_dflash": right.dflash}
    return Mutant(
        row, what, reference, LayerIdContract, {"rule": "boundary"}, methods, replaced, diagnosis, "test_dflash_matches_its_rule"
    )


def reads(row: str, what: str, reference: str, faulty: Callable[..., Any], diagnosis: str, killed_by: str) -> Mutant:
    methods = {"read_layer_ids": right.read_ids, "fc_in_features": right.fc_width}
    replaced = "fc_in_features" if "width" in killed_by else "read_layer_ids"
    return Mutant(row, what, reference, ConfigIdsContract, {}, methods, {replaced: faulty}, diagnosis, killed_by)

"""Runs one property of a torch contract on a mutant: all of them on every mutant would take minutes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specalign.contracts import run_contract
from tests.faults.mutant import Mutant
from tests.faults.runner import FAST


def killing_message(mutant: Mutant) -> str | None:
    """What the property says that must fail, or None if it holds."""
    names = [f"test_{name.removeprefix('check_')}" for name in dir(mutant.contract) if name.startswith("check_")]
    methods = {name: staticmethod(function) for name, function in {**mutant.right, **mutant.broken}.items()}
    others = dict.fromkeys(name for name in names if name != mutant.killed_by)
    body = {**mutant.declares, **methods, **others, "settings": FAST}
    return run_contract(type("Implementation", (mutant.contract,), body)).failed.get(mutant.killed_by)


def lines(mutants: Sequence[Mutant]) -> list[str]:
    """Three lines for each mutant: the fault, what killed it, and the head of the message."""
    found = []
    for mutant in mutants:
        message = killing_message(mutant)
        found.append(f"{mutant.row:>8}  {mutant.what}  [{mutant.reference}]")
        if message is None:
            found.append(f"          SURVIVED {mutant.killed_by}")
        else:
            found += [
                f"          killed by {mutant.contract.__name__}.{mutant.killed_by}",
                f"          {message.splitlines()[0]}",
            ]
    return found

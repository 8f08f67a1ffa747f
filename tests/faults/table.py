"""Prints every public fault with what catches it: `python -m tests.faults.table`, exit 1 if one survives.

Faults of capturing, of draft heads and of routing need torch. Where it is not installed, the last line says that they were not run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.runner import run_broken


def lines(mutants: Sequence[Mutant]) -> list[str]:
    """Three lines for each mutant: the fault, what killed it, and the head of the message."""
    return [line for mutant in mutants for line in _lines(mutant)]


def _lines(mutant: Mutant) -> list[str]:
    failed = run_broken(mutant).failed
    message = failed.get(mutant.killed_by)
    if message is None:
        return [f"{mutant.row:>7}  {mutant.what}  [{mutant.reference}]", f"         SURVIVED {mutant.killed_by}"]
    others = len(failed) - 1
    also = f" and {others} more" if others else ""
    return [
        f"{mutant.row:>7}  {mutant.what}  [{mutant.reference}]",
        f"         killed by {mutant.contract.__name__}.{mutant.killed_by}{also}",
        f"         {message.splitlines()[0]}",
    ]


def main() -> int:
    shown = [*lines(MUTANTS), *_torch_lines()]
    faults = len(shown) - sum(line.startswith(" " * 9) for line in shown)
    survivors = sum("SURVIVED" in line for line in shown)
    print("\n".join(shown))
    print(f"{faults} faults, {faults - survivors} killed, {survivors} survived")
    if not _has_torch():
        print("NOT RUN: the faults of capturing, of draft heads and of routing need torch, which is not installed")
    return 1 if survivors else 0


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _torch_lines() -> list[str]:
    if not _has_torch():
        return []
    from tests.faults import torch_runner
    from tests.faults.capture_mutants import CAPTURE_MUTANTS
    from tests.faults.draft_mutants import DRAFT_MUTANTS
    from tests.faults.routing_mutants import ROUTING_MUTANTS

    return torch_runner.lines((*CAPTURE_MUTANTS, *DRAFT_MUTANTS, *ROUTING_MUTANTS))


if __name__ == "__main__":
    sys.exit(main())

"""Prints every public fault of layer-id code with what catches it: `python -m tests.faults.table`, exit 1 if one survives.

Row 23 of the fault list, ids lost on earlier pipeline stages, is left out: it is a fault of capturing, not of converting ids.
"""

from __future__ import annotations

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
    shown = lines(MUTANTS)
    survivors = sum("SURVIVED" in line for line in shown)
    print("\n".join(shown))
    print(f"{len(MUTANTS)} faults, {len(MUTANTS) - survivors} killed, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""`diagnose`: which known fault a wrong layer-id conversion looks like.

A fault is named only if it gives exactly what the implementation under test gave, and gives something other than the rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from pytest_specalign.contracts.known_faults import KNOWN_FAULTS, Ids, KnownFault, Outcome, Raised, expected_outcome
from specalign.layer_ids import POST_NORM, Rule


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """The known faults that give exactly the observed result, the most consistent first."""

    faults: tuple[KnownFault, ...]

    @property
    def name(self) -> str | None:
        """The fault that explains most, or None."""
        return self.faults[0].name if self.faults else None

    def format(self) -> str:
        """Indented lines for a failure message: what it looks like and what to do next."""
        if not self.faults:
            return (
                "  looks like: no known fault\n  next: make this one call by hand and compare it with the rule, state by state."
            )
        first, *others = self.faults
        lines = [f"  looks like: {first.format()}", f"  next: {first.remedy}"]
        if others:
            lines.insert(1, f"  less likely: {', '.join(fault.name for fault in others)}")
        return "\n".join(lines)


Observation: TypeAlias = tuple[Ids, int, Outcome]
"""Ids, number of layers, and what the implementation under test made of them."""

PROBES: Final[tuple[tuple[Ids, int], ...]] = (
    (None, 36),
    ([1, 17, 32], 36),
    ([2, 18, 33], 36),
    ([24, 30, 36], 36),
    ([2, 30, 58], 61),
    ([7, 23, 51, 67, 83], 93),
    ([3, 11, 19, 27, 31], 32),
    ([29, 2, 16], 36),
    ([2, 2, 5], 36),
    ([0], 8),
    ([7], 8),
    ([8], 8),
    ([1, 8], 8),
    ([1, 3, 8], 8),
    ([-1], 8),
)
"""Calls that tell the known faults apart."""


def diagnose(rule: Rule, ids: Ids, num_layers: int, got: Outcome, *, observations: Iterable[Observation] = ()) -> Diagnosis:
    """Which known faults would give exactly `got` for `ids`.

    Args:
        rule: what should have happened; a fault that agrees with the rule here explains nothing and is left out.
        ids: the ids of the failing call, or None.
        num_layers: n of the failing call.
        got: what came back.
        observations: more calls of the same implementation, for instance over `PROBES`. Faults that explain more of them come
            first. A fault need not explain all, since an implementation may have two; one that explains less than half is
            left out.
    """
    seen = list(observations)
    right = expected_outcome(rule, ids, num_layers)
    made = [(fault, fault.outcome(rule, ids, num_layers)) for fault in KNOWN_FAULTS]
    fitting = [fault for fault, outcome in made if explains(outcome, got, num_layers) and not same_outcome(outcome, right)]
    agreement = {fault.name: _agreement(fault, rule, seen) for fault in fitting}
    likely = [fault for fault in fitting if 2 * agreement[fault.name] >= len(seen)]
    return Diagnosis(tuple(sorted(likely, key=lambda fault: -agreement[fault.name])))


def _agreement(fault: KnownFault, rule: Rule, observations: Sequence[Observation]) -> int:
    return sum(explains(fault.outcome(rule, ids, n), got, n) for ids, n, got in observations)


def same_outcome(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are the same: equal states, two refusals, or two crashes of one kind."""
    if isinstance(one, Raised) and isinstance(other, Raised):
        return one.kind is other.kind or (one.is_refusal and other.is_refusal)
    return one == other


def explains(faulty: Outcome, got: Outcome, num_layers: int) -> bool:
    """Whether code with the fault gave `got`. It may have noticed states outside 0..n and refused them."""
    refused = isinstance(got, Raised) and got.is_refusal
    return same_outcome(faulty, got) or (refused and _outside(faulty, num_layers))


def _outside(states: object, num_layers: int) -> bool:
    return isinstance(states, tuple) and any(s is not POST_NORM and not _is_boundary(s, num_layers) for s in states)


def _is_boundary(state: object, num_layers: int) -> bool:
    return isinstance(state, int) and 0 <= state <= num_layers

"""What the known faults of capturing hand on: for each one the faulty code in little, in words of `Value`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.probe import Value, value_of
from specalign.layer_ids import POST_NORM, State

if TYPE_CHECKING:
    from pytest_specalign.contracts.capture_cases import CaptureCase

Captured: TypeAlias = tuple[Value, ...] | Raised
"""What a capture handed on, in order, or the exception."""


def _values(states: Iterable[State]) -> tuple[Value, ...]:
    return tuple(value_of(state) for state in states)


def _boundaries(case: CaptureCase) -> list[int]:
    return [state for state in case.declared.arranged(case.states) if state is not POST_NORM]


def _each(case: CaptureCase, change: Callable[[int], Value]) -> Captured:
    """Every boundary 1..n changed; boundary 0 and POST_NORM as they are."""
    states = case.declared.arranged(case.states)
    return tuple(value_of(s) if s is POST_NORM or s == 0 else change(s) for s in states)


def shifted(by: int) -> Callable[[CaptureCase], Captured]:
    def looks_like(case: CaptureCase) -> Captured:
        states = [s if s is POST_NORM else s + by for s in case.declared.arranged(case.states)]
        return _values(s for s in states if s is POST_NORM or 0 <= s <= case.layout.num_layers)

    return looks_like


def one_late_then_dropped(case: CaptureCase) -> Captured:
    return _values(b + 1 for b in _boundaries(case) if b + 1 < case.layout.num_layers)


def last_dropped(case: CaptureCase) -> Captured:
    return _values(s for s in case.declared.arranged(case.states) if s != case.layout.num_layers)


def index_error(case: CaptureCase) -> Captured:
    blocks = list(range(case.layout.num_layers))
    return _values(blocks[b] for b in _boundaries(case))


def normed_last(case: CaptureCase) -> Captured:
    states = case.declared.arranged(case.states)
    return _values(POST_NORM if s == case.layout.num_layers else s for s in states)


def un_normed_last(case: CaptureCase) -> Captured:
    states = case.declared.arranged(case.states)
    return _values(case.layout.num_layers if s is POST_NORM else s for s in states)


def default(case: CaptureCase) -> Captured:
    n = case.layout.num_layers
    return _values((2, n // 2, n - 3))


def every_state(case: CaptureCase) -> Captured:
    return _values(range(case.layout.num_layers + 1))


def every_hf_state(case: CaptureCase) -> Captured:
    return _values([*range(case.layout.num_layers), POST_NORM])


def in_layer_order(case: CaptureCase) -> Captured:
    return _values(dataclasses.replace(case.declared, order="layer").arranged(case.states))


def collapsed(case: CaptureCase) -> Captured:
    return _values(dataclasses.replace(case.declared, duplicates="collapse").arranged(case.states))


def sorted_and_collapsed(case: CaptureCase) -> Captured:
    return _values(dataclasses.replace(case.declared, order="layer", duplicates="collapse").arranged(case.states))


def from_the_end(case: CaptureCase) -> Captured:
    n = case.layout.num_layers
    return _values(s if s is POST_NORM or s >= 0 else n + 1 + s for s in case.states)


def out_of_range_dropped(case: CaptureCase) -> Captured:
    return _values(s for s in case.states if s is POST_NORM or 0 <= s <= case.layout.num_layers)


def without_residual(case: CaptureCase) -> Captured:
    return _each(case, lambda b: Value("hidden", b))


def residual_only(case: CaptureCase) -> Captured:
    return _each(case, lambda b: Value("residual", b))


def aliased(case: CaptureCase) -> Captured:
    """What the stream's own tensors hold once the forward is over."""
    states, n = case.declared.arranged(case.states), case.layout.num_layers
    plain = case.layout.style == "plain"
    if case.layout.in_place == "scratch":
        return tuple(Value("stained", s) if s is not POST_NORM and (plain or s == 0) else value_of(s) for s in states)
    if plain:
        return _values(s if s is POST_NORM else n for s in states)
    return tuple(Value("residual", n) if s == 0 else value_of(s) for s in states)


def aliased_and_not_normed(case: CaptureCase) -> Captured:
    """The same where the final norm, which may spoil boundary n, is not run."""
    seen, last = aliased(case), case.layout.num_layers
    return tuple(Value("boundary", last) if value == Value("stained", last) else value for value in _states(seen))


def _states(captured: Captured) -> tuple[Value, ...]:
    return captured if isinstance(captured, tuple) else ()


def unreduced(case: CaptureCase) -> Captured:
    return _each(case, lambda b: Value("partial", b, case.rank))


def ungathered(case: CaptureCase) -> Captured:
    return _each(case, lambda b: Value("rows", b, case.rank))


def last_stage_only(case: CaptureCase) -> Captured:
    """The first boundary of the last stage counts as its own or not: both have been seen."""
    return _values(s for s in case.declared.arranged(case.states) if s is POST_NORM or s > case.cuts[-1])


def last_stage_and_its_edge(case: CaptureCase) -> Captured:
    return _values(s for s in case.declared.arranged(case.states) if s is POST_NORM or s >= case.cuts[-1])


def local_numbers(case: CaptureCase) -> Captured:
    """Every stage counts its boundaries from 0."""
    edges = [0, *case.cuts, case.layout.num_layers]
    stages = list(itertools.pairwise(edges))
    asked = case.declared.arranged(case.states)
    found = [start + s for start, end in stages for s in asked if s is not POST_NORM and s < end - start + (end == edges[-1])]
    return _values([*found, *(s for s in asked if s is POST_NORM)])


def edge_twice(case: CaptureCase) -> Captured:
    states = case.declared.arranged(case.states)
    return _values(s for state in states for s in [state] * (2 if state in case.cuts else 1))


def edge_lost(case: CaptureCase) -> Captured:
    return _values(s for s in case.declared.arranged(case.states) if s not in case.cuts)

"""From ids to the states that arrive, as one engine does it."""

from __future__ import annotations

import dataclasses

from specalign.layer_ids.conventions import POST_NORM, State
from specalign.layer_ids.engine_profiles import CaptureProfile
from specalign.layer_ids.engines import dflash_even
from specalign.layer_ids.rules import default_boundaries, in_layer_order


@dataclasses.dataclass(frozen=True, slots=True)
class Captured:
    """What an engine makes of a list of ids.

    Attributes:
        named: the states that the ids name, one for one; numbers above n may be there.
        states: the states that arrive, in the order in which they are concatenated.
        lost: named states that never arrive.
        error: what happens in place of serving, or "".
    """

    named: tuple[State, ...] = ()
    states: tuple[State, ...] = ()
    lost: tuple[State, ...] = ()
    error: str = ""


def capture_ids(
    capture: CaptureProfile,
    ids: tuple[int, ...] | None,
    num_layers: int,
    *,
    place: str | None = None,
    draft_layers: int | None = None,
) -> Captured:
    """What the engine makes of `ids` (None: none were given) that it read from `place`; nothing is refused on our side."""
    n, rule = num_layers, capture.rule_for(place)
    if ids is None and n < capture.default_needs:
        return Captured(error=f"an error: the default needs {capture.default_needs} layers")
    if ids is None and capture.default == "rule" and rule.default_offset is not None:
        offset = rule.default_offset
        return _arrive(capture, tuple(b + offset for b in default_boundaries(n)), (), n)
    if ids is None and capture.default == "dflash-even" and draft_layers:
        ids = dflash_even(n, draft_layers)
    if ids is None:
        return Captured(error="ValueError: no ids in the config, and no default here")
    named = rule.named(ids, n)
    if capture.range_checked and place != "dspark_target_layer_ids" and not all(0 <= k < n for k in ids):
        return Captured(named, error=f"ValueError: ids must lie in 0..{n - 1}")
    if capture.exactly and len(ids) != capture.exactly:
        return Captured(named, error=f"an error for {len(ids)} ids: it takes exactly {capture.exactly}")
    return _arrive(capture, named, tuple(state for k, state in zip(ids, named, strict=True) if rule.loses(k, n)), n)


def _arrive(capture: CaptureProfile, named: tuple[State, ...], lost_by_rule: tuple[State, ...], n: int) -> Captured:
    lowest, highest = (0 if capture.boundary_0 in ("", "aliased") else 1), {"n": n, "n-1": n - 1, "none": -1}[capture.reach]
    lost = tuple(b for b in named if b in lost_by_rule or (b is not POST_NORM and not lowest <= b <= highest))
    for b in lost:
        fate = capture.boundary_0 if b == 0 and lowest else capture.unreachable
        if fate != "dropped":
            return Captured(named, (), lost, fate)
    kept = [b for b in named if b not in lost]
    if len(set(kept)) < len(kept) and capture.duplicates == "error":
        return Captured(named, (), lost, "an error for an id that is named twice")
    if capture.duplicates == "collapse":
        kept = list(dict.fromkeys(kept))
    return Captured(named, tuple(in_layer_order(kept, n) if capture.order == "layer" else kept), lost)

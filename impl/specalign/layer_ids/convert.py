"""Conversion between layer ids and states: the functions of this room that most users call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from specalign.layer_ids.conventions import POST_NORM, Convention, State, check_ids, check_num_layers, format_states
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.rules import CONVENTION_RULES, RULES, Rule, default_boundaries, rule_named


def to_states(
    ids: Sequence[int] | None,
    *,
    num_layers: int,
    convention: Convention | None = None,
    rule: Rule | str | None = None,
    duplicates: Literal["refuse", "keep"] | None = None,
) -> tuple[State, ...]:
    """The states that `ids` name, in the order of `ids`.

    Args:
        ids: layer ids, or None for the default of the convention or rule.
        num_layers: n, the number of layers of the target.
        convention: what an id means; or
        rule: what an engine does with the list: a `Rule` or a name out of `RULES`. Exactly one of the two.
        duplicates: overrides what the rule does with a state that is named twice.

    Raises:
        LayerIdError: see `Rule.states`; also when neither or both of `convention` and `rule` are given.
    """
    chosen = _chosen_rule(convention, rule)
    if duplicates is not None:
        chosen = chosen.narrowed(duplicates=duplicates)
    return chosen.states(ids, num_layers)


def to_boundaries(
    ids: Sequence[int] | None,
    *,
    num_layers: int,
    convention: Convention | None = None,
    rule: Rule | str | None = None,
    duplicates: Literal["refuse", "keep"] | None = None,
) -> tuple[int, ...]:
    """`to_states` where every state is a boundary.

    Raises:
        LayerIdError: as `to_states`, and when a state is `POST_NORM`, which is no boundary.
    """
    states = to_states(ids, num_layers=num_layers, convention=convention, rule=rule, duplicates=duplicates)
    boundaries = tuple(state for state in states if state is not POST_NORM)
    if len(boundaries) != len(states):
        raise LayerIdError(
            f"{format_states(states)} holds POST_NORM, which is no boundary: call to_states, or name boundary {num_layers},"
            " the stream before the final norm, under the convention BOUNDARY"
        )
    return boundaries


def from_boundaries(
    boundaries: Sequence[State],
    *,
    num_layers: int,
    convention: Convention | None = None,
    rule: Rule | str | None = None,
) -> tuple[int, ...]:
    """The ids that give `boundaries` (states are taken too) under a convention or rule: the inverse of `to_states`.

    Raises:
        LayerIdError: no list of ids gives them, for instance boundary 0 where 1 is always added.
    """
    return _chosen_rule(convention, rule).ids_for(boundaries, num_layers)


def default_ids(num_layers: int, *, convention: Convention | None = None, rule: Rule | str | None = None) -> tuple[int, ...]:
    """The explicit ids that stand for the default: [2, n//2, n-3] for BOUNDARY, [1, n//2-1, n-4] for OUTPUT.

    Raises:
        LayerIdError: no default, or a target of fewer than 7 layers.
    """
    return _chosen_rule(convention, rule).explicit_default(num_layers)


def eagle3_boundaries(
    layer_ids: Sequence[int] | None, num_layers: int, *, duplicates: Literal["refuse", "keep"] = "refuse"
) -> tuple[int, ...]:
    """The EAGLE3 layer-id rule of SGLang's GPT-OSS target (since 0.5.17): None gives [2, n//2, n-3]; ids whose maximum is n are
    boundaries as they are; any other ids are block outputs, so 1 is added.

    Raises:
        LayerIdError: see `Rule.states`.
    """
    return to_boundaries(layer_ids, num_layers=num_layers, rule=RULES["as_is_if_max_is_n"], duplicates=duplicates)


def dflash_boundaries(layer_ids: Sequence[int] | None, num_layers: int) -> tuple[int, ...]:
    """The DFlash rule: ids are block outputs, so 1 is always added; there is no default.

    Raises:
        LayerIdError: see `Rule.states`; also for None.
    """
    return to_boundaries(layer_ids, num_layers=num_layers, rule=RULES["output"].narrowed(refuse_default=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Inference:
    """What the ids alone say about their convention.

    Attributes:
        convention: the proven convention, or None.
        hint: a convention that the ids suggest without proving it, or None.
        why: one sentence.
    """

    convention: Convention | None
    hint: Convention | None
    why: str


def infer_convention(ids: Sequence[int], num_layers: int) -> Inference:
    """Which convention `ids` follow, as far as the ids alone can tell.

    Only one thing is proof: a largest id of n cannot be a block output, since a target of n layers has no block n, so the ids
    count boundaries. (Ids out of `output_hidden_states` count alike up to n-1; for them n would be `POST_NORM`.) A list that
    equals a default to the letter is a strong hint, no proof.

    Raises:
        LayerIdError: ids that no convention allows.
    """
    n = check_num_layers(num_layers)
    checked = check_ids(ids, n)
    top = max(checked)
    if top > n:
        raise LayerIdError(f"layer id {top} is out of range under every convention: a {n}-layer target takes at most {n}")
    if top == n:
        return Inference(Convention.BOUNDARY, None, f"the largest id is n = {n}: as block outputs that would be block {n} of {n}")
    defaults = {default_boundaries(n): Convention.BOUNDARY, tuple(b - 1 for b in default_boundaries(n)): Convention.OUTPUT}
    hint = defaults.get(checked)
    if hint is not None:
        return Inference(None, hint, f"the ids equal the {hint.name} default for n = {n}: a strong hint, no proof")
    return Inference(
        None, None, f"every id is below n = {n}: {list(checked)} may be boundaries or block outputs, nothing in them says which"
    )


def _chosen_rule(convention: Convention | None, rule: Rule | str | None) -> Rule:
    if (convention is None) == (rule is None):
        raise LayerIdError("give exactly one of convention= and rule=: ids mean nothing without one")
    if convention is not None:
        return CONVENTION_RULES[convention]
    return rule_named(rule) if isinstance(rule, str) else rule  # type: ignore[return-value]  # None was refused above

"""Which states a head takes, as far as its files say: what the loop, the table and the probe begin with."""

from __future__ import annotations

from collections.abc import Mapping

from specalign.layer_ids import POST_NORM, Convention, State, default_ids, infer_convention, to_states
from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.files import InputError


class UndecidedError(InputError):
    """The ids may mean two things, and nothing in the files says which."""


def head_states(spec: DraftSpec, num_layers: int, convention: Convention | None = None) -> tuple[State, ...]:
    """The states of an EAGLE3 head, in its order.

    Args:
        spec: what its files say.
        num_layers: n of the target.
        convention: what its ids mean, for whoever knows. Otherwise only proof counts: no ids stand for the default [2, n//2,
            n-3]; speculators' format states boundaries; a largest id of n cannot be a block output.

    Raises:
        UndecidedError: none of these holds.
        InputError: ids that contradict each other.
        LayerIdError: ids that no convention allows.
    """
    if spec.flag("use_aux_hidden_state") is False:
        return (POST_NORM,)
    ids = stated_ids(spec)
    if ids is None:
        default = default_ids(num_layers, convention=Convention.BOUNDARY)
        return to_states(default, num_layers=num_layers, convention=Convention.BOUNDARY)
    if convention is None and spec.is_speculators:
        convention = Convention.BOUNDARY
    chosen = convention or infer_convention(ids, num_layers).convention
    if chosen is None:
        raise UndecidedError(
            f"{spec.name}: {infer_convention(ids, num_layers).why}. Say it with --convention boundary, output or hf; or measure"
            " it: specalign probe"
        )
    return to_states(ids, num_layers=num_layers, convention=chosen)


def stated_ids(spec: DraftSpec) -> list[int] | None:
    """The ids that a head's files state, wherever they do; None if they leave them to the default.

    Raises:
        InputError: two places state different ids, or what stands there is no list of numbers.
    """
    found = spec.ids_by_place
    if len({repr(ids) for ids in found.values()}) > 1:
        raise InputError(f"{spec.name} states different ids: {_listed(found)}; engines read either. Make them one list")
    ids = next(iter(found.values()), None)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise InputError(f"{spec.name}: {_listed(found)} is no list of ids")
    return ids


def _listed(found: Mapping[str, object]) -> str:
    return ", ".join(f"{place} = {ids}" for place, ids in found.items())

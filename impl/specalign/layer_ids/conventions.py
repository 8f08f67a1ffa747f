"""What a layer id means: boundaries, `POST_NORM`, and the three conventions.

A target with n layers has n + 1 *boundaries*: boundary 0 is the embedding output, boundary b the residual stream after
block b-1, boundary n the stream after the last block and before the final norm. `POST_NORM` is final_norm(boundary n); it
is a state that an engine can hand on, and it is never called a boundary.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Collection, Iterable
from typing import Final, Literal, TypeAlias

from specalign.layer_ids.errors import LayerIdError


class _PostNorm(enum.Enum):
    POST_NORM = "POST_NORM"

    def __repr__(self) -> str:
        return "POST_NORM"

    __str__ = __repr__


POST_NORM: Final = _PostNorm.POST_NORM
"""The state final_norm(boundary n)."""

State: TypeAlias = int | Literal[_PostNorm.POST_NORM]
"""A boundary number 0..n, or `POST_NORM`."""


class Convention(enum.Enum):
    """What an id k in a draft head's config means, for a target with n layers.

    * `BOUNDARY`: k is boundary k, 0 <= k <= n (EAGLE, vLLM, speculators).
    * `OUTPUT`: k is the output of block k, so boundary k+1, 0 <= k <= n-1 (ModelOpt, SpecForge, TensorRT-LLM, all DFlash).
    * `HF`: k indexes transformers' `output_hidden_states`: boundary k for k < n, and `POST_NORM` for k = n, because the
      last entry of that tuple has been through the final norm.
    """

    BOUNDARY = "boundary"
    OUTPUT = "output"
    HF = "hf"


def check_num_layers(num_layers: object) -> int:
    """`num_layers` as an int of at least 1, or `LayerIdError`."""
    if isinstance(num_layers, bool) or not hasattr(num_layers, "__index__"):
        raise LayerIdError(f"num_layers must be an integer of at least 1, not {num_layers!r}")
    n = operator.index(num_layers)
    if n < 1:
        raise LayerIdError(f"num_layers must be at least 1, not {n}")
    return n


def check_ids(ids: object, num_layers: int, *, negative: bool = False) -> tuple[int, ...]:
    """The ids as a tuple of plain ints, in the order given.

    Refuses what no engine could mean: something that is no ordered list, an empty list, bools, floats, strings, and negative
    numbers unless `negative` says that a profile gives them a meaning. Upper bounds depend on the rule and are not checked.
    """
    if isinstance(ids, (str, bytes, set, frozenset, dict)) or not isinstance(ids, Collection):
        raise LayerIdError(f"layer ids must be an ordered list of integers, not {ids!r} (a set has no order to keep)")
    checked = tuple(_check_id(value, num_layers, negative=negative) for value in ids)
    if not checked:
        raise LayerIdError(
            f"the list of layer ids is empty: a {num_layers}-layer target needs at least one id, or None for the default"
        )
    return checked


def _check_id(value: object, num_layers: int, *, negative: bool) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise LayerIdError(
            f"layer id {value!r} is a {type(value).__name__}, not an integer: a {num_layers}-layer target takes 0..{num_layers}"
        )
    try:
        number = operator.index(value)
    except TypeError as error:
        raise LayerIdError(f"layer id {value!r} is not an integer ({error}); 0..{num_layers} would be") from None
    if number < 0 and not negative:
        raise LayerIdError(
            f"layer id {number} is negative: a {num_layers}-layer target takes 0..{num_layers}, and no engine counts from the"
            " end here"
        )
    return number


def format_states(states: Iterable[State]) -> str:
    """`[24, 30, POST_NORM]`: the way every message writes a list of states."""
    return "[" + ", ".join(str(state) for state in states) + "]"

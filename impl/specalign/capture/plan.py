"""What to capture: the states asked for, and the check of what arrived."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from specalign.capture.errors import CaptureError
from specalign.layer_ids import POST_NORM, Convention, LayerIdError, Rule, State, format_states, to_states
from specalign.layer_ids.conventions import check_num_layers

Duplicates: TypeAlias = Literal["refuse", "keep"]


@dataclasses.dataclass(frozen=True, slots=True)
class CapturePlan:
    """The states asked for, in the order in which they are handed on.

    Attributes:
        states: boundaries 0..n and `POST_NORM`. Any order; it is kept, never sorted.
        num_layers: n, the number of blocks of the whole target, whatever part of it runs here.
        duplicates: "refuse", or "keep": a state that is named twice is handed on twice, as two tensors that share no memory.

    Raises:
        CaptureError: a state that a target of n layers does not have, no states, or a duplicate that is refused.
    """

    states: tuple[State, ...]
    num_layers: int
    duplicates: Duplicates = "refuse"

    def __post_init__(self) -> None:
        n = _checked_num_layers(self.num_layers)
        if self.duplicates not in ("refuse", "keep"):
            raise CaptureError(f"duplicates={self.duplicates!r}: 'refuse' and 'keep' are the two choices")
        states = _checked_states(self.states, n)
        object.__setattr__(self, "num_layers", n)
        object.__setattr__(self, "states", states)
        twice = [state for state in dict.fromkeys(states) if states.count(state) > 1]
        if twice and self.duplicates == "refuse":
            raise CaptureError(
                f"{format_states(states)} names {format_states(twice)} more than once: drop the repeats, or say"
                " duplicates='keep' to get one tensor for each mention"
            )

    @classmethod
    def from_ids(
        cls,
        ids: Sequence[int] | None,
        *,
        num_layers: int,
        convention: Convention | None = None,
        rule: Rule | str | None = None,
        duplicates: Duplicates = "refuse",
    ) -> CapturePlan:
        """The plan for the layer ids of a draft head's config, read by a convention or a rule (see `layer_ids.to_states`).

        Raises:
            LayerIdError: the ids cannot be converted.
        """
        states = to_states(ids, num_layers=num_layers, convention=convention, rule=rule, duplicates=duplicates)
        return cls(states, num_layers, duplicates)

    @property
    def wanted(self) -> tuple[State, ...]:
        """Each state once, in layer order, `POST_NORM` last: the order in which a forward meets them."""
        boundaries = sorted({state for state in self.states if state is not POST_NORM})
        return (*boundaries, POST_NORM) if POST_NORM in self.states else tuple(boundaries)

    def arrange(
        self,
        captured: Mapping[State, Tensor],
        *,
        width: int | None = None,
        rows: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, ...]:
        """The captured tensors in the order asked for, once they are proved to be what was asked for.

        Args:
            captured: one tensor `[*rows, width]` for each state; no state missing, none besides.
            width: the hidden size that every state must have; by default that of the first.
            rows: the leading dimensions that every state must have, `(tokens,)` or `(batch, tokens)`; by default the first's.
            dtype: the dtype that every state must have; by default that of the first.

        Raises:
            CaptureError: a state is missing or was not asked for, or a width, row count or dtype is off.
        """
        self._check_count(captured)
        first = captured[self.wanted[0]]
        _check_tensor(self.wanted[0], first)
        expected = (
            tuple(first.shape[:-1]) if rows is None else tuple(rows),
            first.shape[-1] if width is None else width,
            first.dtype if dtype is None else dtype,
        )
        for state in self.wanted:
            _check_tensor(state, captured[state])
            _check_shape(state, captured[state], *expected)
        return self._in_order(captured)

    def empty(
        self, *, width: int, dtype: torch.dtype, device: torch.device | str = "cpu", rows: Sequence[int] = (0,)
    ) -> tuple[Tensor, ...]:
        """The states of an idle batch that runs no block: tensors `[*rows, width]` without elements, in the order asked for.

        Raises:
            CaptureError: `rows` holds no 0, so that the tensors would have elements nobody computed.
        """
        return tuple(empty_state(width=width, dtype=dtype, device=device, rows=rows) for _ in self.states)

    def _check_count(self, captured: Mapping[State, Tensor]) -> None:
        missing = [state for state in self.wanted if state not in captured]
        surplus = [state for state in captured if state not in self.wanted]
        if missing or surplus:
            lines = f"captured {len(captured) - len(surplus)} of {len(self.wanted)} states of {format_states(self.states)}"
            if missing:
                lines += f": {format_states(missing)} never arrived"
            if surplus:
                lines += f"; {format_states(surplus)} was captured and not asked for"
            raise CaptureError(f"{lines}. Nothing was handed on: a draft head would read the wrong states")

    def _in_order(self, captured: Mapping[State, Tensor]) -> tuple[Tensor, ...]:
        arranged: list[Tensor] = []
        for place, state in enumerate(self.states):
            seen = state in self.states[:place]
            # Two mentions must not share memory: writing into one would change the other.
            arranged.append(captured[state].clone() if seen else captured[state])
        return tuple(arranged)


def as_plan(states: CapturePlan | Sequence[State], num_layers: int, duplicates: Duplicates = "refuse") -> CapturePlan:
    """A plan as it is, or a plan of `states`.

    Raises:
        CaptureError: a plan made for another number of layers, or states that are refused.
    """
    if not isinstance(states, CapturePlan):
        return CapturePlan(states, num_layers, duplicates)  # type: ignore[arg-type]  # made a tuple and checked there
    if states.num_layers != num_layers:
        raise CaptureError(
            f"the plan is for {states.num_layers} layers and the model has {num_layers} blocks: boundary {states.num_layers}"
            " would not be the last one. Make the plan with the model's number of layers"
        )
    return states


def empty_state(*, width: int, dtype: torch.dtype, device: torch.device | str = "cpu", rows: Sequence[int] = (0,)) -> Tensor:
    """A state `[*rows, width]` of an idle batch. Raises `CaptureError` unless `rows` holds a 0."""
    if 0 not in rows:
        raise CaptureError(f"rows={tuple(rows)} is not empty: a state with rows must come from a forward")
    return torch.empty((*rows, width), dtype=dtype, device=device)


def name_of(state: State) -> str:
    """`boundary 24` or `POST_NORM`: how every message names a state."""
    return "POST_NORM" if state is POST_NORM else f"boundary {state}"


def _checked_num_layers(num_layers: object) -> int:
    try:
        return check_num_layers(num_layers)
    except LayerIdError as error:
        raise CaptureError(str(error)) from None


def _checked_states(states: object, n: int) -> tuple[State, ...]:
    if isinstance(states, (str, bytes, set, frozenset, dict)) or not isinstance(states, Collection):
        raise CaptureError(f"states must be an ordered list of boundaries and POST_NORM, not {states!r}")
    checked = tuple(_checked_state(state, n) for state in states)
    if not checked:
        raise CaptureError(f"the list of states is empty: a {n}-layer target has boundaries 0..{n} and POST_NORM")
    return checked


def _checked_state(state: object, n: int) -> State:
    if state is POST_NORM:
        return POST_NORM
    has = f"a {n}-layer target has boundaries 0..{n} and POST_NORM"
    if isinstance(state, bool) or not hasattr(state, "__index__"):
        hint = " (specalign.layer_ids.POST_NORM is the state, not its name)" if state == "POST_NORM" else ""
        raise CaptureError(f"state {state!r} is a {type(state).__name__}, neither a boundary nor POST_NORM{hint}: {has}")
    try:
        number = operator.index(state)
    except TypeError as error:
        raise CaptureError(f"state {state!r} is not an integer ({error}): {has}") from None
    if number > n:
        raise CaptureError(
            f"boundary {number} does not exist: {has}. If the ids are block outputs, 1 has been added once too often; if they"
            " are boundaries already, add nothing"
        )
    if number < 0:
        raise CaptureError(f"boundary {number} is negative: {has}, and nothing counts from the end here")
    return number


def _check_tensor(state: State, value: object) -> None:
    if not isinstance(value, Tensor):
        raise CaptureError(f"{name_of(state)} is a {type(value).__name__}, not a tensor [rows, width]")
    if value.ndim < 2:
        raise CaptureError(f"{name_of(state)} has shape {list(value.shape)}: a state is [rows, width] or [batch, rows, width]")


def _check_shape(state: State, value: Tensor, rows: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    where = name_of(state)
    if value.shape[-1] != width:
        raise CaptureError(f"{where} is {value.shape[-1]} wide, not {width}: its shape is {list(value.shape)}")
    if tuple(value.shape[:-1]) != rows:
        raise CaptureError(
            f"{where} has rows {list(value.shape[:-1])}, not {list(rows)}: all states of one forward have the same rows. A model"
            " that cuts rows before its end (only the last token, only the masked ones) must be captured with that turned off"
        )
    if value.dtype != dtype:
        raise CaptureError(
            f"{where} is {value.dtype}, not {dtype}: states of different dtypes are not concatenated without a word. Capture them"
            " separately and cast them yourself"
        )

"""What an engine really does with a list of ids, as named data.

A `Rule` turns ids into states. Four things vary between engines, and each is one field: when 1 is added (`shift`), what None
stands for (`default`), whether the order of the config and its duplicates survive (`order`, `duplicates`), and the highest
boundary that is ever captured (`reaches_n`). Engine profiles narrow a named rule with `Rule.narrowed`; nothing here branches
on an engine's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from specalign.layer_ids.conventions import (
    POST_NORM,
    Convention,
    State,
    check_ids,
    check_num_layers,
    format_states,
)
from specalign.layer_ids.errors import LayerIdError

Shift: TypeAlias = Literal["never", "always", "unless_max_is_n", "if_first_is_1"]
Order: TypeAlias = Literal["config", "layer"]
Duplicates: TypeAlias = Literal["refuse", "keep", "collapse"]

_SHIFTS: Final[Mapping[Shift, Callable[[Sequence[int], int], int]]] = {
    "never": lambda ids, n: 0,
    "always": lambda ids, n: 1,
    "unless_max_is_n": lambda ids, n: 0 if max(ids) == n else 1,
    "if_first_is_1": lambda ids, n: 1 if ids[0] == 1 else 0,
}

MIN_LAYERS_FOR_DEFAULT: Final = 7
"""The default [2, n//2, n-3] names three different boundaries in ascending order only from 7 layers on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How ids become states.

    Attributes:
        name: the key in `RULES`.
        summary: one line for tables.
        shift: when 1 is added to every id.
        default_offset: None stands for the boundaries [2, n//2, n-3] + this offset; None here means that the rule has no
            default and refuses None.
        last_is_post_norm: the state after the last block is handed on as `POST_NORM` (whoever reads `output_hidden_states`).
        only_n_is_last: the id n means boundary n although 1 is added to the others, and id n-1 is never captured (tokenspeed).
        minus_one_is_post_norm: the id -1 means `POST_NORM` (TensorRT-LLM).
        order: "config" keeps the order of the list, "layer" sorts (states appended while the layers run).
        duplicates: whether a state that is named twice is refused, kept twice, or kept once.
        reaches_n: whether boundary n is ever captured.
    """

    name: str
    summary: str
    shift: Shift
    default_offset: int | None = 0
    last_is_post_norm: bool = False
    only_n_is_last: bool = False
    minus_one_is_post_norm: bool = False
    order: Order = "config"
    duplicates: Duplicates = "refuse"
    reaches_n: bool = True

    def narrowed(
        self,
        *,
        order: Order | None = None,
        duplicates: Duplicates | None = None,
        reaches_n: bool | None = None,
        refuse_default: bool = False,
    ) -> Rule:
        """This rule with an engine's own limits; what is None stays as it is."""
        return dataclasses.replace(
            self,
            order=order or self.order,
            duplicates=duplicates or self.duplicates,
            reaches_n=self.reaches_n if reaches_n is None else reaches_n,
            default_offset=None if refuse_default else self.default_offset,
        )

    def default(self, num_layers: int) -> tuple[int, ...]:
        """The boundaries that None stands for.

        Raises:
            LayerIdError: the rule has no default, or the target is too shallow for three different boundaries.
        """
        n = check_num_layers(num_layers)
        if self.default_offset is None:
            raise LayerIdError(
                f"the rule {self.name!r} has no default: give the layer ids explicitly (DFlash and DSpark heads name them in"
                f" their config); a {n}-layer target takes {self.valid_ids(n)}"
            )
        if n < MIN_LAYERS_FOR_DEFAULT:
            raise LayerIdError(
                f"the default boundaries [2, n//2, n-3] need a target of at least {MIN_LAYERS_FOR_DEFAULT} layers: with"
                f" {n} layers they would be {format_states(default_boundaries(n))}; give ids out of {self.valid_ids(n)}"
            )
        return tuple(b + self.default_offset for b in default_boundaries(n))

    def explicit_default(self, num_layers: int) -> tuple[int, ...]:
        """The explicit list of ids that gives the same states as None: [1, n//2-1, n-4] for `as_is_if_max_is_n`."""
        return self.ids_for(self.default(num_layers), num_layers)

    def states(self, ids: Sequence[int] | None, num_layers: int) -> tuple[State, ...]:
        """The states for `ids` on a target of `num_layers` layers, in the order in which the engine concatenates them.

        Raises:
            LayerIdError: an id that is no integer, negative, out of range or named twice, an empty list, or a state that the
                rule never reaches.
        """
        n = check_num_layers(num_layers)
        if ids is None:
            return self.default(n)
        checked = check_ids(ids, n, negative=self.minus_one_is_post_norm)
        return self._arranged(
            [(k, self._checked(k, state, n)) for k, state in zip(checked, self.named(checked, n), strict=True)], n
        )

    def named(self, ids: Sequence[int], num_layers: int) -> tuple[State, ...]:
        """The states that `ids` name, one for one and with no check: boundaries below 0 or above n may be among them."""
        shift = _SHIFTS[self.shift](ids, num_layers)
        return tuple(self._named_one(k, shift, num_layers) for k in ids)

    def loses(self, k: int, num_layers: int) -> bool:
        """The id k names an existing boundary that this rule never captures."""
        return self.only_n_is_last and k == num_layers - 1

    def ids_for(self, states: Sequence[State], num_layers: int) -> tuple[int, ...]:
        """The ids that this rule turns into `states`.

        Raises:
            LayerIdError: no list of ids gives these states under the rule.
        """
        n = check_num_layers(num_layers)
        for shift in (0, 1):
            ids = tuple(self._id(state, shift, n) for state in states)
            if ids and self._gives(ids, tuple(states), n):
                return ids
        raise LayerIdError(
            f"no list of layer ids gives the states {format_states(states)} under the rule {self.name!r} on {n} layers"
            f" ({self.summary}; ids {self.valid_ids(n)})"
        )

    def valid_ids(self, num_layers: int) -> str:
        """The range of ids that the rule takes, as text for messages."""
        if self.only_n_is_last:
            return f"0..{num_layers - 2} and {num_layers}"
        top = num_layers - 1 if self.shift == "always" else num_layers
        if not self.reaches_n:
            top -= 1
        return f"-1..{top}" if self.minus_one_is_post_norm else f"0..{top}"

    def _named_one(self, k: int, shift: int, n: int) -> State:
        if k == -1 and self.minus_one_is_post_norm:
            return POST_NORM
        if self.only_n_is_last and k == n:
            return n
        return POST_NORM if self.last_is_post_norm and k + shift == n else k + shift

    def _checked(self, k: int, state: State, n: int) -> State:
        if state is POST_NORM:
            return state
        if not 0 <= state <= n:
            raise LayerIdError(
                f"layer id {k} is out of range: the rule {self.name!r} makes it boundary {state}, and a {n}-layer target has"
                f" boundaries 0..{n}; valid ids are {self.valid_ids(n)}"
            )
        if (state == n and not self.reaches_n) or self.loses(k, n):
            raise LayerIdError(
                f"layer id {k} cannot be reached: it names boundary {n}, the stream after the last of {n} layers, and the rule"
                f" {self.name!r} does not capture it; valid ids are {self.valid_ids(n)}"
            )
        return state

    def _id(self, state: State, shift: int, n: int) -> int:
        if state is POST_NORM:
            return -1 if self.minus_one_is_post_norm else n - shift
        return n if self.only_n_is_last and state == n else state - shift

    def _gives(self, ids: tuple[int, ...], states: tuple[State, ...], n: int) -> bool:
        try:
            return self.states(ids, n) == states
        except LayerIdError:
            return False

    def _arranged(self, pairs: Sequence[tuple[int, State]], n: int) -> tuple[State, ...]:
        kept: list[State] = []
        for k, state in pairs:
            if state in kept and self.duplicates == "refuse":
                raise LayerIdError(
                    f"layer id {k} is named twice on a target of {n} layers: each id must differ (duplicates='keep' accepts"
                    " the same state twice)"
                )
            if state not in kept or self.duplicates == "keep":
                kept.append(state)
        return tuple(in_layer_order(kept, n) if self.order == "layer" else kept)


def in_layer_order(states: Iterable[State], num_layers: int) -> list[State]:
    """Ascending, with `POST_NORM` after boundary n."""
    return sorted(states, key=lambda state: num_layers + 1 if state is POST_NORM else state)


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """[2, n//2, n-3], unchecked: what engines compute for None, also where it makes no sense."""
    return (2, num_layers // 2, num_layers - 3)


_ALL_RULES = (
    Rule("boundary", "id k is boundary k", shift="never"),
    Rule("output", "id k is the output of block k, boundary k+1", shift="always"),
    Rule("hf", "id k is boundary k, id n is POST_NORM", shift="never", last_is_post_norm=True),
    Rule("as_is_if_max_is_n", "boundaries if max(ids) == n, else +1 (SGLang's GPT-OSS)", shift="unless_max_is_n"),
    Rule("plus_one_if_first_is_1", "+1 if ids[0] == 1, else boundaries (SGLang's DeepSeek)", shift="if_first_is_1"),
    Rule("hf_output", "boundary k+1, but id n-1 is POST_NORM (trainers on output_hidden_states[k+1])", "always", None, True),
    Rule("output_n_final", "boundary k+1, but id n is boundary n and id n-1 is lost (tokenspeed)", "always", only_n_is_last=True),
    Rule("output_or_post_norm", "boundary k+1, and id -1 is POST_NORM (TensorRT-LLM)", "always", minus_one_is_post_norm=True),
    Rule("output_default_shifted", "boundary k+1, and None is shifted too (SGLang's MiniMax-M3-VL)", "always", 1),
)

RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _ALL_RULES}
"""Every named rule. Sources: `docs/engines.md`."""

CONVENTION_RULES: Final[Mapping[Convention, Rule]] = {c: RULES[c.value] for c in Convention}
"""The rule of an engine that follows a convention to the letter."""


def rule_named(name: str) -> Rule:
    """The rule of that name, or `LayerIdError` naming the ones there are."""
    try:
        return RULES[name]
    except KeyError:
        raise LayerIdError(f"no rule is called {name!r}: there are {', '.join(RULES)}") from None

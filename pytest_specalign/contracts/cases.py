"""The calls that `LayerIdContract` makes: strategies and explicit examples, each for one leaf class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_specalign.contracts.base import Strategy, is_open
from pytest_specalign.contracts.known_faults import Raised, expected_outcome
from pytest_specalign.contracts.known_heads import DFLASH_HEADS, KNOWN_HEADS
from pytest_specalign.strategies import bad_layer_ids, layer_ids, num_layers
from pytest_specalign.strategies.ids import LONGEST, NO_LISTS, fewest_layers, ids_taken
from specalign.layer_ids import Rule, rule_named
from specalign.layer_ids.rules import MIN_LAYERS_FOR_DEFAULT

from hypothesis import strategies as st  # isort: skip

if TYPE_CHECKING:
    from pytest_specalign.contracts.layer_ids import LayerIdContract


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One call: the ids (None: the default), the number of layers, and for bad ids what is wrong with them."""

    layer_ids: Any
    num_layers: int
    reason: str | None = None

    def format(self, function: str) -> str:
        return f"{function}({self.layer_ids!r}, num_layers={self.num_layers})"


def rule_of(cls: type[LayerIdContract]) -> Rule:
    return rule_named(cls.rule) if isinstance(cls.rule, str) else cls.rule


def dflash_rule_of(cls: type[LayerIdContract]) -> Rule:
    return rule_named(cls.dflash_rule) if isinstance(cls.dflash_rule, str) else cls.dflash_rule


def has_default(rule: Rule) -> bool:
    return rule.default_offset is not None


def has_dflash(cls: type[LayerIdContract]) -> bool:
    return not is_open(cls, "convert_dflash")


def depths(cls: type[LayerIdContract], at_least: int = 1) -> st.SearchStrategy[int]:
    low, high = cls.num_layers_range
    return num_layers(min_value=max(low, at_least), max_value=high)


def ids_of(rule: Callable[[Any], Rule] = rule_of, *, at_least: int = 1, **wishes: Any) -> Callable[[Any], Strategy]:
    """Cases of ids that the rule takes. Targets so shallow that it takes none are left out, whatever the range of the class."""
    return lambda cls: depths(cls, max(at_least, fewest_layers(rule(cls)))).flatmap(
        lambda n: st.builds(Case, layer_ids(n, rule=rule(cls), **wishes), st.just(n))
    )


def any_ids(cls: type[LayerIdContract]) -> Strategy:
    """Integers just inside and just outside of the target, valid or not."""

    def lists(n: int) -> st.SearchStrategy[list[int]]:
        ids = st.one_of(st.integers(-2, n + 2), st.sampled_from([n, n + 1, n + 2, -1, -2]))
        return st.lists(ids, min_size=1, max_size=4)

    return depths(cls).flatmap(lambda n: st.builds(Case, lists(n), st.just(n)))


def bad_ids(cls: type[LayerIdContract]) -> Strategy:
    return depths(cls, 2).flatmap(
        lambda n: bad_layer_ids(n, rule=rule_of(cls)).map(lambda bad: Case(bad.layer_ids, n, bad.reason))
    )


def bad_examples(cls: type[LayerIdContract]) -> list[Case]:
    """Every wrong type once: there are too many for each to be drawn in every run."""
    n, ids = _small_target(cls)
    made = [Case(make(ids[:3]), n, "no ordered list") for make in NO_LISTS]
    made += [Case([ids[0], bad, *ids[2:3]], n, _type_name(bad)) for bad in (None, str(ids[1]), float(ids[1]), True)]
    return [case for case in made if not taken(rule_of(cls), case.layer_ids, case.num_layers)]


def _type_name(bad: object) -> str:
    return "null" if bad is None else type(bad).__name__


def long_example(cls: type[LayerIdContract]) -> list[Case]:
    """All that the rule takes on a small target, more ids than any published head has. The deepest come first: code that stops
    counting then drops what no other fault drops."""
    n, ids = _small_target(cls)
    return [Case(ids[::-1], n)] if taken(rule_of(cls), ids[::-1], n) else []


def _small_target(cls: type[LayerIdContract]) -> tuple[int, list[int]]:
    n = max(cls.num_layers_range[0], MIN_LAYERS_FOR_DEFAULT)
    return n, list(ids_taken(rule_of(cls), n)[:LONGEST])


def valid_examples(cls: type[LayerIdContract]) -> list[Case]:
    return [*examples_where(taken)(cls), *long_example(cls)]


def defaults(cls: type[LayerIdContract]) -> Strategy:
    return depths(cls, MIN_LAYERS_FOR_DEFAULT).map(lambda n: Case(None, n))


def calls(cls: type[LayerIdContract]) -> Strategy:
    """Everything that the rule takes: lists, and None if there is a default."""
    return st.one_of(ids_of()(cls), defaults(cls)) if has_default(rule_of(cls)) else ids_of()(cls)


def shallow(cls: type[LayerIdContract]) -> Strategy:
    low, high = cls.shallow_range or (1, 1)
    return st.integers(low, high).map(lambda n: Case(None, n, "shallow"))


def out_of_order(cls: type[LayerIdContract]) -> Strategy:
    return ids_of(at_least=3, sorted=False, min_size=2, max_size=4)(cls)


def repeated(cls: type[LayerIdContract]) -> Strategy:
    """Valid ids with one of them named again."""
    once = ids_of(rule_without_duplicates, max_size=3)(cls)
    return once.flatmap(lambda case: st.builds(_again, st.just(case), st.sampled_from(case.layer_ids)))


def _again(case: Case, k: int) -> Case:
    return Case([*case.layer_ids, k], case.num_layers)


def rule_without_duplicates(cls: type[LayerIdContract]) -> Rule:
    return rule_of(cls).narrowed(duplicates="refuse")


def last_boundary(cls: type[LayerIdContract]) -> Strategy:
    """Ids that name boundary n, whether or not the rule ever captures it."""
    return ids_of(lambda cls: rule_of(cls).narrowed(reaches_n=True), at_least=2, reach_n=True, max_size=3)(cls)


def names_last_boundary(cls: type[LayerIdContract]) -> bool:
    """Some id means boundary n; under HF conventions, for one, none does."""
    if cls.declaration_problem() is not None:
        return False
    rule = rule_of(cls).narrowed(reaches_n=True)
    return any(expected_outcome(rule, [k], 8) == (8,) for k in range(9))


def examples_where(wanted: Callable[[Rule, Any, int], bool]) -> Callable[[Any], list[Case]]:
    """The user's examples and the known heads in range of the class, as far as they are `wanted`."""

    def chosen(cls: type[LayerIdContract]) -> list[Case]:
        low, high = cls.num_layers_range
        heads = [(h.layer_ids, h.num_layers) for h in KNOWN_HEADS if low <= h.num_layers <= high]
        calls = [*cls.examples, *heads]
        return [Case(ids if ids is None else list(ids), n) for ids, n in calls if wanted(rule_of(cls), ids, n)]

    return chosen


def taken(rule: Rule, ids: Any, n: int) -> bool:
    return not isinstance(expected_outcome(rule, ids, n), Raised)


def dflash_heads(cls: type[LayerIdContract]) -> list[Case]:
    low, high = cls.num_layers_range
    heads = [Case(list(h.layer_ids or ()), h.num_layers) for h in DFLASH_HEADS if low <= h.num_layers <= high]
    return [case for case in heads if taken(dflash_rule_of(cls), case.layer_ids, case.num_layers)]

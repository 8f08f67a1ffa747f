"""Strategies for numbers of layers and lists of layer ids, good and bad."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from specalign.layer_ids import LayerIdError, Rule, rule_named

Ids: TypeAlias = list[int]
_Make: TypeAlias = Callable[[Rule, int], SearchStrategy[Any]]

USUALLY_AT_MOST: Final = 6
"""Most ids of most lists: more than any published head names."""

LONGEST: Final = 24
"""Most ids of the lists that are drawn now and then to find code which stops counting."""


def num_layers(*, min_value: int = 7, max_value: int = 128) -> SearchStrategy[int]:
    """Numbers of target layers.

    7 is the fewest for which the default [2, n//2, n-3] names three different boundaries. Examples shrink towards `min_value`.

    Raises:
        InvalidArgument: a bound that is no integer of at least 1, or min_value above max_value.
    """
    check_int("min_value", min_value)
    check_int("max_value", max_value)
    check_ordered("min_value", min_value, "max_value", max_value)
    return st.integers(min_value, max_value)


def layer_ids(
    num_layers: int,
    *,
    rule: Rule | str,
    min_size: int = 1,
    max_size: int | None = None,
    allow_default: bool = False,
    sorted: bool | None = None,
    reach_n: bool | None = None,
) -> SearchStrategy[Any]:
    """Lists of ids that `rule` takes on a target of `num_layers` layers, biased to the edges.

    The edges are the ids 0, 1, n-1 and n, as far as the rule takes them, and the exact defaults [2, n//2, n-3] and
    [1, n//2-1, n-4]. Ids differ unless the rule keeps or collapses duplicates. Examples shrink towards the list with the
    fewest and lowest ids: [0], or [0, 1, 2] for `min_size=3`; with `reach_n=True` towards the id that names boundary n alone;
    with `sorted=False` towards [1, 0]; with `allow_default=True` towards None.

    Args:
        num_layers: n.
        rule: a `Rule` or a name out of `RULES`.
        min_size: fewest ids.
        max_size: most ids. None for up to 6 and, now and then, up to all that the rule takes, 24 at most.
        allow_default: also give None, the default.
        sorted: True for ascending lists only, False for lists that are not, None for both.
        reach_n: True for lists that name boundary n, False for lists that do not, None for both.

    Raises:
        InvalidArgument: naming the argument, where no list could fit.
    """
    chosen = as_rule(rule)
    n = check_int("num_layers", num_layers)
    _check_sizes(chosen, n, min_size, max_size, sorted)
    if allow_default and _refuses(chosen, None, n):
        raise InvalidArgument(f"allow_default=True, but the rule {chosen.name!r} has no default on {n} layers")
    lists = _ids(chosen, n, min_size, max_size, sorted, reach_n)
    return st.one_of(st.none(), lists) if allow_default else lists


@functools.lru_cache(maxsize=4096)
def _ids(
    rule: Rule, n: int, min_size: int, max_size: int | None, ascending: bool | None, reach_n: bool | None
) -> SearchStrategy[Ids]:
    """`layer_ids` with checked arguments. Cached, since building a strategy costs more than drawing from it."""
    most = max(USUALLY_AT_MOST, min_size) if max_size is None else max_size
    if reach_n:
        lists = _reaching(rule, n, min_size, most)
    else:
        lists = _lists(rule, n, min_size, most)
        lists = (_lengthened(lists, rule, n) if max_size is None else lists).filter(lambda ids: not _refuses(rule, ids, n))
    if reach_n is False:
        lists = lists.filter(lambda ids: n not in rule.states(ids, n))
    return _in_order(lists, rule, n, ascending, reach_n)


def _in_order(
    lists: SearchStrategy[Ids], rule: Rule, n: int, ascending: bool | None, reach_n: bool | None
) -> SearchStrategy[Ids]:
    """`lists` put in ascending order, or out of it, where that keeps them valid and keeps what they reach."""
    if ascending is None:
        return lists
    arranged = lists.map(_ascending if ascending else _not_ascending)
    arranged = arranged.filter(lambda ids: not _refuses(rule, ids, n) and _is_ascending(ids) == ascending)
    return arranged if reach_n is None else arranged.filter(lambda ids: (n in rule.states(ids, n)) == reach_n)


def _ascending(ids: Ids) -> Ids:
    return sorted(ids)


def _is_ascending(ids: Ids) -> bool:
    return ids == sorted(ids)


def _not_ascending(ids: Ids) -> Ids:
    return ids[::-1] if _is_ascending(ids) else ids


def _lists(rule: Rule, n: int, min_size: int, max_size: int) -> SearchStrategy[Ids]:
    """Lists of ids that the rule takes alone, then the exact defaults where they have the right length."""
    unique = rule.duplicates == "refuse"
    most = min(max_size, len(ids_taken(rule, n))) if unique else max_size
    lists = st.lists(_edgy_ids(rule, n), min_size=min_size, max_size=most, unique=unique)
    defaults = [list(ids) for ids in ((2, n // 2, n - 3), (1, n // 2 - 1, n - 4)) if min_size <= 3 <= max_size]
    exact: list[Ids | None] = [ids for ids in defaults if not _refuses(rule, ids, n)]
    # Drawn after the list, never in its place: a branch of fewer draws would be what everything shrinks towards.
    return st.builds(lambda ids, other: ids if other is None else list(other), lists, st.sampled_from([None] * 6 + exact))


def _lengthened(lists: SearchStrategy[Ids], rule: Rule, n: int) -> SearchStrategy[Ids]:
    """One list in four goes on: by a few ids, or by at least half of what the rule takes."""
    taken = st.sampled_from(ids_taken(rule, n))
    most = min(len(ids_taken(rule, n)), LONGEST)
    few, many = (st.lists(taken, min_size=least, max_size=most, unique=True) for least in (0, most // 2))
    rest = st.integers(0, 7).flatmap(lambda choice: {6: few, 7: many}.get(choice, st.just([])))
    return st.builds(lambda ids, more: [*ids, *(k for k in more if k not in ids)][: max(len(ids), most)], lists, rest)


def _edgy_ids(rule: Rule, n: int) -> SearchStrategy[int]:
    taken = ids_taken(rule, n)
    return st.one_of(st.sampled_from(taken), st.sampled_from([k for k in taken if k in (0, 1, n - 1, n)] or taken))


def _reaching(rule: Rule, n: int, min_size: int, max_size: int) -> SearchStrategy[Ids]:
    """Lists that name boundary n: the others first, then the id that reaches it, put in at any place."""
    last = [k for k in ids_taken(rule, n) if n in rule.states([k], n)]
    if not last:
        raise InvalidArgument(f"reach_n=True, but the rule {rule.name!r} never reaches boundary {n} of {n} layers")
    if rule.shift == "if_first_is_1":
        last.append(n - 1)  # reaches n behind a leading 1 only

    @st.composite
    def lists(draw: st.DrawFn) -> Ids:
        reaching = draw(st.sampled_from(last))
        company = min_size > 1 or (max_size > 1 and draw(st.booleans()))
        others = draw(_lists(rule, n, max(min_size - 1, 1), max_size - 1)) if company else []
        others = [k for k in others if k != reaching or rule.duplicates != "refuse"]
        place = draw(st.integers(0, len(others)))
        return [*others[:place], reaching, *others[place:]]

    def fits(ids: Ids) -> bool:
        return len(ids) >= min_size and not _refuses(rule, ids, n) and n in rule.states(ids, n)

    return lists().filter(fits)


@dataclasses.dataclass(frozen=True, slots=True)
class BadIds:
    """What no rule may bend into shape, and what is wrong with it: one of `BAD_ID_REASONS`."""

    layer_ids: Any
    reason: str


def bad_layer_ids(num_layers: int, *, rule: Rule | str) -> SearchStrategy[BadIds]:
    """What `rule` must refuse on a target of `num_layers` layers, each with the reason.

    One bad entry stands anywhere in a list that is good otherwise, or good ids come as no ordered list at all: as a set, a
    mapping, text, bytes or a single number. Duplicates are bad only if the rule refuses them, boundary n only if the rule
    never reaches it. Examples shrink towards `BadIds([], "empty")`, and for each other reason towards the bad entry alone:
    [-1], [False], [1.0], ["1"], [None], the lowest id out of range, [0, 0]; what is no ordered list towards {0}.

    Raises:
        InvalidArgument: `num_layers` is no integer of at least 1, or `rule` is no rule.
    """
    return _bad_ids(as_rule(rule), check_int("num_layers", num_layers))


@functools.lru_cache(maxsize=1024)
def _bad_ids(rule: Rule, n: int) -> SearchStrategy[BadIds]:
    kinds = [st.builds(BadIds, make(rule, n), st.just(reason)) for reason, make in _BAD.items()]
    return st.one_of(kinds).filter(lambda bad: _refuses(rule, bad.layer_ids, n))


def _with_entry(bad: SearchStrategy[Any]) -> _Make:
    return lambda rule, n: _around(bad, rule, n)


def _around(bad: SearchStrategy[Any], rule: Rule, n: int) -> SearchStrategy[Any]:
    """Good lists of up to eight ids with one bad entry put in at any place."""
    others = st.lists(st.sampled_from(ids_taken(rule, n)), max_size=8, unique=True)
    return st.tuples(others, bad, st.integers(0, 8)).map(lambda t: [*t[0][: t[2]], t[1], *t[0][t[2] :]])


NO_LISTS: Final[tuple[Callable[[Ids], Any], ...]] = (
    set,
    frozenset,
    dict.fromkeys,
    lambda ids: ",".join(map(str, ids)),
    lambda ids: bytes(k % 256 for k in ids),
    lambda ids: ids[0],
    lambda ids: float(ids[0]),
)
"""What good ids must not come as: each makes something of them that is no ordered list of integers."""


def _no_list(rule: Rule, n: int) -> SearchStrategy[Any]:
    ids = st.lists(st.sampled_from(ids_taken(rule, n)), min_size=1, max_size=4, unique=True)
    return st.builds(lambda make, good: make(good), st.sampled_from(NO_LISTS), ids)


def _negative(rule: Rule, n: int) -> SearchStrategy[Any]:
    return _around(st.integers(-n - 2, -2 if rule.minus_one_is_post_norm else -1), rule, n)


def _out_of_range(rule: Rule, n: int) -> SearchStrategy[Any]:
    lowest = max(ids_taken(rule.narrowed(reaches_n=True), n)) + 1
    return _around(st.integers(lowest, 2**31), rule, n)


def _duplicate(rule: Rule, n: int) -> SearchStrategy[Any]:
    if rule.duplicates != "refuse":
        return st.nothing()
    return _lists(rule, n, 1, 4).flatmap(lambda ids: st.sampled_from(ids).map(lambda again: [*ids, again]))


def _unreachable(rule: Rule, n: int) -> SearchStrategy[Any]:
    lost = [k for k in range(n + 1) if _refuses(rule, [k], n) and rule.named([k], n)[0] in range(n + 1)]
    return _around(st.sampled_from(lost), rule, n) if lost else st.nothing()


_BAD: Final[dict[str, _Make]] = {
    "empty": lambda rule, n: st.builds(list),
    "negative": _negative,
    "bool": _with_entry(st.booleans()),
    "float": _with_entry(st.sampled_from([1.0, 2.0, 1.5, float("nan"), float("inf")])),
    "str": _with_entry(st.sampled_from(["1", "2", "", "all"])),
    "null": _with_entry(st.none()),
    "no ordered list": _no_list,
    "out of range": _out_of_range,
    "duplicate": _duplicate,
    "unreachable": _unreachable,
}

BAD_ID_REASONS: Final = tuple(_BAD)
"""Why a list is bad: the values of `BadIds.reason`."""


@functools.lru_cache(maxsize=1024)
def ids_taken(rule: Rule, num_layers: int) -> tuple[int, ...]:
    """The ids that the rule takes on their own: ascending, and a -1 that means `POST_NORM` last.

    Raises:
        InvalidArgument: there is none.
    """
    taken = tuple(k for k in [*range(num_layers + 1), -1] if not _refuses(rule, [k], num_layers))
    if not taken:
        raise InvalidArgument(f"num_layers={num_layers}: the rule {rule.name!r} takes no id at all on so few layers")
    return taken


@functools.lru_cache(maxsize=1024)
def fewest_layers(rule: Rule) -> int:
    """The shallowest target on which the rule takes any id: 1, or 2 where the only block's output is never captured."""
    return next(n for n in itertools.count(1) if any(not _refuses(rule, [k], n) for k in range(-1, n + 1)))


def check_int(name: str, value: object, *, at_least: int = 1) -> int:
    """`value` as an int, or `InvalidArgument` naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidArgument(f"{name}={value!r} must be an integer of at least {at_least}")
    return value


def check_ordered(low_name: str, low: int, high_name: str, high: int) -> None:
    """`InvalidArgument` naming both arguments where low is above high."""
    if low > high:
        raise InvalidArgument(f"{low_name}={low} is above {high_name}={high}")


def _check_sizes(rule: Rule, n: int, min_size: int, max_size: int | None, ascending: bool | None) -> None:
    check_int("min_size", min_size)
    if max_size is not None:
        check_int("max_size", max_size)
        check_ordered("min_size", min_size, "max_size", max_size)
    if rule.duplicates == "refuse" and min_size > len(ids_taken(rule, n)):
        raise InvalidArgument(f"min_size={min_size}, but the rule {rule.name!r} takes only ids {rule.valid_ids(n)}")
    if ascending is False and max_size == 1:
        raise InvalidArgument(f"sorted=False needs two ids, but max_size={max_size}")


def as_rule(rule: Rule | str) -> Rule:
    try:
        return rule_named(rule) if isinstance(rule, str) else rule
    except LayerIdError as error:
        raise InvalidArgument(f"rule={rule!r}: {error}") from None


def _refuses(rule: Rule, ids: Any, n: int) -> bool:
    try:
        rule.states(ids, n)
    except LayerIdError:
        return True
    return False

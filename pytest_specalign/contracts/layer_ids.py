"""`LayerIdContract`: property tests for code that turns the layer ids of a draft head into the states of a target."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

from pytest_specalign.contracts import cases
from pytest_specalign.contracts.base import Contract, holds_for, is_open, left_open, violated
from pytest_specalign.contracts.cases import Case, dflash_rule_of, rule_of
from pytest_specalign.contracts.diagnose import PROBES, Observation, diagnose
from pytest_specalign.contracts.known_faults import Outcome, Raised, expected_outcome, format_outcome
from specalign.layer_ids import POST_NORM, RULES, LayerIdError, Rule
from specalign.layer_ids.rules import MIN_LAYERS_FOR_DEFAULT


class LayerIdContract(Contract, abstract=True):
    """What `convert` must do if it follows `rule`. Subclass it, fill in `rule` and `convert`, and pytest runs the properties.

    Attributes:
        rule: a name out of `specalign.layer_ids.RULES`, or a `Rule`, for instance `RULES["output"].narrowed(reaches_n=False)`.
        dflash_rule: the rule of `convert_dflash`; by default 1 is always added and None is refused.
        rejects: exceptions that count as refusing ids. `IndexError` and `AssertionError` are not among them: a crash names
            neither the id nor what would be valid.
        num_layers_range: fewest and most layers to try. Known heads outside of it are left out, and so are targets so shallow
            that the rule takes no id at all.
        shallow_range: fewest and most layers of targets too shallow for the default; None if `convert` cannot be asked for them.
        examples: more calls `(ids, num_layers)` that always run.
        settings: hypothesis settings in place of the loaded profile.
    """

    rule: ClassVar[Rule | str]
    dflash_rule: ClassVar[Rule | str] = RULES["output"].narrowed(refuse_default=True)
    rejects: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError)
    num_layers_range: ClassVar[tuple[int, int]] = (MIN_LAYERS_FOR_DEFAULT, 128)
    shallow_range: ClassVar[tuple[int, int] | None] = (1, MIN_LAYERS_FOR_DEFAULT - 1)
    examples: ClassVar[Sequence[tuple[Sequence[int] | None, int]]] = ()

    @left_open
    def convert(self, layer_ids: Any, num_layers: int) -> Any:
        """The states for `layer_ids` (None: the default), in order: a list or tuple of ints 0..n, or `POST_NORM`."""
        raise NotImplementedError

    @left_open
    def convert_dflash(self, layer_ids: Any, num_layers: int) -> Any:
        """The same for DFlash heads. Optional: without it the two DFlash properties do not exist."""
        raise NotImplementedError

    @classmethod
    def declaration_problem(cls) -> str | None:
        name = cls.__name__
        if is_open(cls, "convert"):
            return f"{name} lacks `def convert(self, layer_ids, num_layers)`: the code under test, which returns the states"
        declared = getattr(cls, "rule", None)
        if declared is None:
            return f"{name} lacks `rule`: set it to a Rule or to one of {', '.join(RULES)}"
        for attribute, rule in (("rule", declared), ("dflash_rule", cls.dflash_rule)):
            if isinstance(rule, str) and rule not in RULES:
                return f"{name}.{attribute} = {rule!r}: there are {', '.join(RULES)}"
            if not isinstance(rule, (str, Rule)):
                return f"{name}.{attribute} = {rule!r} is neither a Rule nor the name of one"
        low, high = cls.num_layers_range
        if not 1 <= low <= high or high < MIN_LAYERS_FOR_DEFAULT:
            return (
                f"{name}.num_layers_range = {(low, high)}: fewest and most layers, the latter {MIN_LAYERS_FOR_DEFAULT} at least"
            )
        return None

    @holds_for(cases.calls, examples=cases.valid_examples)
    def check_matches_the_rule(self, case: Case) -> None:
        """Valid ids become the rule's states."""
        self._expect(case)

    @holds_for(cases.any_ids, examples=cases.examples_where(lambda rule, ids, n: not cases.taken(rule, ids, n)))
    def check_stays_inside_the_target(self, case: Case) -> None:
        """Whatever the ids, a state is a boundary 0..n or `POST_NORM`, or the ids are refused."""
        got = self._call(self.convert, case)
        inside = {*range(case.num_layers + 1), POST_NORM}
        if not isinstance(got, Raised) and not _all_within(got, inside):
            self._fail(case, got, f"refused: a {case.num_layers}-layer target has boundaries 0..{case.num_layers} only")
        if isinstance(got, Raised) and not issubclass(got.kind, self.rejects):
            self._fail(case, got, "states within 0..n, or refused")

    @holds_for(cases.defaults, examples=cases.examples_where(lambda rule, ids, n: ids is None))
    def check_none_is_the_explicit_default(self, case: Case) -> None:
        """None and `rule.explicit_default(n)` give the same states; a rule without a default refuses None."""
        self._expect(case)
        rule = rule_of(type(self))
        if cases.has_default(rule):
            self._expect(Case(list(rule.explicit_default(case.num_layers)), case.num_layers))

    @holds_for(cases.out_of_order)
    def check_keeps_the_declared_order(self, case: Case) -> None:
        """Ids out of order: the rule says whether the states follow the config or the layers."""
        self._expect(case)

    @holds_for(cases.repeated)
    def check_treats_duplicates_as_declared(self, case: Case) -> None:
        """A state named twice is refused, kept, or collapsed, as the rule says."""
        self._expect(case)

    @holds_for(cases.last_boundary, when=cases.names_last_boundary)
    def check_reaches_the_last_boundary_as_declared(self, case: Case) -> None:
        """Ids that name boundary n give it, or are refused if the rule never reaches it. They are never dropped."""
        self._expect(case)

    @holds_for(cases.bad_ids, examples=cases.bad_examples)
    def check_refuses_bad_ids(self, case: Case) -> None:
        """Negative, bool, float, string, null, out of range, duplicate, unreachable or no ids are refused, not bent; so is what
        is no ordered list."""
        self._expect(case)

    @holds_for(cases.shallow, when=lambda cls: cls.shallow_range is not None)
    def check_refuses_the_default_on_shallow_targets(self, case: Case) -> None:
        """Below 7 layers [2, n//2, n-3] are not three different boundaries: None is refused."""
        self._expect(case)

    @holds_for(cases.calls, examples=cases.examples_where(cases.taken))
    def check_leaves_its_input_alone(self, case: Case) -> None:
        """The list is not changed, and the result is neither the list nor anything that a later call sees."""
        given = list(case.layer_ids) if case.layer_ids is not None else None
        first = self._raw(given, case)
        if isinstance(_as_outcome(first), Raised):
            self._fail(case, _as_outcome(first), "states")
        before = list(first)
        if given != case.layer_ids:
            violated(f"{case.format('convert')} changed its input to {given!r}\n  next: work on a copy of the ids.")
        if first is given:
            violated(f"{case.format('convert')} returned its input: a caller that changes one changes both\n  next: copy.")
        if isinstance(first, list):
            first.append(-1)
        again = list(self._raw(given, case))
        if again != before:
            violated(f"{case.format('convert')} gave {before} first and {again} after the caller changed the result")

    @holds_for(cases.ids_of(dflash_rule_of), examples=cases.dflash_heads, when=cases.has_dflash)
    def check_dflash_matches_its_rule(self, case: Case) -> None:
        """`convert_dflash` follows `dflash_rule`."""
        self._expect(case, dflash=True)
        self._expect(Case(None, max(case.num_layers, MIN_LAYERS_FOR_DEFAULT)), dflash=True)

    @holds_for(cases.ids_of(dflash_rule_of), examples=cases.dflash_heads, when=cases.has_dflash)
    def check_dflash_agrees_with_eagle3(self, case: Case) -> None:
        """Where both rules can name the same states, both paths give them, from the ids that each rule takes for them."""
        cls, n = type(self), case.num_layers
        states = dflash_rule_of(cls).states(case.layer_ids, n)
        try:
            twin = Case(list(rule_of(cls).ids_for(states, n)), n)
        except LayerIdError:
            return
        one, other = self._call(self.convert, twin), self._call(self.convert_dflash, case)
        if one != other:
            violated(
                f"{twin.format('convert')} gave {format_outcome(one)}, {case.format('convert_dflash')} gave"
                f" {format_outcome(other)}: both must be {format_outcome(states)}\n  next: let both paths share one conversion."
            )

    def _raw(self, given: Any, case: Case) -> Any:
        try:
            return self.convert(given, case.num_layers)
        except Exception as error:
            self._fail(case, Raised.of(error), "states")

    def _call(self, function: Callable[[Any, int], Any], case: Case) -> Outcome:
        try:
            result = function(copy.copy(case.layer_ids), case.num_layers)
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error)
        return _as_outcome(result)

    def _expect(self, case: Case, *, dflash: bool = False) -> None:
        __tracebackhide__ = True
        rule = (dflash_rule_of if dflash else rule_of)(type(self))
        got = self._call(self.convert_dflash if dflash else self.convert, case)
        expected = expected_outcome(rule, case.layer_ids, case.num_layers)
        if isinstance(expected, Raised):
            if not isinstance(got, Raised) or not issubclass(got.kind, self.rejects):
                why = f" ({case.reason})" if case.reason else ""
                self._fail(case, got, f"refused{why}: {expected.text}", dflash=dflash)
        elif got != expected or not _all_within(got, set(expected)):
            self._fail(case, got, format_outcome(expected), dflash=dflash)

    def _fail(self, case: Case, got: Outcome, expected: str, *, dflash: bool = False) -> NoReturn:
        __tracebackhide__ = True
        function = self.convert_dflash if dflash else self.convert
        rule = (dflash_rule_of if dflash else rule_of)(type(self))
        seen = [(ids, n, self._call(function, Case(ids, n))) for ids, n in PROBES]
        violated(_message(case, rule, got, expected, seen, "convert_dflash" if dflash else "convert"))


class _NotAList(Exception):  # noqa: N818  # never raised: it stands for a result of the wrong type, which is no refusal
    pass


def _as_outcome(result: Any) -> Outcome:
    if isinstance(result, (str, bytes, set, frozenset, dict)) or not isinstance(result, Iterable):
        return Raised(_NotAList, f"returned {result!r}, which is no ordered list of states")
    return tuple(_as_state(state) for state in result)


def _as_state(state: Any) -> Any:
    """Integers of any library as int; anything else as it is."""
    return operator.index(state) if hasattr(state, "__index__") and not isinstance(state, bool) else state


def _all_within(states: Any, allowed: set[Any]) -> bool:
    return all((type(state) is int or state is POST_NORM) and state in allowed for state in states)


def _message(case: Case, rule: Rule, got: Outcome, expected: str, seen: Sequence[Observation], function: str) -> str:
    """What was called, what came back, what should have, where they part, what it looks like, what to do next."""
    found = diagnose(rule, case.layer_ids, case.num_layers, got, observations=seen)
    right = expected_outcome(rule, case.layer_ids, case.num_layers)
    lines = [
        f"{case.format(function)} breaks the rule {rule.name!r}" + (f": {found.name}" if found.name else ""),
        f"  rule:     {rule.summary}; order {rule.order}, duplicates {rule.duplicates}, boundary n {_reach(rule)}",
        f"  expected: {expected}",
        f"  got:      {format_outcome(got)}",
    ]
    if isinstance(got, tuple) and isinstance(right, tuple):
        lines.append(f"  first difference: {_first_difference(got, right)}")
    return "\n".join([*lines, found.format()])


def _reach(rule: Rule) -> str:
    return "reached" if rule.reaches_n else "never reached"


def _first_difference(got: tuple[Any, ...], right: tuple[Any, ...]) -> str:
    for place, (one, other) in enumerate(zip(got, right, strict=False)):
        if one != other or type(one) is not type(other):
            return f"position {place}: {one!r} in place of {other!r}; {len(got)} states, {len(right)} expected"
    return f"{len(got)} states in place of {len(right)}"

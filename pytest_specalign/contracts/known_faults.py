"""Known faults of layer-id conversion, each as a tiny function beside its public reference.

The functions are what public engines and trainers really did; references are public issues and pull requests, or the place in
an engine where the code was read. A fault without references has no public report: careless code does it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from specalign.layer_ids import POST_NORM, LayerIdError, Rule, State, format_states

Ids: TypeAlias = Sequence[int] | None
LooksLike: TypeAlias = Callable[[Rule, Ids, int], Sequence[State]]


@dataclasses.dataclass(frozen=True, slots=True)
class Raised:
    """An exception in place of states."""

    kind: type[BaseException]
    text: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        return cls(type(error), str(error))

    @property
    def is_refusal(self) -> bool:
        """A `ValueError` or `TypeError`: the two kinds with which code says no. Anything else is a crash."""
        return issubclass(self.kind, (ValueError, TypeError))

    def format(self) -> str:
        first = self.text.partition("\n")[0]
        return f"{self.kind.__name__}: {first}" if first else self.kind.__name__


Outcome: TypeAlias = tuple[State, ...] | Raised
"""What a conversion did: the states in order, or the exception."""


def format_outcome(outcome: Outcome) -> str:
    return outcome.format() if isinstance(outcome, Raised) else format_states(outcome)


def expected_outcome(rule: Rule, ids: Ids, num_layers: int) -> Outcome:
    """What `rule` does with `ids`: its states, or the `LayerIdError` with which it refuses them."""
    try:
        return rule.states(ids, num_layers)
    except LayerIdError as error:
        return Raised.of(error)


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFault:
    """One public fault.

    Attributes:
        name: what messages and `make faults` call it.
        references: the public reports, such as "sglang PR #25454", if there are any.
        summary: what the faulty code does, one clause.
        remedy: what to do about it, one sentence.
        looks_like: the faulty code in little: `(rule, ids, num_layers) -> states`, or it raises.
    """

    name: str
    references: tuple[str, ...]
    summary: str
    remedy: str
    looks_like: LooksLike

    def outcome(self, rule: Rule, ids: Ids, num_layers: int) -> Outcome:
        """What the fault makes of `ids`."""
        try:
            return tuple(self.looks_like(rule, ids, num_layers))
        except Exception as error:  # a fault may crash in any way: that is its outcome
            return Raised.of(error)

    def format(self) -> str:
        return f"{self.name} ({', '.join(self.references) or 'no public report'}): {self.summary}"


def _or_default(rule: Rule, ids: Ids, n: int, explicit: Callable[[Sequence[int]], Sequence[State]]) -> Sequence[State]:
    return rule.default(n) if ids is None else explicit(ids)


def _shifted(by: int) -> LooksLike:
    return lambda rule, ids, n: _or_default(rule, ids, n, lambda given: [k + by for k in given])


def _rest_dropped(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return _or_default(rule, ids, n, lambda given: [k + 1 for k in given if k + 1 < n])


def _capped(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return _or_default(rule, ids, n, lambda given: [min(k + 1, n) for k in given])


def _by_max(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return _or_default(rule, ids, n, lambda given: list(given) if max(given) == n else [k + 1 for k in given])


def _by_first(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return _or_default(rule, ids, n, lambda given: [k + 1 for k in given] if given[0] == 1 else list(given))


def _unreached(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return [state for state in rule.narrowed(reaches_n=True).states(ids, n) if state != n]


def _index_error(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    layers = list(range(n))
    return [layers[state] for state in rule.narrowed(reaches_n=True).states(ids, n) if state is not POST_NORM]


def _post_norm(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return [POST_NORM if state == n else state for state in rule.narrowed(reaches_n=True).states(ids, n)]


def _default_shifted(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return [b + 1 for b in rule.default(n)] if ids is None else rule.states(ids, n)


def _sorted(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return rule.narrowed(order="layer").states(ids, n)


def _collapsed(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return rule.narrowed(duplicates="collapse").states(ids, n)


def _from_the_end(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    top = n - 1 if rule.shift == "always" else n
    return rule.states(ids if ids is None else [k if k >= 0 else top + 1 + k for k in ids], n)


def _shallow_default(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return (2, n // 2, n - 3) if ids is None else rule.states(ids, n)


def _coerced(rule: Rule, ids: Any, n: int) -> Sequence[State]:
    """Makes a list of integers out of whatever comes."""
    given = re.findall(r"-?\d+", ids) if isinstance(ids, str) else [ids] if isinstance(ids, (int, float)) else ids
    return rule.states(given if given is None else [int(k) for k in given if k is not None], n)


def _unchecked(rule: Rule, ids: Ids, n: int) -> Sequence[State]:
    return _or_default(rule, ids, n, lambda given: rule.named(given, n) if given else ())


KNOWN_FAULTS: Final = (
    KnownFault(
        "ids-not-checked",
        ("SGLang 0.5.23 setters",),
        "whatever the list holds is passed on",
        "Check type, range and duplicates before converting, and raise ValueError naming the id and n.",
        _unchecked,
    ),
    KnownFault(
        "one-added-and-the-rest-dropped",
        ("sglang issue #32226", "sglang PR #32334"),
        "1 is added to ids that are boundaries, and what then lies past the last block is never captured",
        "Take the ids as they are when max(ids) == n, and capture boundary n after the last block.",
        _rest_dropped,
    ),
    KnownFault(
        "one-added-but-capped-at-n",
        ("tokenspeed #526",),
        "1 is added to every id and the sum is capped at n, so the last id means a boundary and the others mean block outputs",
        "Decide once for the whole list whether 1 is added; never cap.",
        _capped,
    ),
    KnownFault(
        "one-always-added",
        ("sglang PR #25454", "sglang PR #23569"),
        "1 is added to ids that are boundaries already; only None escapes, so None and the explicit default disagree",
        "Add 1 only to ids that are block outputs.",
        _shifted(1),
    ),
    KnownFault(
        "ids-taken-as-is",
        ("vllm PR #43671", "vllm #40727", "onnxruntime-genai #2538"),
        "ids that are block outputs are taken as boundaries: every state is one block early",
        "Add 1 to every id: the output of block k is boundary k+1.",
        _shifted(0),
    ),
    KnownFault(
        "two-added",
        ("vllm issue #42505",),
        "the +1 for block outputs is applied twice, once where the config is read and once in the setter",
        "Add 1 in one place only.",
        _shifted(2),
    ),
    KnownFault(
        "shift-decided-by-max",
        ("SGLang 0.5.23 gpt_oss setter",),
        "whether 1 is added is guessed from max(ids) == n, so boundaries below n such as [2, 18, 33] move by one",
        "Take the convention from the head's maker, not from the ids; use the rule `boundary` or `output`.",
        _by_max,
    ),
    KnownFault(
        "shift-decided-by-the-first-id",
        ("SGLang 0.5.23 deepseek_v2 setter",),
        "whether 1 is added is guessed from ids[0] == 1, so block outputs that start elsewhere stay one block early",
        "Take the convention from the head's maker, not from the ids; use the rule `boundary` or `output`.",
        _by_first,
    ),
    KnownFault(
        "boundary-n-dropped",
        ("vllm #46973", "SGLang 0.5.23 llama and qwen loops"),
        "the capture loop tests before each block and never after the last one, so boundary n is missing without a word",
        "Test once more after the loop, before the final norm.",
        _unreached,
    ),
    KnownFault(
        "index-error-at-n",
        ("sglang #32204", "sglang PR #32206"),
        "boundaries are flagged on the list of blocks, which has no element n",
        "Keep the boundaries in a set beside the blocks, or refuse n with a message.",
        _index_error,
    ),
    KnownFault(
        "post-norm-for-boundary-n",
        ("verl-SpeCo #20", "Automodel #3082"),
        "the stream after the last block is handed on after the final norm, as `output_hidden_states` does",
        "Capture before the final norm, or declare the rule `hf`.",
        _post_norm,
    ),
    KnownFault(
        "default-shifted-too",
        ("SGLang 0.5.23 minimax_m3_vl setter",),
        "None stands for [2, n//2, n-3] + 1",
        "Leave the default boundaries alone, or declare the rule `output_default_shifted`.",
        _default_shifted,
    ),
    KnownFault(
        "ids-ignored",
        ("sglang PR #22836", "tokenspeed #526"),
        "the default states are used whatever the ids say (set too late, or hard-coded)",
        "Hand the ids to the target before its graph is captured.",
        lambda rule, ids, n: (2, n // 2, n - 3),
    ),
    KnownFault(
        "every-state-returned",
        ("EAGLE #294",),
        "all n+1 states come back in place of the ones asked for",
        "Select the states that the ids name.",
        lambda rule, ids, n: range(n + 1),
    ),
    KnownFault(
        "sorted-by-layer",
        ("SGLang 0.5.23 capture loops",),
        "states come in the order in which the layers run, not in the order of the ids",
        "Put the captured states back in the order of the ids.",
        _sorted,
    ),
    KnownFault(
        "duplicates-collapsed",
        ("SGLang 0.5.23 capture loops", "ModelOpt hf_eagle.py"),
        "a state that is named twice comes back once, so the width no longer fits the ids",
        "Refuse ids that name one state twice, or hand it on twice.",
        _collapsed,
    ),
    KnownFault(
        "negative-counts-from-the-end",
        ("verl-SpeCo PR #21", "Automodel #3083"),
        "a negative id indexes the states from the end, as a Python list does",
        "Refuse negative ids.",
        _from_the_end,
    ),
    KnownFault(
        "default-on-a-shallow-target",
        ("ModelOpt hf_eagle.py",),
        "[2, n//2, n-3] is used on a target too shallow for three different boundaries",
        "Refuse None below 7 layers.",
        _shallow_default,
    ),
    KnownFault(
        "ids-coerced",
        (),
        "what is no list of integers is made into one: sets, mappings, text, single numbers, lists with nulls",
        "Refuse anything but a list or tuple of integers: a set has no order, and a dropped null is a lost state.",
        _coerced,
    ),
)
"""Order matters: of two faults that explain everything equally well, the first is named. A missing check comes before a wrong
conversion, which would give other states for good ids too."""

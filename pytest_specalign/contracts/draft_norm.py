"""`DraftNormContract`: property tests for the way from a target's states into a draft head, and for the head's edges."""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor

from pytest_specalign.contracts import draft_cases as cases
from pytest_specalign.contracts import draft_heads as heads
from pytest_specalign.contracts.base import holds_for, is_open, left_open, violated
from pytest_specalign.contracts.draft_faults import LOAD_FAULTS
from pytest_specalign.contracts.draft_head import METHODS, DraftHeadProperties, has
from pytest_specalign.contracts.draft_heads import FC_NORM, NORM_BEFORE_FC, DraftCase
from pytest_specalign.contracts.draft_looks import Inputs, What
from pytest_specalign.contracts.known_faults import Raised


class DraftNormContract(DraftHeadProperties, abstract=True):
    """What a draft head must make of the target's states. Subclass it and fill in one method or more.

    Each method brings its properties: `fc_input` or `combine` the norms before fc, `outputs` the final norm, `first_residual`
    `norm_before_residual`, `map_tokens` d2t, `load` strict loading.

    Attributes:
        both: "apply" if both norms run where the config asks for both, `input_norm` first; "refuse" if such a config is refused.
        norm_before_fc_places: the dotted config keys of the flag, in order of precedence.
        fc_norm_places: the same for `fc_norm`.
        dtype: of weights and states.
        tolerance: largest difference, relative to the larger of 1 and the largest right value.
        rejects: exceptions that count as refusing.
        borrows_lm_head: a head with `draft_vocab_size == vocab_size` and no lm_head in the file takes the target's.
        legacy_names: `load` takes `midlayer` and `aux_norm_low`, `_mid`, `_high`.
        settings: hypothesis settings in place of the loaded profile.
    """

    both: ClassVar[Literal["apply", "refuse"]] = "apply"
    norm_before_fc_places: ClassVar[Sequence[str]] = (f"eagle_config.{NORM_BEFORE_FC}", NORM_BEFORE_FC)
    fc_norm_places: ClassVar[Sequence[str]] = (f"eagle_config.{FC_NORM}", FC_NORM)

    @left_open
    def fc_input(self, config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
        """What goes into fc, `[rows, chunks * width]`, of `chunks` states `[rows, width]`."""
        raise NotImplementedError

    @left_open
    def combine(self, config: dict[str, Any], weights: dict[str, Tensor], states: list[Tensor]) -> Tensor:
        """What comes out of fc, `[rows, hidden_size]`."""
        raise NotImplementedError

    @classmethod
    def declaration_problem(cls) -> str | None:
        name = cls.__name__
        if all(is_open(cls, method) for method in METHODS):
            return f"{name} lacks `def fc_input(self, config, weights, states)`, or one of {', '.join(METHODS[1:])}"
        if cls.both not in ("apply", "refuse"):
            return f"{name}.both = {cls.both!r}: 'apply' or 'refuse'"
        for attribute in ("norm_before_fc_places", "fc_norm_places"):
            places = getattr(cls, attribute)
            if isinstance(places, str) or not places or not all(isinstance(p, str) and p for p in places):
                return f"{name}.{attribute} = {places!r}: dotted config keys in order of precedence"
        return None

    @holds_for(cases.with_norms("none"), examples=cases.example_with("none"), when=has("fc_input", "combine"))
    def check_without_norms_the_states_are_concatenated(self, case: DraftCase) -> None:
        """As many states as there are ids, in their order, and nothing else."""
        self._expect(case)

    @holds_for(cases.with_norms("whole"), examples=cases.example_with("whole"), when=has("fc_input", "combine"))
    def check_norm_before_fc_is_over_the_whole(self, case: DraftCase) -> None:
        """`norm_before_fc`: one RMS over the whole concatenation, times `input_norm.weight`."""
        self._expect(case)

    @holds_for(cases.with_norms("chunk"), examples=cases.example_with("chunk"), when=has("fc_input", "combine"))
    def check_fc_norm_is_per_chunk(self, case: DraftCase) -> None:
        """`fc_norm`: one RMS for each chunk, times that chunk's weight."""
        self._expect(case)

    @holds_for(cases.with_norms("both"), examples=cases.example_with("both"), when=has("fc_input", "combine"))
    def check_both_norms_as_declared(self, case: DraftCase) -> None:
        """Both flags: `input_norm`, then `fc_norm`; or a refusal."""
        if self.both == "apply":
            self._expect(case)
            return
        for what, inputs in self._inputs(case):
            got = self._call(what, inputs)
            if not isinstance(got, Raised) or not issubclass(got.kind, self.rejects):
                shown = got.format() if isinstance(got, Raised) else "a tensor"
                self._fail_named(case, "both-norms-applied", "a refusal", shown)

    @holds_for(cases.flag_places, examples=cases.flag_place_examples, when=has("fc_input", "combine"))
    def check_flags_are_read_wherever_they_stand(self, case: DraftCase) -> None:
        """A flag that stands in one place only counts, wherever that is."""
        self._expect(case)

    @holds_for(
        cases.two_places,
        examples=cases.two_place_examples,
        when=lambda cls: has("fc_input", "combine")(cls) and cases.has_two_places(cls),
    )
    def check_the_first_place_wins(self, case: DraftCase) -> None:
        """Where two places contradict each other, the first one counts; null counts as absent."""
        self._expect(case)

    @holds_for(cases.equal_widths, examples=cases.equal_examples, when=has("fc_input", "combine"))
    def check_equal_widths_skip_nothing(self, case: DraftCase) -> None:
        """One state as wide as the head goes through the norms and fc all the same."""
        self._expect(case)

    @holds_for(cases.tiny, when=has("fc_input", "combine"))
    def check_eps_is_the_configs(self, case: DraftCase) -> None:
        """On small states `rms_norm_eps` decides, and it is the config's."""
        self._expect(case)

    @holds_for(cases.null_width, examples=cases.null_examples, when=has("fc_input", "combine"))
    def check_a_null_target_width_is_the_heads_own(self, case: DraftCase) -> None:
        """`target_hidden_size: null` means `hidden_size`."""
        self._expect(case)

    @holds_for(cases.idle, when=has("fc_input", "combine"))
    def check_an_idle_batch_gives_no_rows(self, case: DraftCase) -> None:
        """No rows in, no rows out, of the right width."""
        self._expect(case)

    @holds_for(cases.any_head, when=has("fc_input", "combine"))
    def check_leaves_its_inputs_alone(self, case: DraftCase) -> None:
        """States, weights and config are as they were."""
        for name in ("fc_input", "combine"):
            if is_open(type(self), name):
                continue
            config, weights = case.config(), self._weights(case.weights())
            states = [self._placed(state) for state in case.states()]
            before = copy.deepcopy((config, weights, states))
            getattr(self, name)(config, weights, states)
            changed = _changed(before, (config, weights, states))
            if changed:
                self._fail_named(case, "inputs-changed", "unchanged inputs", f"{name} changed {changed}")

    def _expect(self, case: DraftCase) -> None:
        __tracebackhide__ = True
        for what, inputs in self._inputs(case):
            right = heads.fc_input(case, inputs.weights, inputs.states)
            if what == "combine":
                right = right @ inputs.weights["fc.weight"].T
            self._judge(what, inputs, right, what)

    def _inputs(self, case: DraftCase) -> list[tuple[What, Inputs]]:
        """What the method sees, rounded to the declared dtype, for each of the two methods that there is."""
        weights = {name: weight.to(self.dtype).double() for name, weight in case.weights().items()}
        made = Inputs(case, weights, [state.to(self.dtype).double() for state in case.states()])
        methods: tuple[What, ...] = ("fc_input", "combine")
        return [(what, made) for what in methods if not is_open(type(self), what)]

    def _called(self, what: What, inputs: Inputs) -> Any:
        if what not in ("fc_input", "combine"):
            return super()._called(what, inputs)
        states = [self._placed(state) for state in inputs.states]
        return getattr(self, what)(inputs.case.config(), self._weights(inputs.weights), states)

    def _observed(self, what: What) -> list[Inputs]:
        if what not in ("fc_input", "combine"):
            return super()._observed(what)
        return [inputs for case in cases.probes(type(self)) for kind, inputs in self._inputs(case) if kind == what]

    def _fail_named(self, case: DraftCase, name: str, expected: str, got: str) -> NoReturn:
        __tracebackhide__ = True
        fault = LOAD_FAULTS[name]
        violated(
            f"the way into fc goes wrong: {name}\n  head:     {case.format()}\n  expected: {expected}\n  got:      {got}\n"
            f"  looks like: {fault.format()}\n  next: {fault.remedy}"
        )


def _changed(before: Any, after: Any) -> str | None:
    for name, old, new in zip(("the config", "a weight", "a state"), before, after, strict=True):
        if isinstance(old, dict) and not any(isinstance(v, Tensor) for v in old.values()):
            same = old == new
        elif isinstance(old, dict):
            same = old.keys() == new.keys() and all(torch.equal(old[k], new[k]) for k in old)
        else:
            same = len(old) == len(new) and all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
        if not same:
            return name
    return None

"""The part of `DraftNormContract` about the head itself: loading, draft vocabulary, final norm, first residual. All optional."""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NoReturn

import torch
from torch import Tensor

from pytest_specalign.contracts import draft_cases as cases
from pytest_specalign.contracts import draft_heads as heads
from pytest_specalign.contracts import draft_loads as loads
from pytest_specalign.contracts.base import Contract, holds_for, is_open, left_open, violated
from pytest_specalign.contracts.draft_cases import TokenCase
from pytest_specalign.contracts.draft_faults import LOAD_FAULTS, KnownDraftFault, agrees, diagnose_draft, gap
from pytest_specalign.contracts.draft_heads import DraftCase
from pytest_specalign.contracts.draft_loads import LoadCase
from pytest_specalign.contracts.draft_looks import Inputs, What
from pytest_specalign.contracts.known_faults import Raised

METHODS: Final = ("fc_input", "combine", "outputs", "first_residual", "map_tokens", "load")


def has(*names: str) -> Callable[[Any], bool]:
    """One of these methods is filled in; or none of all, so that a class without any has a test that says so."""
    return lambda cls: any(not is_open(cls, name) for name in names) or all(is_open(cls, name) for name in METHODS)


class DraftHeadProperties(Contract, abstract=True):
    """See `DraftNormContract`."""

    dtype: ClassVar[torch.dtype] = torch.float32
    tolerance: ClassVar[float] = 1e-5
    rejects: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError, RuntimeError)
    borrows_lm_head: ClassVar[bool] = False
    legacy_names: ClassVar[bool] = True

    @classmethod
    def device(cls) -> str:
        """Where weights and states are. Override it to run on a GPU: `return "cuda"`."""
        return "cpu"

    @left_open
    def outputs(self, config: dict[str, Any], weights: dict[str, Tensor], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(what the lm_head gets, what the next draft step gets) of `hidden`, the stream after the last layer. Optional."""
        raise NotImplementedError

    @left_open
    def first_residual(self, config: dict[str, Any], weights: dict[str, Tensor], hidden: Tensor) -> Tensor:
        """The residual that the first layer adds, of `hidden`, which is fc's output. Optional."""
        raise NotImplementedError

    @left_open
    def map_tokens(self, d2t: Tensor, draft_tokens: Tensor) -> Tensor:
        """Draft tokens, int64 of any shape, as target tokens. Optional."""
        raise NotImplementedError

    @left_open
    def load(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        """Loads a head, or raises one of `rejects`. What it returns does not matter. Optional."""
        raise NotImplementedError

    @holds_for(cases.flagged("norm_output"), examples=lambda cls: cases.flagged_examples("norm_output"), when=has("outputs"))
    def check_logits_are_normed_and_the_flag_says_what_is_recycled(self, case: DraftCase) -> None:
        """Logits come from the normed stream; the next step gets it too if `norm_output` is true, else the stream as it is."""
        flag, weight = cases.stated(case, "norm_output"), case.norm_weight()
        inputs = Inputs(case, {"norm.weight": weight}, [case.hidden()], flag)
        normed = heads.rms_norm(inputs.states[0], weight, case.eps)
        self._judge("logits", inputs, normed, "outputs")
        self._judge("recycled", inputs, normed if flag else inputs.states[0], "outputs")

    @holds_for(
        cases.flagged("norm_before_residual"),
        examples=lambda cls: cases.flagged_examples("norm_before_residual"),
        when=has("first_residual"),
    )
    def check_the_first_residual_follows_the_flag(self, case: DraftCase) -> None:
        """The first layer's residual is hidden_norm(hidden) if `norm_before_residual` is true, else hidden."""
        flag, name = cases.stated(case, "norm_before_residual"), "layers.0.hidden_norm.weight"
        inputs = Inputs(case, {name: case.norm_weight()}, [case.hidden()], flag)
        normed = heads.rms_norm(inputs.states[0], inputs.weights[name], case.eps)
        self._judge("residual", inputs, normed if flag else inputs.states[0], "first_residual")

    @holds_for(cases.token_maps, examples=cases.token_examples, when=has("map_tokens"))
    def check_tokens_map_by_offsets(self, case: TokenCase) -> None:
        """target token = draft token + d2t[draft token], whatever the shape, integers in and out."""
        d2t, tokens = torch.tensor(case.offsets), torch.tensor(case.tokens, dtype=torch.int64).reshape(-1, case.columns)
        tokens = tokens.squeeze(-1) if case.columns == 1 else tokens
        self._judge("tokens", Inputs(DraftCase(), {}, [d2t, tokens]), d2t[tokens] + tokens, "map_tokens")

    @holds_for(loads.whole, examples=loads.whole_examples, when=has("load"))
    def check_loads_whole_heads(self, case: LoadCase) -> None:
        """A whole checkpoint loads: with and without norms, with a small vocabulary and with the target's."""
        self._must_load(case)

    @holds_for(loads.legacy, examples=loads.legacy_examples, when=lambda cls: has("load")(cls) and cls.legacy_names)
    def check_loads_legacy_names(self, case: LoadCase) -> None:
        """`midlayer` is `layers.0`; `aux_norm_low`, `_mid`, `_high` are `fc_norm.0`, `.1`, `.2`."""
        self._must_load(case)

    @holds_for(loads.missing, examples=loads.missing_examples, when=has("load"))
    def check_refuses_missing_tensors(self, case: LoadCase) -> None:
        """A parameter that the file does not fill is an error, not a random value."""
        self._must_refuse(case)

    @holds_for(loads.unknown, when=has("load"))
    def check_refuses_unknown_tensors(self, case: LoadCase) -> None:
        """A tensor that nothing uses is an error; legacy names count as whole segments only."""
        self._must_refuse(case)

    @holds_for(loads.unused_norm, examples=loads.unused_norm_examples, when=has("load"))
    def check_refuses_a_norm_that_no_flag_asks_for(self, case: LoadCase) -> None:
        """A norm whose weight is in the file and whose flag is not found is an error: the flag may stand elsewhere."""
        self._must_refuse(case)

    @holds_for(loads.no_lm_head, examples=loads.no_lm_head_examples, when=has("load"))
    def check_refuses_a_missing_lm_head(self, case: LoadCase) -> None:
        """With `draft_vocab_size` in the config the lm_head is the head's own: without it in the file there is none."""
        self._must_refuse(case)

    @holds_for(loads.bad_d2t, examples=loads.bad_d2t_examples, when=has("load"))
    def check_refuses_a_bad_d2t(self, case: LoadCase) -> None:
        """A small vocabulary needs a d2t of its size that stays within the target's vocabulary."""
        self._must_refuse(case)

    def _must_load(self, case: LoadCase) -> None:
        __tracebackhide__ = True
        error = self._loaded(case)
        if error is not None:
            self._fail_loading(case, error.format(), "loaded")

    def _must_refuse(self, case: LoadCase) -> None:
        __tracebackhide__ = True
        error = self._loaded(case)
        if error is None or not issubclass(error.kind, self.rejects):
            self._fail_loading(case, "loaded without a word" if error is None else error.format(), "refused")

    def _loaded(self, case: LoadCase) -> Raised | None:
        tensors = {name: tensor.to(self.device()) for name, tensor in case.tensors().items()}
        try:
            self.load(case.head.config(), tensors)
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error)
        return None

    def _fail_loading(self, case: LoadCase, got: str, expected: str) -> NoReturn:
        __tracebackhide__ = True
        fault = LOAD_FAULTS.get(case.fault) if got == "loaded without a word" else None
        lines = [
            "load(config, tensors) goes wrong" + (f": {fault.name}" if fault else ""),
            f"  checkpoint: {case.change or 'whole'}; norms {case.head.norms}, vocabulary {case.head.vocabulary}",
            f"  expected: {expected}",
            f"  got:      {got}",
        ]
        lines += [f"  looks like: {fault.format()}", f"  next: {fault.remedy}"] if fault else ["  next: load this one by hand."]
        violated("\n".join(lines))

    def _call(self, what: What, inputs: Inputs) -> Any:
        """What the method under test made of copies of the inputs, or `Raised`."""
        try:
            return self._called(what, inputs)
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error)

    def _called(self, what: What, inputs: Inputs) -> Any:
        config, states = inputs.case.config(), [self._placed(state) for state in inputs.states]
        if what == "tokens":
            return self.map_tokens(*states)
        weights = self._weights(inputs.weights)
        if what == "residual":
            return self.first_residual(config, weights, states[0])
        logits, recycled = self.outputs(config, weights, states[0])
        return logits if what == "logits" else recycled

    def _weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._placed(weight) for name, weight in weights.items()}

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device(), self.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

    def _judge(self, what: What, inputs: Inputs, right: Tensor, function: str) -> None:
        """Fails unless the method gives `right`, within the tolerance and in the declared dtype."""
        __tracebackhide__ = True
        got = self._call(what, inputs)
        wanted = f"{list(right.shape)}, {str(self.dtype if right.is_floating_point() else right.dtype).removeprefix('torch.')}"
        if not isinstance(got, (Tensor, Raised)):
            self._fail(what, inputs, Raised(TypeError), f"a {type(got).__name__} in place of a tensor", wanted, function, right)
        if isinstance(got, Raised):
            self._fail(what, inputs, got, got.format(), wanted, function, right)
        if got.shape != right.shape or gap(got, right) > self.tolerance:
            self._fail(what, inputs, got, _difference(got, right, self.tolerance), wanted, function, right)
        if got.dtype != (self.dtype if right.is_floating_point() else right.dtype):
            self._fail(what, inputs, got, str(got.dtype).removeprefix("torch."), wanted, function, right)

    def _fail(
        self, what: What, inputs: Inputs, got: Tensor | Raised, shown: str, wanted: str, function: str, right: Tensor
    ) -> NoReturn:
        __tracebackhide__ = True
        faults = self._faults(what, inputs, got, right)
        lines = [
            f"{function} goes wrong" + (f": {faults[0].name}" if faults else ""),
            f"  head:     {inputs.case.format()}" if what != "tokens" else f"  d2t:      {inputs.states[0].tolist()}",
            f"  expected: {what} {wanted}",
            f"  got:      {shown}",
        ]
        if faults:
            lines.append(f"  looks like: {faults[0].format()}")
            lines += [f"  less likely: {', '.join(f.name for f in faults[1:])}"] if faults[1:] else []
            lines.append(f"  next: {faults[0].remedy}")
        else:
            lines.append("  looks like: no known fault\n  next: compute this one head by hand, step by step.")
        violated("\n".join(lines))

    def _faults(self, what: What, inputs: Inputs, got: Tensor | Raised, right: Tensor) -> list[KnownDraftFault]:
        """The known faults that give this, those first that explain most of the observations."""
        fitting = diagnose_draft(what, inputs, got, right, tolerance=self.tolerance)
        seen = [(i, made) for i in self._observed(what) if isinstance(made := self._call(what, i), (Tensor, Raised))]
        score = {f.name: sum(agrees(f, what, i, made, tolerance=self.tolerance) for i, made in seen) for f in fitting}
        return sorted(fitting, key=lambda fault: -score[fault.name])

    def _observed(self, what: What) -> list[Inputs]:
        """More inputs, which tell the known faults apart."""
        flags = {"logits": "norm_output", "recycled": "norm_output", "residual": "norm_before_residual"}
        if what not in flags:
            return []
        name = "layers.0.hidden_norm.weight" if what == "residual" else "norm.weight"
        found = cases.flagged_examples(flags[what])
        return [Inputs(c, {name: c.norm_weight()}, [c.hidden()], cases.stated(c, flags[what])) for c in found]


def _difference(got: Tensor, right: Tensor, tolerance: float) -> str:
    if got.shape != right.shape:
        return f"shape {list(got.shape)}"
    apart = torch.nan_to_num((got.detach().to("cpu", torch.float64) - right.double()).abs(), nan=float("inf"))
    row, column = divmod(int(apart.argmax()), right.shape[-1])
    return f"max abs difference {float(apart.max()):g} at row {row}, column {column}; at most {tolerance:g} of the largest value"

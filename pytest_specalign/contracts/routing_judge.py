"""How `RoutingContract` calls its hooks and judges what they give."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor

from pytest_specalign.contracts import routing_large as large
from pytest_specalign.contracts.base import Contract, is_open, not_looked_at, violated
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.routing_cases import DTYPES, Inputs, probes
from pytest_specalign.contracts.routing_faults import OTHER_ROUTING_FAULTS, diagnose_routing
from pytest_specalign.contracts.routing_hooks import HOOKS, Output, What, bits, difference, same_bits
from pytest_specalign.contracts.routing_replays import ReplayCase, Served, diagnose_replay, schedule_examples
from specalign.routing.topk import Order

RUNS = 3
_FEW = 24
"""Positions up to so many are shown."""


class RoutingJudge(Contract, abstract=True):
    """See `RoutingContract`."""

    dtypes: ClassVar[Sequence[torch.dtype]] = DTYPES
    topk_order: ClassVar[Order] = "sorted"
    weight_gradient: ClassVar[Literal["tree", "bounded"]] = "tree"
    checks: ClassVar[Sequence[str]] = ()
    rejects: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError, RuntimeError)
    large_elements: ClassVar[int] = 2**31

    @classmethod
    def device(cls) -> str:
        """Where the hooks get their tensors. Override it to run on a GPU: `return "cuda"`."""
        return "cpu"

    def _gives(self, what: str) -> bool:
        return not is_open(type(self), what)

    def _placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(one.to(self.device(), copy=True) if isinstance(one, Tensor) else one for one in arguments)

    def _call(self, what: What, inputs: Inputs, *, poison: bool = False) -> Output | Raised:
        """What the hook made of copies of the inputs, or `Raised`."""
        try:
            arguments = self._placed(HOOKS[what].arguments(inputs))
            with poisoned() if poison else contextlib.nullcontext():
                found = getattr(self, what)(*arguments)
            return HOOKS[what].output(found)
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error)

    def _right(self, what: What, inputs: Inputs) -> Output:
        return HOOKS[what].right(inputs, self.topk_order)

    def _judge(self, what: What, inputs: Inputs, *, padding: bool = False) -> None:
        """Fails unless the hook gives what is right, bit for bit; the padding rows count only with `padding`."""
        __tracebackhide__ = True
        got, right = self._looked_at(what, inputs, padding)
        if isinstance(got, Raised) or not same_bits(got, right):
            shown = got.format() if isinstance(got, Raised) else difference(HOOKS[what], got, right)
            faults = diagnose_routing(what, inputs, got, right, seen=self._seen(what, padding))
            self._fail(HOOKS[what].call, inputs, shown, [f.name for f in faults], [f.format() for f in faults], faults)

    def _looked_at(self, what: What, inputs: Inputs, padding: bool) -> tuple[Output | Raised, Output]:
        got, right = self._call(what, inputs, poison=padding), self._right(what, inputs)
        if isinstance(got, Raised):
            return got, right
        if not padding:
            got = _blanked(what, inputs, got, right)
        if what == "gather_backward" and self.weight_gradient == "bounded" and _within(inputs, got[1], right[1]):
            got = (got[0], right[1])
        return got, right

    def _seen(self, what: What, padding: bool) -> list[tuple[Inputs, Output | Raised, Output]]:
        """What the hook gives on the probes, which tell the known faults apart; found out once."""
        kept = self.__dict__.setdefault("_probed", {})
        if (what, padding) not in kept:
            made = [case.inputs() for case in probes(type(self))]
            kept[what, padding] = [(i, *self._looked_at(what, i, padding)) for i in made]
        found: list[tuple[Inputs, Output | Raised, Output]] = kept[what, padding]
        return found

    def _judge_runs(self, what: What, inputs: Inputs) -> None:
        __tracebackhide__ = True
        right = self._right(what, inputs)
        made = [self._call(what, inputs) for _ in range(RUNS)]
        runs = [one if isinstance(one, Raised) else _blanked(what, inputs, one, right) for one in made]
        for number, one in enumerate(runs[1:], start=2):
            if isinstance(runs[0], Raised) or isinstance(one, Raised):
                same, shown = one == runs[0], "an exception in one of them"
            else:
                same, shown = same_bits(one, runs[0]), difference(HOOKS[what], one, runs[0])
            if not same:
                self._fail_named(HOOKS[what].call, inputs, f"run {number} and run 1: {shown}", "runs-differ")

    def _judge_inputs(self, what: What, inputs: Inputs) -> None:
        __tracebackhide__ = True
        given = self._placed(HOOKS[what].arguments(inputs))
        before = self._placed(given)
        with contextlib.suppress(Exception):  # whether it may raise is for the other properties
            getattr(self, what)(*given)
        for place, (old, new) in enumerate(zip(before, given, strict=True)):
            if isinstance(old, Tensor) and not torch.equal(bits(old), bits(new)):
                self._fail_named(HOOKS[what].call, inputs, f"argument {place + 1} was changed", "inputs-changed")

    def _must_refuse(self, what: What, inputs: Inputs, fault: str) -> None:
        __tracebackhide__ = True
        got = self._call(what, inputs)
        if not isinstance(got, Raised) or not issubclass(got.kind, self.rejects):
            shown = got.format() if isinstance(got, Raised) else "a result without a word"
            self._fail_named(HOOKS[what].call, inputs, f"{shown}, in place of a refusal", fault)

    def _judge_large(self, case: large.LargeCase) -> None:
        __tracebackhide__ = True
        reason = large.no_room(case, self.device())
        if reason is not None:
            not_looked_at(reason)
        for what, judge in large.LARGE.items():
            if self._gives(what):
                try:
                    wrong = judge(case, self.device(), getattr(self, what))
                except Exception as error:  # a wrapped offset may end in any exception
                    wrong = Raised.of(error).format()
                if wrong is not None:
                    self._fail_named(HOOKS[what].call, case, wrong, "int32-overflow")

    def _judge_replay(self, case: ReplayCase) -> None:
        __tracebackhide__ = True
        got = self._serve(case)
        if got != case.expected():
            name = diagnose_replay(case, got, [(one, self._serve(one)) for one in schedule_examples(type(self))])
            shown = got.format() if isinstance(got, Raised) else f"ids of microbatches {list(got)}"
            shown = f"{shown} in place of {list(case.expected())}"
            faults = [OTHER_ROUTING_FAULTS[name]] if name else []
            self._fail(_REPLAY, case, shown, [f.name for f in faults], [f.format() for f in faults], faults)

    def _must_refuse_replay(self, case: ReplayCase, fault: str) -> None:
        __tracebackhide__ = True
        got = self._serve(case)
        if not isinstance(got, Raised) or not issubclass(got.kind, self.rejects):
            shown = got.format() if isinstance(got, Raised) else f"ids of microbatches {list(got)}"
            self._fail_named(_REPLAY, case, f"{shown}, in place of a refusal", fault)

    def _serve(self, case: ReplayCase) -> Served:
        try:
            found = self.replay(case.ids(), case.calls, case.experts)  # type: ignore[attr-defined]
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error)
        return case.served(found)

    def _fail_named(self, call: str, case: Any, shown: str, name: str) -> NoReturn:
        __tracebackhide__ = True
        fault = OTHER_ROUTING_FAULTS[name]
        self._fail(call, case, shown, [fault.name], [fault.format()], [fault])

    def _fail(self, call: str, case: Any, shown: str, names: list[str], formats: list[str], faults: Sequence[Any]) -> NoReturn:
        __tracebackhide__ = True
        lines = [f"{call} goes wrong" + (f": {names[0]}" if names else ""), *_described(case), f"  got:       {shown}"]
        if names:
            lines.append(f"  looks like: {formats[0]}")
            lines += [f"  less likely: {', '.join(names[1:])}"] if names[1:] else []
            lines.append(f"  next: {faults[0].remedy}")
        else:
            lines.append("  looks like: no known fault\n  next: compute this one element by hand, slot by slot.")
        violated("\n".join(lines))


_REPLAY = "replay(microbatches, calls, num_experts)"


def _described(case: Any) -> list[str]:
    if not isinstance(case, Inputs):
        return [f"  case:      {case.format()}"]
    few = case.positions.numel() <= _FEW
    return [f"  case:      {case.case.format()}", *([f"  positions: {case.positions.tolist()}"] if few else [])]


def _blanked(what: What, inputs: Inputs, got: Output, right: Output) -> Output:
    """With padding rows as they should be, where the shape allows it."""
    if what not in ("scatter", "gather_backward") or got[0].shape != right[0].shape:
        return got
    rows = got[0].clone()
    rows[inputs.padding_rows] = 0
    return (rows, *got[1:])


def _within(inputs: Inputs, got: Tensor, right: Tensor) -> bool:
    """Whether FP32 dot products are as near to the float64 ones as any order of summing must be."""
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    taken = inputs.positions >= 0
    tokens = taken.nonzero()[:, 0]
    products = inputs.token_rows[tokens].double() * inputs.expert_rows[inputs.positions[taken]].double()
    bound = products.abs().sum(1) * max(products.shape[1], 1) * 2.0**-23
    near = ((got[taken].double() - products.sum(1)).abs() <= bound).all()
    return bool(near) and torch.equal(bits(got[~taken]), bits(right[~taken]))


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New memory of torch is filled with NaN inside: torch does so in its deterministic mode, which is set back afterwards."""
    mode, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warn)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]

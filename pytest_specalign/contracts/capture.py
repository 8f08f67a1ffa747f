"""`CaptureContract`: property tests for code that captures states of a target while it runs."""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NoReturn, get_args

import torch
from torch import Tensor, nn

from pytest_specalign.contracts import capture_cases as cases
from pytest_specalign.contracts.base import Contract, holds_for, is_open, left_open, violated
from pytest_specalign.contracts.capture_cases import CaptureCase, declared_by, layout_of
from pytest_specalign.contracts.capture_compare import Judged, identify, judge
from pytest_specalign.contracts.capture_faults import diagnose_capture
from pytest_specalign.contracts.capture_looks import Captured
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.probe import InPlace, ProbeError, ProbeLayout, ProbeModel, Style
from pytest_specalign.contracts.probe_split import RankKind, RankProbe, RankSet, StageProbe, split_stages
from specalign.layer_ids import State
from specalign.layer_ids.rules import Duplicates, Order

MIN_LAYERS: Final = 6
_OTHER_TOKENS: Final = (8, 2)


class CaptureContract(Contract, abstract=True):
    """What a capture must do. Subclass it, fill in `capture`, declare what your code does, and pytest runs the properties.

    Attributes:
        order: "config" if states come in the order asked for, "layer" if in the order in which the blocks run.
        duplicates: whether a state that is asked for twice is refused, kept twice, or kept once ("collapse").
        reaches_n: whether boundary n can be captured. If not, asking for it must be refused.
        post_norm: whether `POST_NORM` may be asked for.
        styles: kinds of blocks that the code runs: "plain", "residual".
        in_place: what blocks may do to tensors that they were handed: "never", "scratch", "running" (see `ProbeLayout`).
        rank_kinds: how two ranks share a state, for `capture_ranks`: "partial", "scattered".
        dtypes: of the stream.
        num_layers: n, 6..48. hidden_size: channels.
        atol: largest absolute difference. The probe's values are exact, so 0 is right for code that runs the probe.
        rejects: exceptions that count as refusing a request. A crash such as an IndexError names nothing and does not.
        settings: hypothesis settings in place of the loaded profile.
    """

    order: ClassVar[Order] = "config"
    duplicates: ClassVar[Duplicates] = "refuse"
    reaches_n: ClassVar[bool] = True
    post_norm: ClassVar[bool] = False
    styles: ClassVar[Sequence[Style]] = ("plain", "residual")
    in_place: ClassVar[Sequence[InPlace]] = ("never", "scratch", "running")
    rank_kinds: ClassVar[Sequence[RankKind]] = ("partial",)
    dtypes: ClassVar[Sequence[torch.dtype]] = (torch.float32, torch.bfloat16, torch.float16)
    num_layers: ClassVar[int] = 8
    hidden_size: ClassVar[int] = 16
    atol: ClassVar[float] = 0.0
    rejects: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError)

    @classmethod
    def device(cls) -> str:
        """Where the probe lives. Override it to run on a GPU: `return "cuda"`."""
        return "cpu"

    @classmethod
    def make_probe(cls, layout: ProbeLayout) -> ProbeModel:
        """The model that `capture` gets. A subclass may return one of its own whose `values()` tell every state."""
        return ProbeModel(layout)

    @left_open
    def capture(self, probe: ProbeModel, states: Sequence[State]) -> Sequence[Tensor]:
        """Runs `probe` on `probe.tokens` and returns the states, `[rows, hidden_size]` each, in the order asked for."""
        raise NotImplementedError

    @left_open
    def capture_stages(self, stages: Sequence[StageProbe], states: Sequence[State]) -> Sequence[Tensor]:
        """The same over pipeline stages, run one after the other. Optional."""
        raise NotImplementedError

    @left_open
    def capture_ranks(self, ranks: RankSet, states: Sequence[State]) -> Sequence[Sequence[Tensor]]:
        """The same on tensor-parallel ranks, what each rank captured: `return ranks.run(lambda rank: ...)`. Optional."""
        raise NotImplementedError

    @classmethod
    def declaration_problem(cls) -> str | None:
        name = cls.__name__
        if is_open(cls, "capture"):
            return f"{name} lacks `def capture(self, probe, states)`: the code under test, which returns a list of tensors"
        if not MIN_LAYERS <= cls.num_layers <= 48:
            return f"{name}.num_layers = {cls.num_layers}: a probe for contracts has {MIN_LAYERS}..48 blocks"
        for attribute, known in _CHOICES.items():
            declared = getattr(cls, attribute)
            given = declared if attribute in _MANY else [declared]
            if isinstance(given, str) or not given or not set(given) <= set(known):
                return f"{name}.{attribute} = {declared!r}: {'some' if attribute in _MANY else 'one'} of {', '.join(known)}"
        return None

    @holds_for(cases.anything, examples=cases.plain_examples)
    def check_captures_what_was_asked(self, case: CaptureCase) -> None:
        """Every state asked for comes, of the right values, width, dtype and device, and nothing else."""
        self._expect(case)

    @holds_for(cases.shuffled, examples=cases.order_examples)
    def check_keeps_the_declared_order(self, case: CaptureCase) -> None:
        """States come in the order asked for, or in layer order if that is declared."""
        self._expect(case)

    @holds_for(cases.repeated)
    def check_treats_duplicates_as_declared(self, case: CaptureCase) -> None:
        """A state that is asked for twice is refused, kept or collapsed, as declared."""
        self._expect(case)

    @holds_for(cases.with_boundary_n, examples=cases.last_examples)
    def check_reaches_the_last_boundary_as_declared(self, case: CaptureCase) -> None:
        """Boundary n comes, before the final norm, or is refused. It is never dropped."""
        self._expect(case)

    @holds_for(cases.with_post_norm, examples=cases.post_norm_examples, when=lambda cls: cls.post_norm)
    def check_post_norm_is_the_normed_state(self, case: CaptureCase) -> None:
        """`POST_NORM` is final_norm(boundary n), and boundary n beside it is not normed."""
        self._expect(case)

    @holds_for(cases.spoiled, examples=cases.spoiled_examples, when=lambda cls: bool(cases.changing(cls)))
    def check_later_in_place_adds_change_nothing(self, case: CaptureCase) -> None:
        """What a block does to its tensors later does not reach a captured state."""
        self._expect(case)

    @holds_for(cases.anything, examples=lambda cls: cases.plain_examples(cls)[:1])
    def check_the_next_call_changes_nothing(self, case: CaptureCase) -> None:
        """States of one call stay as they are while the next batch runs: no buffer is shared between calls."""
        probe = self.make_probe(case.layout)
        kept = self._tensors(case, self._call(case, probe)[0])
        before = [tensor.clone() for tensor in kept]
        self._call(case, self.make_probe(dataclasses.replace(case.layout, tokens=_OTHER_TOKENS)))
        probe.tokens = probe.tokens.flip(0)
        self._call(case, probe)
        changed = [i for i, (now, then) in enumerate(zip(kept, before, strict=True)) if not torch.equal(now, then)]
        if changed:
            what = f"state {changed[0]} of the first call changed while another batch ran: a buffer is shared between calls"
            self._fail(case, (), what, "unchanged states", named="buffer-reused")

    @holds_for(cases.idle)
    def check_an_idle_batch_gives_empty_states(self, case: CaptureCase) -> None:
        """Without rows there are as many states, `[0, hidden_size]` each."""
        self._expect(case)

    @holds_for(cases.missing_states, examples=cases.missing_examples)
    def check_refuses_states_that_do_not_exist(self, case: CaptureCase) -> None:
        """Numbers below 0 and above n are refused, not bent and not left out."""
        self._expect(case)

    @holds_for(cases.anything, examples=lambda cls: cases.plain_examples(cls)[:1])
    def check_leaves_the_model_alone(self, case: CaptureCase) -> None:
        """Afterwards no hook and no patched method is left, and the model gives what it gave before."""
        probe = self.make_probe(case.layout)
        before, traces = probe(probe.tokens), _traces(probe)
        self._call(case, probe)
        self._expect_no_traces(case, probe, traces, "a call")
        if not torch.equal(probe(probe.tokens), before):
            self._fail(case, (), "the model gives another output after a call", "the same output", named="model-changed")

    @holds_for(cases.failing)
    def check_cleans_up_after_an_exception(self, case: CaptureCase) -> None:
        """A block's exception comes through, and leaves no hook and no patched method."""
        probe = self.make_probe(case.layout)
        traces = _traces(probe)
        try:
            self.capture(probe, list(case.states))
        except ProbeError:
            self._expect_no_traces(case, probe, traces, "an exception")
        except Exception as error:
            self._fail(case, (), f"{type(error).__name__}: {error}", "the block's own ProbeError")
        else:
            self._fail(case, (), "the block's exception was swallowed", "its ProbeError", named="exception-swallowed")

    @holds_for(cases.split, examples=cases.split_examples, when=cases.implements("capture_stages"))
    def check_pipeline_stages_lose_nothing(self, case: CaptureCase) -> None:
        """Over 2 and 3 stages every state comes once, in order, those on a stage edge included."""
        self._expect(case)

    @holds_for(cases.ranked, examples=cases.ranked_examples, when=cases.implements("capture_ranks"))
    def check_every_rank_has_whole_states(self, case: CaptureCase) -> None:
        """On each of 2 ranks a state is the whole sum, over all rows."""
        self._expect(case)

    def _call(self, case: CaptureCase, probe: ProbeModel | None = None) -> tuple[Any, ProbeModel]:
        """What came back (of rank `case.rank`), or `Raised`; and the probe whose values it must have."""
        states = list(case.states)
        try:
            if case.call == "capture_ranks":
                ranks = RankSet(case.layout, case.kind)
                probe = ranks.probes[case.rank]
                per_rank = list(self.capture_ranks(ranks, states))
                return (per_rank[case.rank] if len(per_rank) == ranks.size else per_rank), probe
            probe = probe or self.make_probe(case.layout)
            if case.call == "capture_stages":
                return self.capture_stages(split_stages(probe, case.cuts), states), probe
            return self.capture(probe, states), probe
        except Exception as error:  # any exception is an outcome to judge
            return Raised.of(error), probe or self.make_probe(case.layout)

    def _expect(self, case: CaptureCase) -> None:
        __tracebackhide__ = True
        for rank in range(2 if case.call == "capture_ranks" else 1):
            self._expect_on(dataclasses.replace(case, rank=rank))

    def _expect_on(self, case: CaptureCase) -> None:
        __tracebackhide__ = True
        got, probe = self._call(case)
        right = case.right()
        if isinstance(right, Raised):
            if not isinstance(got, Raised) or not issubclass(got.kind, self.rejects):
                seen = identify(got, probe, right, atol=self.atol)
                self._fail(case, seen, Judged(seen, got).format(), f"refused: {right.text}")
            return
        judged = judge(got, probe, right, atol=self.atol)
        if not judged.ok:
            self._fail(case, judged.seen, judged.format(), judged.wanted, first=judged.first_difference)

    def _tensors(self, case: CaptureCase, got: Any) -> list[Tensor]:
        if isinstance(got, Raised) or not all(isinstance(tensor, Tensor) for tensor in got):
            self._fail(case, got if isinstance(got, Raised) else (), Judged((), got).format(), "a list of tensors")
        return list(got)

    def _expect_no_traces(self, case: CaptureCase, probe: nn.Module, before: list[str], after: str) -> None:
        __tracebackhide__ = True
        left = sorted(set(_traces(probe)) - set(before))
        if left:
            self._fail(case, (), f"{left[0]} is still there after {after}", "no trace", named="hooks-left-behind")

    def _observations(self, case: CaptureCase) -> list[tuple[CaptureCase, Captured]]:
        """More calls of the same kind, which tell the known faults apart."""
        declared, found = declared_by(type(self)), []
        layout = dataclasses.replace(case.layout, tokens=layout_of(type(self)).tokens, fails_at=None)
        for states in _probes(layout.num_layers):
            asked = dataclasses.replace(case, layout=layout, states=states, declared=declared)
            if case.call == "capture" and declared.refusal(states, layout.num_layers) is None:
                got, probe = self._call(asked)
                found.append((asked, identify(got, probe, asked.right(), atol=self.atol)))
        return found

    def _fail(
        self, case: CaptureCase, seen: Captured, got: str, expected: str, *, first: str | None = None, named: str | None = None
    ) -> NoReturn:
        __tracebackhide__ = True
        faults = () if named else diagnose_capture(case, seen, seen=self._observations(case))
        name = named or (faults[0].name if faults else None)
        lines = [
            f"{case.format()} goes wrong" + (f": {name}" if name else ""),
            f"  probe:    {case.where()}",
            f"  declared: {case.declared.format()}",
            f"  expected: {expected}",
            f"  got:      {got}",
        ]
        lines += [f"  first difference: {first}"] if first and not isinstance(seen, Raised) else []
        if faults:
            lines.append(f"  looks like: {faults[0].format()}")
            lines += [f"  less likely: {', '.join(f.name for f in faults[1:])}"] if faults[1:] else []
            lines.append(f"  next: {faults[0].remedy}")
        else:
            lines += [] if named else ["  looks like: no known fault"]
            lines.append(f"  next: {_REMEDIES.get(named or '', _UNKNOWN_REMEDY)}")
        violated("\n".join(lines))


def _probes(n: int) -> list[tuple[State, ...]]:
    """Requests that tell the known faults apart."""
    return [(2, n // 2, n - 3), (1, n - 1), (0,), (2,), (3, 1), (n - 1,), (1, 4), (1, n)]


_CHOICES: Final = {
    "order": get_args(Order),
    "duplicates": get_args(Duplicates),
    "styles": get_args(Style),
    "in_place": get_args(InPlace),
    "rank_kinds": get_args(RankKind),
}
_MANY: Final = ("styles", "in_place", "rank_kinds")
_UNKNOWN_REMEDY: Final = "make this one call by hand and compare it with the probe, state by state."
_REMEDIES: Final = {
    "buffer-reused": "Hand on a clone of what the next batch will overwrite.",
    "model-changed": "Capture copies; never write to the model's tensors.",
    "hooks-left-behind": "Remove every hook in a finally clause, or capture in a context manager.",
    "exception-swallowed": "Let exceptions of the model through.",
}


def _traces(model: nn.Module) -> list[str]:
    """Every hook and every method that stands on an instance, by module."""
    found = []
    for name, module in model.named_modules():
        kept = vars(module)
        hooks = [k for k in ("_forward_hooks", "_forward_pre_hooks") for _ in kept.get(k, ())]
        patched = [k for k in ("forward", "__call__", "_call_impl") if k in kept]
        found += [f"{what.strip('_')} of {name or 'the model'}" for what in (*hooks, *patched)]
    return found


__all__ = ["CaptureContract", "ProbeLayout", "ProbeModel", "RankProbe", "RankSet", "StageProbe"]

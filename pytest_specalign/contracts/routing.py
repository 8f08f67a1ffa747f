"""`RoutingContract`: property tests that hold routing kernels against their references, bit for bit."""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

import torch
from torch import Tensor

from pytest_specalign.contracts import routing_cases as cases
from pytest_specalign.contracts import routing_replays as replays
from pytest_specalign.contracts.base import holds_for, is_open, left_open
from pytest_specalign.contracts.routing_cases import RouteCase
from pytest_specalign.contracts.routing_hooks import HOOKS
from pytest_specalign.contracts.routing_judge import RoutingJudge
from pytest_specalign.contracts.routing_large import LargeCase, large_case
from pytest_specalign.contracts.routing_replays import Call, ReplayCase
from specalign.routing.topk import Order

METHODS: Final = (*HOOKS, "replay")
CHECKS: Final = ("duplicates", "range", "nan")
WIDE: Final = ("scatter", "scatter_backward", "gather", "gather_backward")


def without(*names: str) -> Callable[[Any], str | None]:
    """Why a property is not looked at: none of these hooks is given."""

    def unseen(cls: Any) -> str | None:
        missing = all(is_open(cls, name) for name in names)
        return f"{cls.__name__} gives no {' or '.join(names)}" if missing else None

    return unseen


def unchecked(check: str, *names: str) -> Callable[[Any], str | None]:
    """The same, or the hooks are not said to check this."""

    def unseen(cls: Any) -> str | None:
        undeclared = f"{cls.__name__}.checks does not say {check!r}"
        return without(*names)(cls) or (None if check in cls.checks else undeclared)

    return unseen


class RoutingContract(RoutingJudge, abstract=True):
    """What routing kernels must give, bit for bit. Subclass it and fill in one method or more.

    A property whose hook is not given is skipped with "not looked at". Each call gets copies of its tensors on `device()`.
    `positions` int64 `[T, k]` name the expert-major row of each token and slot, -1: none; `weights` are fp32 `[T, k]`;
    `padding_rows` int64 are the rows that no route goes to. The rules: docs/routing-kernels.md and docs/routing-order.md.

    Attributes:
        dtypes: of the rows.
        topk_order: the order of the slots that `topk` gives: "sorted" or "engine", see `specalign.routing.topk`.
        weight_gradient: "tree": bit for bit the dot product of `gather_backward_reference`; "bounded": any FP32 dot product,
            within H * 2^-23 of the sum of the products' magnitudes, and the same in every run.
        checks: what the hooks refuse: "duplicates" (scatter), "range" (scatter, gather), "nan" (topk).
        rejects: exceptions that count as refusing.
        large_elements: the buffer in which offsets are tested has more elements than this. It must fit three times into the free
            memory of a GPU; elsewhere only up to 2^24.
        settings: hypothesis settings in place of the loaded profile.
    """

    @left_open
    def scatter(self, rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
        """Token rows `[T, H]` to expert-major rows `[num_rows, H]`, zeros in the padding rows."""
        raise NotImplementedError

    @left_open
    def scatter_backward(self, grad: Tensor, positions: Tensor) -> Tensor:
        """The gradient `[T, H]` of the token rows, of that of the expert-major rows."""
        raise NotImplementedError

    @left_open
    def gather(self, rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
        """Expert-major rows to token rows `[T, H]`, weighted sums in slot order."""
        raise NotImplementedError

    @left_open
    def gather_backward(
        self, grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(gradient of the expert-major rows, gradient fp32 `[T, k]` of the weights)."""
        raise NotImplementedError

    @left_open
    def topk(self, scores: Tensor, k: int) -> Tensor:
        """The experts `[T, k]` of fp32 scores `[T, E]`, slot by slot."""
        raise NotImplementedError

    @left_open
    def layout(self, expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> tuple[Tensor, Tensor]:
        """(positions `[T, k]`, m_indices `[num_rows]`: the expert of each row), alignment 1 or 128."""
        raise NotImplementedError

    @left_open
    def replay(self, microbatches: list[Tensor], calls: Sequence[Call], num_experts: int) -> Sequence[Tensor]:
        """The ids that each call gets. Ids left over at the end, and a call for which there are none, must be refused.

        Args:
            microbatches: int32 `[T, k]` on the CPU, recorded in this order.
            calls: "forward": that of the next microbatch; "recompute": in backward, of the oldest forward not recomputed yet.
        """
        raise NotImplementedError

    @classmethod
    def declaration_problem(cls) -> str | None:
        name = cls.__name__
        if all(is_open(cls, method) for method in METHODS):
            return f"{name} lacks `def gather(self, rows, positions, weights)`, or one of {', '.join(METHODS)}"
        for attribute, allowed in (("topk_order", get_args(Order)), ("weight_gradient", ("tree", "bounded"))):
            if getattr(cls, attribute) not in allowed:
                return f"{name}.{attribute} = {getattr(cls, attribute)!r}: one of {', '.join(allowed)}"
        for attribute, known in (("checks", CHECKS), ("dtypes", cases.DTYPES)):
            some = getattr(cls, attribute)
            if not isinstance(some, Sequence) or isinstance(some, str) or any(one not in known for one in some):
                return f"{name}.{attribute} = {some!r}: some of {', '.join(map(str, known))}"
        return None if cls.dtypes else f"{name}.dtypes is empty"

    @holds_for(cases.cases, examples=cases.probes, unseen=without("scatter"))
    def check_scatter_puts_rows_where_their_positions_say(self, case: RouteCase) -> None:
        """Each route's row is a copy, where its position says. Padding rows are looked at by themselves."""
        self._judge("scatter", case.inputs())

    @holds_for(cases.padded, unseen=without("scatter", "gather_backward"))
    def check_padding_rows_are_zeros(self, case: RouteCase) -> None:
        """Rows that no route goes to are zeros, whatever the new memory held (it is filled with NaN first)."""
        for what in ("scatter", "gather_backward"):
            if self._gives(what):
                self._judge(what, case.inputs(), padding=True)

    @holds_for(cases.cases, examples=cases.probes, unseen=without("scatter_backward"))
    def check_the_scatters_gradient_is_rounded_after_every_slot(self, case: RouteCase) -> None:
        """Summed in slot order, rounded to the rows' dtype after each slot, empty ones included."""
        self._judge("scatter_backward", case.inputs())

    @holds_for(cases.cases, examples=cases.probes, unseen=without("gather"))
    def check_the_gather_sums_in_slot_order_by_fma(self, case: RouteCase) -> None:
        """An FP32 sum in slot order, each weight multiplied in by FMA, one rounding; an empty slot leaves it alone."""
        self._judge("gather", case.inputs())

    @holds_for(cases.cases, examples=cases.probes, unseen=without("gather_backward"))
    def check_the_gathers_gradients_are_products_and_dots(self, case: RouteCase) -> None:
        """A row's gradient is one product, rounded once; a weight's an FP32 dot product by the fixed tree."""
        self._judge("gather_backward", case.inputs())

    @holds_for(cases.cases, examples=cases.probes, unseen=without("topk"))
    def check_topk_decides_ties_and_slots(self, case: RouteCase) -> None:
        """-0 equals +0, the lowest index wins a tie, and the slots are in the declared order."""
        self._judge("topk", case.inputs())

    @holds_for(cases.cases, examples=cases.probes, unseen=without("layout"))
    def check_the_layout_is_stable_and_aligned(self, case: RouteCase) -> None:
        """Sorted by expert, row-major within one, each expert's rows filled up to the alignment."""
        self._judge("layout", case.inputs())

    @holds_for(replays.schedules, examples=replays.schedule_examples, unseen=without("replay"))
    def check_replay_hands_out_each_microbatchs_ids(self, case: ReplayCase) -> None:
        """Forwards and recomputations get the ids of their microbatch, in every schedule."""
        self._judge_replay(case)

    @holds_for(replays.cut_short, unseen=without("replay"))
    def check_ids_left_over_are_refused(self, case: ReplayCase) -> None:
        """A pass that ends before all ids were used is an error: some router never asked."""
        self._must_refuse_replay(case, "orphaned-replay")

    @holds_for(replays.drawn_out, unseen=without("replay"))
    def check_a_call_without_ids_is_refused(self, case: ReplayCase) -> None:
        """A forward more than there are microbatches is an error, not a live choice."""
        self._must_refuse_replay(case, "replay-exhausted")

    @holds_for(cases.damaged("duplicate"), unseen=unchecked("duplicates", "scatter"))
    def check_duplicate_destinations_are_refused(self, case: RouteCase) -> None:
        """Two routes to one row."""
        self._must_refuse("scatter", case.inputs(), "duplicate-destination")

    @holds_for(cases.damaged("range"), unseen=unchecked("range", "scatter", "gather"))
    def check_positions_out_of_range_are_refused(self, case: RouteCase) -> None:
        """A position that is no row."""
        for what in ("scatter", "gather"):
            if self._gives(what):
                self._must_refuse(what, case.inputs(), "index-not-checked")

    @holds_for(cases.cases, unseen=unchecked("nan", "topk"))
    def check_nan_scores_are_refused(self, case: RouteCase) -> None:
        """A NaN has no place among the scores."""
        inputs = case.inputs()
        inputs.scores[-1, -1] = torch.nan
        self._must_refuse("topk", inputs, "nan-ranked")

    @holds_for(large_case, unseen=without(*WIDE))
    def check_offsets_go_beyond_int32(self, case: LargeCase) -> None:
        """The last row of a buffer of more than 2^31 elements is read and written where it is."""
        self._judge_large(case)

    @holds_for(cases.cases, examples=cases.probes, unseen=without(*HOOKS))
    def check_runs_agree(self, case: RouteCase) -> None:
        """The same inputs give the same bits three times."""
        for what in HOOKS:
            if self._gives(what):
                self._judge_runs(what, case.inputs())

    @holds_for(cases.cases, unseen=without(*HOOKS))
    def check_leaves_its_inputs_alone(self, case: RouteCase) -> None:
        """No tensor that was passed in is changed."""
        for what in HOOKS:
            if self._gives(what):
                self._judge_inputs(what, case.inputs())

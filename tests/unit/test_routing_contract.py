"""The library's own routing keeps the contract on the CPU, and the planted cases give what their arithmetic says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("hypothesis")
torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import settings  # noqa: E402
from torch import Tensor  # noqa: E402

from pytest_specalign.contracts import RoutingContract, run_contract  # noqa: E402
from pytest_specalign.contracts.routing_cases import DTYPES, PLANTED, planted_case  # noqa: E402
from pytest_specalign.contracts.routing_hooks import bits  # noqa: E402
from pytest_specalign.contracts.routing_judge import poisoned  # noqa: E402
from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.reference import (  # noqa: E402
    gather_backward_reference,
    gather_reference,
    scatter_backward_reference,
    scatter_reference,
)
from specalign.routing.replay import RoutingReplay  # noqa: E402
from specalign.routing.routes import gather_routes, scatter_routes  # noqa: E402
from specalign.routing.topk import ordered_topk  # noqa: E402

SOME = settings(max_examples=25, deadline=None)


class TestSpecalign(RoutingContract):
    """Through the public functions and autograd, on the CPU. Offsets are tested at a size that any machine holds."""

    settings = SOME
    checks = ("duplicates", "range", "nan")
    large_elements = 2**20

    def scatter(self, rows: Tensor, positions: Tensor, num_rows: int, padding_rows: Tensor) -> Tensor:
        return scatter_routes(rows, positions, num_rows, padding_rows=padding_rows)

    def scatter_backward(self, grad: Tensor, positions: Tensor) -> Tensor:
        rows = grad.new_zeros(len(positions), grad.shape[1]).requires_grad_()
        scattered = scatter_routes(rows, positions, len(grad))
        return torch.autograd.grad(scattered, rows, grad)[0]

    def gather(self, rows: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
        return gather_routes(rows, positions, weights)

    def gather_backward(
        self, grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, padding_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, weights = rows.requires_grad_(), weights.requires_grad_()
        gathered = gather_routes(rows, positions, weights, padding_rows=padding_rows)
        routes, dots = torch.autograd.grad(gathered, (rows, weights), grad)
        return routes, dots

    def topk(self, scores: Tensor, k: int) -> Tensor:
        return ordered_topk(scores, k, order=self.topk_order).ids

    def layout(self, expert_ids: Tensor, weights: Tensor, num_experts: int, alignment: int) -> tuple[Tensor, Tensor]:
        made = ReceiveLayout(expert_ids, weights, num_experts=num_experts, alignment=128 if alignment == 128 else 1)
        return made.positions, made.m_indices

    def replay(self, microbatches: list[Tensor], calls: Sequence[str], num_experts: int) -> Sequence[Tensor]:
        kept = RoutingReplay("a router", num_experts=num_experts, topk=microbatches[0].shape[1])
        for ids in microbatches:
            kept.add(ids)
        recomputed = "recompute" in calls
        kept.begin("replay", microbatches=len(microbatches), recomputations=int(recomputed))
        scores = torch.zeros(len(microbatches[0]), num_experts)
        found: list[Tensor] = []

        def call(_: Any = None) -> None:
            found.append(kept.get_replay_topk(scores, kept.topk)[1])

        for one in calls:
            (call if one == "forward" else lambda: in_backward(call))()
        kept.end()
        return found


def in_backward(function: Callable[[Any], None]) -> None:
    """Called as a recomputation is: while autograd runs backward."""
    start = torch.ones(1, requires_grad=True)
    start.register_hook(function)
    start.sum().backward()


class TestEngineOrder(TestSpecalign):
    """The slots of an unsorted CUDA top-k; the rest is `TestSpecalign`'s."""

    settings = settings(max_examples=5, deadline=None)
    topk_order = "engine"


class References(RoutingContract, abstract=True):
    """The plain functions, which check nothing."""

    settings = SOME
    scatter = staticmethod(scatter_reference)
    scatter_backward = staticmethod(scatter_backward_reference)
    gather = staticmethod(gather_reference)
    gather_backward = staticmethod(gather_backward_reference)


def test_what_is_not_given_or_has_no_room_is_reported_and_never_passed() -> None:
    result = run_contract(type("Plain", (References,), {}))
    assert result.ok, result.format()
    assert {name.removeprefix("test_"): reason for name, reason in result.unseen.items()} == {
        "topk_decides_ties_and_slots": "not looked at: Plain gives no topk",
        "the_layout_is_stable_and_aligned": "not looked at: Plain gives no layout",
        "replay_hands_out_each_microbatchs_ids": "not looked at: Plain gives no replay",
        "ids_left_over_are_refused": "not looked at: Plain gives no replay",
        "a_call_without_ids_is_refused": "not looked at: Plain gives no replay",
        "duplicate_destinations_are_refused": "not looked at: Plain.checks does not say 'duplicates'",
        "positions_out_of_range_are_refused": "not looked at: Plain.checks does not say 'range'",
        "nan_scores_are_refused": "not looked at: Plain gives no topk",
        "offsets_go_beyond_int32": "not looked at: offsets beyond 2^31 need 12.0 GiB on a GPU, and the device is cpu",
    }
    assert not set(result.passed) & set(result.unseen)
    assert "test_topk_decides_ties_and_slots: not looked at: Plain gives no topk" in result.format()


PROBLEMS = {
    "nothing": ({}, "lacks `def gather(self, rows, positions, weights)`, or one of scatter, *"),
    "order": ({"topk_order": "any", "gather": gather_reference}, ".topk_order = 'any': one of sorted, engine"),
    "dots": ({"weight_gradient": "near", "gather": gather_reference}, ".weight_gradient = 'near': one of tree, bounded"),
    "checks": ({"checks": "nan", "gather": gather_reference}, ".checks = 'nan': some of duplicates, range, nan"),
    "dtypes": ({"dtypes": (), "gather": gather_reference}, ".dtypes is empty"),
}


@pytest.mark.parametrize(("body", "says"), PROBLEMS.values(), ids=PROBLEMS)
def test_an_incomplete_class_is_refused_in_one_line(body: dict[str, Any], says: str) -> None:
    problem = type("Bad", (RoutingContract,), body).declaration_problem()
    assert problem is not None
    assert problem.startswith("Bad")
    assert says.strip(" *") in problem


CLOSED = {"fma": 2.0**-23, "order": 0.0, "halves": None, "weight first": None, "minus zero": 0.0, "underflow": -0.0}
"""What each planted sum is, worked out by hand; None: it depends on eps."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_sums_are_what_their_arithmetic_says(name: str, dtype: torch.dtype) -> None:
    made, eps = planted_case(name, dtype).inputs(), torch.finfo(dtype).eps
    # In FP32 1 + eps/2 is a tie, and so is (1 + eps)^2: both are lost whatever the rule.
    wide = dtype != torch.float32
    by_eps = {"halves": 1 + eps * wide, "weight first": eps * eps * wide}
    right = CLOSED[name] if CLOSED[name] is not None else by_eps[name]
    got = gather_reference(made.expert_rows, made.positions, made.weights)
    assert torch.equal(bits(got), bits(torch.full_like(got, right))), got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_planted_halves_are_lost_in_the_gradient_and_minus_zero_becomes_zero(dtype: torch.dtype) -> None:
    for name, right in (("halves", 1.0), ("minus zero", 0.0)):
        made = planted_case(name, dtype).inputs()
        got = scatter_backward_reference(made.expert_rows, made.positions)
        assert torch.equal(bits(got), bits(torch.full_like(got, right)))


def test_new_memory_is_nan_while_padding_is_looked_at_and_torch_is_as_before_afterwards() -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with poisoned():
        assert torch.ones(2, dtype=torch.bfloat16).new_empty(3, 2).isnan().all()
    assert before == (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())


def test_dots_in_any_order_are_within_the_bound_and_a_wrong_one_is_not() -> None:
    def by_sum(scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
        def backward(*given: Tensor) -> tuple[Tensor, Tensor]:
            grad, rows, positions = given[:3]
            routes, dots = gather_backward_reference(*given)
            taken = positions >= 0
            found = (grad[taken.nonzero()[:, 0]].float() * rows[positions[taken]].float()).sum(1)
            dots[taken] = found * scale
            return routes, dots

        return backward

    for kind, scale, holds in (("bounded", 1.0, True), ("bounded", 1.01, False), ("tree", 1.0, False)):
        body = {"gather_backward": staticmethod(by_sum(scale)), "weight_gradient": kind, "settings": SOME}
        result = run_contract(type("Dots", (RoutingContract,), body))
        assert ("test_the_gathers_gradients_are_products_and_dots" in result.passed) == holds, result.format()

"""Ordered top-k against a plain Python sort and a plain Python walk, on every kind of tie."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.topk import SINGLE_BLOCK_LIMITS, ordered_topk, score_keys, tied

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INF = float("inf")


def sorted_by_python(row: list[float], k: int) -> list[int]:
    """Python compares floats as numbers, −0 and +0 included, and its sort is stable."""
    return sorted(range(len(row)), key=lambda expert: -row[expert])[:k]


def walked_by_python(row: list[float], k: int) -> list[int]:
    """CUDA's gather in words: the threshold, one walk for what is above it, one for what equals it."""
    if k == 0:
        return []
    threshold = sorted(row, reverse=True)[k - 1]
    above = [expert for expert, score in enumerate(row) if score > threshold]
    return above + [expert for expert, score in enumerate(row) if score == threshold][: k - len(above)]


WANTED = {"sorted": sorted_by_python, "engine": walked_by_python}


@st.composite
def rows_of_scores(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Few different values, so that most rows have ties, also at the threshold."""
    experts = draw(st.integers(1, 12))
    values = st.sampled_from([-INF, -2.0, -0.5, -0.0, 0.0, 1e-7, 0.5, 2.0, INF])
    row = st.lists(values, min_size=experts, max_size=experts)
    rows = draw(st.lists(row, max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    return torch.tensor(rows, dtype=dtype).reshape(len(rows), experts), draw(st.integers(0, experts))


@pytest.mark.parametrize("order", ["sorted", "engine"])
@given(case=rows_of_scores())
def test_ids_are_those_of_the_plain_loop(order: str, case: tuple[Tensor, int]) -> None:
    scores, k = case
    found = ordered_topk(scores, k, order=order)
    assert found.ids.dtype == torch.int64
    assert found.ids.shape == (scores.shape[0], k)
    assert found.ids.tolist() == [WANTED[order](row, k) for row in scores.tolist()]
    assert torch.equal(found.values, scores.gather(1, found.ids))


@given(case=rows_of_scores())
def test_both_orders_take_the_same_experts_and_tied_rows_are_those_with_a_choice(case: tuple[Tensor, int]) -> None:
    scores, k = case
    by_score, by_engine = (ordered_topk(scores, k, order=order).ids for order in ("sorted", "engine"))
    assert torch.equal(by_score.sort(1).values, by_engine.sort(1).values)
    choices = tied(scores, k).tolist()
    for row, choice in zip(scores.tolist(), choices, strict=True):
        ranked = sorted(row, reverse=True)
        assert choice == (0 < k < len(row) and ranked[k - 1] == ranked[k])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_keys_of_every_half_are_in_the_order_of_the_numbers(dtype: torch.dtype) -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    every = every[~every.isnan()]
    ranked = every[every.double().sort(stable=True).indices]
    keys, numbers = score_keys(ranked).tolist(), ranked.double().tolist()
    assert all(
        (a == b) == (x == y) and (a < b) == (x < y) for (a, b), (x, y) in zip(pairwise(keys), pairwise(numbers), strict=True)
    )


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=8))
def test_keys_of_fp32_are_in_the_order_of_the_numbers(numbers: list[float]) -> None:
    keys = score_keys(torch.tensor(numbers, dtype=torch.float32)).tolist()
    assert sorted(range(len(keys)), key=keys.__getitem__) == sorted(range(len(keys)), key=numbers.__getitem__)
    assert (len(set(keys))) == len(set(numbers))


def test_zeros_tie_unless_they_are_signed() -> None:
    scores = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]])
    assert ordered_topk(scores, 3).ids.tolist() == [[0, 1, 2]]
    assert ordered_topk(scores, 3, zeros="signed").ids.tolist() == [[1, 3, 0]]
    assert ordered_topk(scores, 3, order="engine", zeros="signed").ids.tolist() == [[1, 3, 0]]
    assert tied(scores, 2).tolist() == [True]
    assert tied(scores, 2, zeros="signed").tolist() == [False]


def test_values_keep_their_bits() -> None:
    scores = torch.tensor([[-0.0, -1.0, -2.0]])
    assert ordered_topk(scores, 1).values.view(torch.int32).tolist() == [[-(1 << 31)]]


def test_the_last_expert_of_a_long_row_of_ties_is_the_last_slot() -> None:
    scores = torch.full((2, 300), -3.0, dtype=torch.bfloat16)
    assert ordered_topk(scores, 300).ids.tolist() == [list(range(300))] * 2
    assert ordered_topk(scores, 7, order="engine").ids.tolist() == [list(range(7))] * 2


@pytest.mark.parametrize("order", ["sorted", "engine"])
@pytest.mark.parametrize(("tokens", "experts", "k"), [(0, 4, 2), (3, 4, 0), (3, 4, 4), (0, 0, 0), (2, 1, 1)])
def test_nothing_and_everything_have_their_shapes(order: str, tokens: int, experts: int, k: int) -> None:
    found = ordered_topk(torch.rand(tokens, experts), k, order=order)
    assert found.ids.shape == found.values.shape == (tokens, k)
    assert found.ids.sort(1).values.tolist() == ([list(range(k))] * tokens if k == experts else [[]] * tokens)


@pytest.mark.parametrize("order", ["sorted", "engine"])
def test_strides_do_not_matter(order: str) -> None:
    scores = torch.randn(9, 6).round()
    for view in (scores.t().contiguous().t(), torch.stack([scores, -scores], -1)[..., 0], scores.flip(0).flip(0)):
        assert torch.equal(ordered_topk(view, 3, order=order).ids, ordered_topk(scores, 3, order=order).ids)


def test_gradients_flow_to_the_chosen_scores_only() -> None:
    scores = torch.tensor([[0.0, 3.0, 1.0]], requires_grad=True)
    found = ordered_topk(scores, 2, order="engine")
    assert found.ids.tolist() == [[1, 2]]
    found.values.mul(torch.tensor([[5.0, 7.0]])).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0.0, 5.0, 7.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_nan_is_named(dtype: torch.dtype) -> None:
    scores = torch.zeros(4, 5, dtype=dtype)
    scores[2, 1] = scores[2, 3] = scores[3, 0] = float("nan")
    with pytest.raises(RoutingError, match=r"scores\[2, 1\] is nan \(token 2, expert 1; 3 in all\)"):
        ordered_topk(scores, 2)


def test_a_nan_that_is_not_looked_for_has_its_documented_place() -> None:
    scores = torch.tensor([[0x7F800000, 0x7FC00000, -0x400000, -0x800000]], dtype=torch.int32).view(
        torch.float32
    )  # inf, nan, -nan, -inf
    assert ordered_topk(scores, 4, check_nan="off").ids.tolist() == [[1, 0, 3, 2]]


@pytest.mark.parametrize(
    ("scores", "k", "options", "message"),
    [
        (torch.zeros(3), 1, {}, r"float32 \[3\]: expected \[tokens, experts\]"),
        (torch.zeros(3, 2, dtype=torch.float64), 1, {}, r"float64 \[3, 2\]"),
        (torch.zeros(3, 2), 3, {}, r"k = 3 of 2 experts: expected a whole number from 0 to 2"),
        (torch.zeros(3, 2), -1, {}, r"k = -1"),
        (torch.zeros(3, 2), True, {}, r"k = True"),
        (torch.zeros(3, 2), 1.0, {}, r"k = 1\.0"),
        (torch.zeros(3, 2), 1, {"order": "torch"}, r"order = 'torch': expected one of \['sorted', 'engine'\]"),
        (torch.zeros(3, 2), 1, {"zeros": "?"}, r"zeros = '\?'"),
        (torch.zeros(3, 2), 1, {"check_nan": "async"}, r"check_nan = 'async'"),
    ],
)
def test_what_is_no_top_k_is_refused(scores: Tensor, k: int, options: dict[str, str], message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        ordered_topk(scores, k, **options)


def test_rows_of_a_router_take_one_block_at_any_number_of_tokens() -> None:
    assert min(limit for _, limit in SINGLE_BLOCK_LIMITS) == 400
    rows = [rows for rows, _ in SINGLE_BLOCK_LIMITS[:-1]]
    assert rows == sorted(rows)

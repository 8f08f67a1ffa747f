"""On a GPU: the engine's order is CUDA's own, ids and layouts are those of the CPU, and what must not wait for the device does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.layout_check import SentRoutes, check_received  # noqa: E402
from specalign.routing.scoring import RoutingRule, route_scores  # noqa: E402
from specalign.routing.topk import SINGLE_BLOCK_LIMITS, ordered_topk, tied  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FIELDS = ("ids", "weights", "positions", "counts", "offsets", "m_indices", "routes", "padding_rows")
# Below and at each limit between one block a row and several, with the fewest rows of its step.
STEPS = [
    (rows, length)
    for rows, (_, limit) in zip((1, 21, 41, 81, 200, 800, 4001), SINGLE_BLOCK_LIMITS, strict=True)
    for length in (limit - 1, limit)
]
ROUTERS = [(1, 8), (17, 32), (4096, 128), (16384, 256), (300, 257), (64, 1025)]


def scores_of(rows: int, length: int, dtype: Any, *, seed: int = 0) -> Any:
    """Twenty different values, so that almost every row is tied at its threshold; −0 is made +0."""
    generator = torch.Generator("cuda").manual_seed(seed)
    scores = torch.randint(-9, 10, (rows, length), generator=generator, device="cuda")
    return (scores / 8).to(dtype) + 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "length"), ROUTERS + STEPS)
def test_the_engine_order_is_that_of_cuda(rows: int, length: int, dtype: Any) -> None:
    scores = scores_of(rows, length, dtype)
    for k in {1, 2, 8, min(64, length), length if length < 300 else 300}:
        if k > length:
            continue
        values, ids = scores.topk(k, dim=1, sorted=False)
        ours = ordered_topk(scores, k, order="engine")
        assert torch.equal(ours.ids, ids), k
        assert torch.equal(ours.values, values), k


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_continuous_scores_of_a_router_too(dtype: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    scores = torch.randn(16384, 256, generator=generator, device="cuda").sigmoid().to(dtype)
    assert bool(tied(scores, 8).any()) == (dtype != torch.float32)
    assert torch.equal(ordered_topk(scores, 8, order="engine").ids, scores.topk(8, dim=1, sorted=False).indices)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signed_zeros_are_those_of_cuda(dtype: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(2)
    kinds = torch.tensor([-0.0, 0.0, -1.0, 1.0], device="cuda", dtype=dtype)
    scores = kinds[torch.randint(0, 4, (2000, 64), generator=generator, device="cuda")]
    theirs = scores.topk(24, dim=1, sorted=False).indices
    assert torch.equal(ordered_topk(scores, 24, order="engine", zeros="signed").ids, theirs)
    assert not torch.equal(ordered_topk(scores, 24, order="engine").ids, theirs)


@pytest.mark.parametrize("order", ["sorted", "engine"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ids_are_those_of_the_cpu(dtype: Any, order: Any) -> None:
    scores = scores_of(3000, 128, dtype, seed=3)
    assert torch.equal(ordered_topk(scores, 8, order=order).ids.cpu(), ordered_topk(scores.cpu(), 8, order=order).ids)


@pytest.mark.parametrize("order", ["sorted", "engine"])
def test_routing_from_given_scores_has_the_bits_of_the_cpu(order: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(4)
    scores, bias = torch.rand(4000, 256, generator=generator, device="cuda"), torch.randn(256, generator=generator, device="cuda")
    rule = RoutingRule(top_k=8, groups=8, top_groups=4, scale=2.5, order=order)
    here, there = route_scores(scores, rule, bias=bias), route_scores(scores.cpu(), rule, bias=bias.cpu())
    assert torch.equal(here.ids.cpu(), there.ids)
    assert torch.equal(here.weights.cpu().view(torch.int32), there.weights.view(torch.int32))


def received(tokens: int = 5000, slots: int = 8, experts: int = 32) -> tuple[Any, Any]:
    generator = torch.Generator("cuda").manual_seed(5)
    ids = torch.randint(-3, experts + 2, (tokens, slots), generator=generator, device="cuda")
    ids[ids > experts] = torch.iinfo(torch.int64).max
    return ids, torch.rand(tokens, slots, generator=generator, device="cuda")


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize("deterministic", [False, True], ids=["as is", "deterministic algorithms"])
def test_a_layout_is_that_of_the_cpu(alignment: Any, deterministic: bool) -> None:
    ids, weights = received()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        here = ReceiveLayout(ids, weights, num_experts=32, alignment=alignment)
    finally:
        torch.use_deterministic_algorithms(before)
    there = ReceiveLayout(ids.cpu(), weights.cpu(), num_experts=32, alignment=alignment)
    assert all(torch.equal(getattr(here, name).cpu(), getattr(there, name)) for name in FIELDS)
    assert (here.num_rows, here.all_valid) == (there.num_rows, there.all_valid)


def test_what_a_sender_says_is_compared_on_the_device() -> None:
    ids, weights = received()
    rows = torch.randn(len(ids), 64, device="cuda").bfloat16()
    layout = ReceiveLayout(ids, weights, num_experts=32)
    token, slot = layout.routes.unbind(1)
    sent = SentRoutes(ids[token, slot], weights[token, slot], rows[token, :16])
    check_received(layout, rows, sent)
    sent.fingerprints[77, 3] += 1
    where = rf"token {int(token[77])}, slot {int(slot[77])}\), number 77 of {len(token)}: row value 3"
    with pytest.raises(ValueError, match=where):
        check_received(layout, rows, sent)


def waits(call: Callable[[], Any]) -> int:
    """How often a call waits for the device."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("order", ["sorted", "engine"])
def test_top_k_waits_for_the_search_of_nan_only(order: Any) -> None:
    scores = scores_of(4096, 256, torch.float32)
    assert waits(lambda: ordered_topk(scores, 8, order=order, check_nan="off")) == 0
    assert waits(lambda: ordered_topk(scores, 8, order=order)) == 1


@pytest.mark.parametrize("alignment", [1, 128])
def test_a_layout_waits_once(alignment: Any) -> None:
    ids, weights = received()
    assert waits(lambda: ReceiveLayout(ids, weights, num_experts=32, alignment=alignment)) == 1

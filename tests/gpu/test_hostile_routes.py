"""On a GPU a deferred fault writes nowhere, is found whatever stream it ran on, and is not made up before a graph has run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing.checks import PENDING, raise_pending  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.routes import Experts, check_route_positions, gather_routes, scatter_quantize, scatter_routes  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    PENDING.clear()
    yield
    PENDING.clear()


def test_a_deferred_position_far_out_of_range_writes_nowhere_and_the_context_lives() -> None:
    rows, place = torch.ones(16, 256, device="cuda"), torch.arange(32, device="cuda").view(16, 2)
    place[7, 1] = 2**40
    scattered = scatter_routes(rows, place, 32, check="deferred")
    codes, _ = scatter_quantize(rows, place, 32, check="deferred")
    sums = gather_routes(torch.ones(32, 256, device="cuda"), place, torch.ones(16, 2, device="cuda"), check="deferred")
    with pytest.raises(RoutingError, match="token 7, slot 1"):
        raise_pending()
    assert not any(tensor.any().item() for tensor in (scattered, sums, codes.view(torch.uint8)))


def test_a_fault_on_another_stream_is_waited_for() -> None:
    place = torch.zeros(4, 2, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    side, busy = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(50):
            busy = busy @ busy
        check_route_positions(place, 8, check="deferred")
    with pytest.raises(RoutingError, match="token 0, slot 1: position 0 is taken by token 0, slot 0"):
        raise_pending()


def test_a_graph_that_has_not_run_yet_has_no_fault() -> None:
    rows, place = torch.ones(16, 256, device="cuda"), torch.arange(32, device="cuda").view(16, 2)
    scatter_routes(rows, place, 32, check="deferred")
    raise_pending()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scattered = scatter_routes(rows, place, 32, check="deferred")
    raise_pending()
    place[3, 0] = 99
    graph.replay()
    with pytest.raises(RoutingError, match="token 3, slot 0: position 99"):
        raise_pending()
    assert not scattered.any().item()


@pytest.mark.parametrize(
    ("counts", "num_rows", "message"), [([1, 1], 255, "expert 1 has rows 128 to 255"), ([1, -2], 128, "expert 1 is counted -2")]
)
def test_cpu_and_gpu_say_the_same_of_experts_without_room(counts: list[int], num_rows: int, message: str) -> None:
    place, ids = torch.tensor([[0], [128]]), torch.tensor([[0], [1]])
    place, ids = (place, ids) if min(counts) > 0 else (place[:1], ids[:1])
    for device in ("cpu", "cuda"):
        experts = Experts(ids.to(device), torch.tensor(counts, device=device), 128)
        with pytest.raises(RoutingError, match=message):
            check_route_positions(place.to(device), num_rows, experts=experts)

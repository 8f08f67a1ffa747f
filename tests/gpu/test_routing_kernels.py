"""On a GPU the routing kernels have the bits of their references, again and again, and wait for nothing they need not wait for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.routing import reference, routes  # noqa: E402
from specalign.routing.blanks import Blanks  # noqa: E402
from specalign.routing.checks import PENDING, raise_pending  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.quantize import scatter_quantize_reference  # noqa: E402
from specalign.routing.routes import Combine, Experts, Permute  # noqa: E402

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32, torch.float8_e4m3fn: torch.uint8}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(64, 6144, 8), (33, 2880, 4), (17, 7, 3), (5, 1500, 6), (1, 1, 1), (300, 512, 2)]


@pytest.fixture(scope="session")
def kernels() -> Callable[[str], ModuleType]:
    """Imported here, so that the file can be collected where triton is missing."""
    return lambda name: importlib.import_module(f"specalign.routing.{name}_kernels")


def same(first: Any, second: Any) -> bool:
    """Bit for bit, on whatever device."""
    bits = BITS.get(first.dtype)
    first, second = first.cpu(), second.cpu()
    return torch.equal(first.view(bits), second.view(bits)) if bits else torch.equal(first, second)


def drawn(tokens: int, width: int, slots: int, dtype: Any, alignment: int = 1, empty: float = 0.2) -> tuple[Any, Any, Any]:
    """Token rows, expert rows and a layout on the CPU; some slots are empty."""
    generator = torch.Generator().manual_seed(tokens + width + slots)
    ids = torch.rand(tokens, 16, generator=generator).topk(slots).indices
    ids[torch.rand(tokens, slots, generator=generator) < empty] = -1
    layout = ReceiveLayout(ids, torch.randn(tokens, slots, generator=generator), num_experts=16, alignment=alignment)
    rows = (torch.randn(tokens, width, generator=generator) * 3).to(dtype)
    return rows, torch.randn(layout.num_rows, width, generator=generator).to(dtype), layout


def on_gpu(layout: ReceiveLayout) -> ReceiveLayout:
    return ReceiveLayout(layout.ids.cuda(), layout.weights.cuda(), num_experts=layout.num_experts, alignment=layout.alignment)


@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kernel_has_the_bits_of_its_reference_on_the_cpu(shape: Any, dtype: Any, alignment: int) -> None:
    tokens, experts, layout = drawn(*shape, dtype, alignment)
    moved = on_gpu(layout)
    places, padding = layout.positions, layout.padding_rows
    assert same(Permute(moved)(tokens.cuda()), reference.scatter_reference(tokens, places, layout.num_rows, padding))
    assert same(
        routes.ops.scatter_backward_op(experts.cuda(), moved.positions), reference.scatter_backward_reference(experts, places)
    )
    assert same(Combine(moved)(experts.cuda()), reference.gather_reference(experts, places, layout.weights))
    got = routes.ops.gather_backward_op(tokens.cuda(), experts.cuda(), moved.positions, moved.weights, moved.padding_rows, True)
    wanted = reference.gather_backward_reference(tokens, experts, places, layout.weights, padding)
    assert same(got[0], wanted[0])
    assert same(got[1], wanted[1])
    count = len(layout.routes)
    assert same(routes.compact_route_positions(moved.positions, count), layout.routes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_raw_positions_give_what_a_layout_gives(dtype: Any) -> None:
    tokens, experts, layout = drawn(50, 640, 6, dtype, 128)
    moved, place = on_gpu(layout), layout.positions.cuda().int()
    told = Experts(moved.ids, moved.counts, 128)
    for check in ("sync", "deferred", "off"):
        assert same(
            routes.scatter_routes(tokens.cuda(), place, layout.num_rows, experts=told, check=check), Permute(moved)(tokens.cuda())
        )
        assert same(routes.gather_routes(experts.cuda(), place, moved.weights, check=check), Combine(moved)(experts.cuda()))
    raise_pending()


@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_quantization_has_the_bits_of_scatter_then_quantize(dtype: Any, mn_major: bool) -> None:
    tokens, _, layout = drawn(65, 1536, 6, dtype, 128)
    tokens[0, :128] = 0
    tokens[1, 0] = 1e-12
    tokens[2] = torch.arange(1536).to(dtype) * 0.25  # ties
    got = Permute(on_gpu(layout)).quantize(tokens.cuda(), mn_major=mn_major)
    wanted = scatter_quantize_reference(tokens, layout.positions, layout.num_rows, layout.padding_rows, mn_major)
    assert got[1].stride() == wanted[1].stride()
    assert same(got[0], wanted[0])
    assert same(got[1].contiguous(), wanted[1].contiguous())


def test_every_finite_bf16_code_is_quantized_as_on_the_cpu() -> None:
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = torch.where(codes.float().isfinite(), codes, torch.zeros((), dtype=torch.bfloat16))
    rows = torch.cat([codes.view(-1, 128), codes.view(128, -1).t().contiguous()])  # alike and unlike in a group
    places = torch.arange(len(rows))[:, None]
    got = routes.scatter_quantize(rows.cuda(), places.cuda(), len(rows))
    wanted = scatter_quantize_reference(rows, places, len(rows), places[:0, 0], False)
    assert same(got[0], wanted[0])
    assert same(got[1], wanted[1])


def test_the_planted_triple_shows_a_fused_multiply_add() -> None:
    rows = torch.tensor([[1.0], [205.0]], device="cuda")
    weights = torch.tensor([[1.0, 5237765 * 2.0**-54]], device="cuda")
    place = torch.tensor([[0, 1]], device="cuda")
    assert routes.gather_routes(rows, place, weights).item() == 1.0000001192092896
    assert (rows[0] + rows[1] * weights[0, 1]).item() == 1.0


def test_the_kernels_fuse_what_they_say_and_nothing_else(kernels: Callable[[str], ModuleType]) -> None:
    tokens, experts, layout = drawn(8, 1024, 4, torch.bfloat16)
    layout, tokens, experts = on_gpu(layout), tokens.cuda(), experts.cuda()
    blanks = Blanks(layout.padding_rows, listed=True)
    scatter, gather = kernels("scatter"), kernels("gather")
    scatter.scatter_backward_triton(experts, layout.positions)
    gather.gather_triton(experts, layout.positions, layout.weights)
    gather.gather_backward_triton(tokens, experts, layout.positions, layout.weights, blanks)
    found = {
        "scatter backward": counted(scatter._scatter_backward),
        "gather": counted(gather._gather),
        "gather backward": counted(gather._gather_backward),
    }
    assert {name: {kind for kind, number in kinds.items() if number} for name, kinds in found.items()} == {
        "scatter backward": {"add"},
        "gather": {"fma"},
        "gather backward": {"fma", "mul", "add"},
    }


def counted(kernel: Any) -> dict[str, int]:
    """Instructions of the PTX that was compiled last, on FP32 or on pairs of bf16.

    The compiler may add two bf16 as such where FP32 addition and rounding was written: both round the exact sum once, since FP32
    has more than twice the bits.
    """
    caches = kernel.device_caches[torch.cuda.current_device()][0]
    ptx = list(caches.values())[-1].asm["ptx"]
    return {
        kind: len(re.findall(rf"\b{kind}(?:\.rn)?(?:\.ftz)?\.(?:f32|f32x2|bf16x2|bf16)\b", ptx)) for kind in ("fma", "mul", "add")
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_hundred_runs_under_load_have_the_same_bits(dtype: Any) -> None:
    tokens, experts, layout = drawn(512, 2880, 8, dtype)
    layout, tokens, experts = on_gpu(layout), tokens.cuda(), experts.cuda()
    noise, other = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()

    def all_of_it() -> list[Any]:
        back = routes.ops.gather_backward_op(tokens, experts, layout.positions, layout.weights, layout.padding_rows, True)
        return [
            Permute(layout)(tokens), routes.ops.scatter_backward_op(experts, layout.positions), Combine(layout)(experts), *back,
            routes.compact_route_positions(layout.positions, len(layout.routes)),
        ]  # fmt: skip

    first = all_of_it()
    for _ in range(100):
        with torch.cuda.stream(other):
            noise = noise @ noise
            noise /= noise.norm()
        assert all(same(a, b) for a, b in zip(first, all_of_it(), strict=True))


@pytest.mark.gpu(memory="40GiB")
def test_more_than_two_to_the_31_elements() -> None:
    width, slots, tokens = 6144, 8, 44_000
    place = torch.randperm(tokens * slots, device="cuda").view(tokens, slots)
    assert tokens * slots * width > 2**31
    rows = torch.arange(tokens, device="cuda")[:, None].expand(tokens, width).to(torch.bfloat16)
    scattered = routes.scatter_routes(rows, place, tokens * slots)
    wanted = torch.empty(tokens * slots, dtype=torch.bfloat16, device="cuda")
    wanted[place.view(-1)] = rows[:, :1].expand(tokens, slots).reshape(-1)
    assert all(
        torch.equal(part, bound[:, None].expand_as(part))
        for part, bound in zip(scattered.split(8192), wanted.split(8192), strict=True)
    )
    ones = torch.ones(tokens, slots, device="cuda")
    assert torch.equal(routes.gather_routes(scattered, place, ones), (rows.float() * 8).bfloat16())
    assert torch.equal(routes.ops.scatter_backward_op(torch.ones_like(scattered), place), torch.full_like(rows, 8))


BAD = {
    "range": lambda place: place.index_put((torch.tensor([3]), torch.tensor([1])), torch.tensor(10**12)),
    "twice": lambda place: place.index_put((torch.tensor([7]), torch.tensor([0])), place[2, 1]),
    "two": lambda place: place.index_put((torch.tensor([9, 4]), torch.tensor([0, 1])), torch.tensor([-2, 400])),
}


@pytest.mark.parametrize("name", BAD)
def test_cpu_and_gpu_say_the_same_of_bad_positions_and_the_context_lives(name: str) -> None:
    place = BAD[name](torch.randperm(60).view(20, 3))
    said = []
    for device in ("cpu", "cuda"):
        with pytest.raises(RoutingError) as caught:
            routes.scatter_routes(torch.zeros(20, 8, device=device), place.to(device), 60)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert torch.ones(1, device="cuda").item() == 1


def test_a_wrong_count_raises_and_the_context_lives() -> None:
    place = torch.arange(12, device="cuda").view(4, 3)
    for count in (11, 13, 0):
        with pytest.raises(RoutingError, match=f"12 routes exist, and {count} were counted"):
            routes.compact_route_positions(place, count)
    assert routes.compact_route_positions(place, 12).shape == (12, 2)


def test_a_captured_graph_checks_each_replay_and_raise_pending_tells() -> None:
    rows, place = torch.randn(16, 256, device="cuda"), torch.randperm(48, device="cuda").view(16, 3)
    weights, good = torch.rand(16, 3, device="cuda"), place.clone()
    graph = torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        routes.gather_routes(routes.scatter_routes(rows, place, 48, check="off"), place, weights, check="deferred")
    torch.cuda.synchronize()
    raise_pending()
    with torch.cuda.graph(graph):
        sums = routes.gather_routes(routes.scatter_routes(rows, place, 48, check="deferred"), place, weights, check="off")
    try:
        for bad in (False, True, False):
            place.copy_(good)
            if bad:
                place[5, 2] = place[1, 1]
            graph.replay()
            if bad:
                with pytest.raises(RoutingError, match="token 5, slot 2"):
                    raise_pending()
            else:
                raise_pending()
                assert same(sums, routes.gather_routes(routes.scatter_routes(rows, good, 48), good, weights))
    finally:
        PENDING.clear()


def test_sync_is_refused_by_name_in_the_capture_of_a_graph() -> None:
    rows, place = torch.randn(4, 8, device="cuda"), torch.arange(4, device="cuda")[:, None]
    routes.scatter_routes(rows, place, 4)  # compiled before the capture
    with pytest.raises(RoutingError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        routes.scatter_routes(rows, place, 4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_but_a_check_that_is_asked_to() -> None:
    tokens, experts, layout = drawn(32, 512, 4, torch.bfloat16)
    layout, tokens, experts = on_gpu(layout), tokens.cuda().requires_grad_(), experts.cuda()
    place = layout.positions
    Combine(layout)(Permute(layout)(tokens)).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        Combine(layout)(Permute(layout)(tokens)).sum().backward()
        routes.scatter_routes(tokens, place, layout.num_rows, check="deferred")
        routes.compact_route_positions(place, len(layout.routes), check="deferred")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    raise_pending()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_checkpointed_and_run_twice_the_gradients_have_the_same_bits(dtype: Any) -> None:
    tokens, _, layout = drawn(64, 768, 4, dtype)
    weights = layout.weights.cuda().requires_grad_()
    moved, tokens = on_gpu(layout), tokens.cuda().requires_grad_()

    def block(rows: Any, factors: Any) -> Any:
        return Combine(moved)(torch.nn.functional.silu(Permute(moved)(rows)), factors)

    def gradients(run: Any) -> tuple[Any, ...]:
        result = run(tokens, weights)
        seed = torch.linspace(-1, 1, result.numel(), device="cuda").view_as(result).to(dtype)
        once = torch.autograd.grad(result, (tokens, weights), seed, retain_graph=True)
        twice = torch.autograd.grad(result, (tokens, weights), seed)
        assert all(same(a, b) for a, b in zip(once, twice, strict=True))
        return result, *once

    plain = gradients(block)
    checkpointed = gradients(lambda *args: torch.utils.checkpoint.checkpoint(block, *args, use_reentrant=False))
    compiled = gradients(torch.compile(block, backend="aot_eager", fullgraph=True))
    assert all(same(a, b) for a, b in zip(plain, checkpointed, strict=True))
    assert all(same(a, b) for a, b in zip(plain, compiled, strict=True))

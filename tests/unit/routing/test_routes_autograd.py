"""Gradients of Permute, Combine and the functions of raw positions: the same bits however often and however they are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from specalign.routing import ops  # noqa: E402
from specalign.routing import reference as plain  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.quantize import scatter_quantize_reference  # noqa: E402
from specalign.routing.routes import Combine, Permute, gather_routes, scatter_routes  # noqa: E402
from tests.unit.routing.interpreted_casts import make_routes, same  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
IDS = torch.tensor([[0, 2, -1], [2, 1, 0], [-1, -1, -1], [1, 0, 2]])
HEIGHT = 128


def layout_of(weights: Tensor | None = None) -> ReceiveLayout:
    weights = torch.rand(IDS.shape, generator=torch.Generator().manual_seed(1)) if weights is None else weights
    return ReceiveLayout(IDS, weights, num_experts=3)


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def layer(rows: Tensor, weights: Tensor, layout: ReceiveLayout) -> Tensor:
    return Combine(layout)(Permute(layout)(rows) * 2, weights)


def gradients(run: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    rows, weights = values(4, 7, dtype=dtype).requires_grad_(), values(4, 3, seed=1).requires_grad_()
    result = run(rows, weights)
    return (result.detach(), *torch.autograd.grad(result, (rows, weights), values(4, 7, dtype=dtype, seed=2)))


def all_same(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    return [same(*pair) for pair in zip(first, second, strict=True)] == [True] * len(first)


def test_fp32_is_what_index_operations_give() -> None:
    layout = layout_of()
    rows, weights = values(4, 7).requires_grad_(), values(4, 3, seed=1).requires_grad_()
    taken = torch.where((layout.positions >= 0)[:, :, None], (rows * 2)[:, None].expand(4, 3, 7), 0.0)
    result = (taken * weights[:, :, None]).sum(1)
    wanted = (result.detach(), *torch.autograd.grad(result, (rows, weights), values(4, 7, seed=2)))
    found = gradients(lambda *args: layer(*args, layout), torch.float32)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_positions_and_a_layout_have_the_same_bits(dtype: torch.dtype) -> None:
    layout = layout_of()

    def raw(rows: Tensor, weights: Tensor) -> Tensor:
        return gather_routes(scatter_routes(rows, layout.positions, layout.num_rows) * 2, layout.positions, weights)

    assert all_same(gradients(raw, dtype), gradients(lambda *args: layer(*args, layout), dtype))


def test_the_gradients_are_those_of_the_references() -> None:
    layout, grad = layout_of(), values(9, 7, dtype=torch.bfloat16, seed=3)[: layout_of().num_rows]
    rows = values(4, 7, dtype=torch.bfloat16).requires_grad_()
    Permute(layout)(rows).backward(grad)
    assert same(rows.grad, plain.scatter_backward_reference(grad, layout.positions))
    routed, weights = values(len(grad), 7, dtype=torch.bfloat16).requires_grad_(), values(4, 3).requires_grad_()
    upper = values(4, 7, dtype=torch.bfloat16, seed=4)
    Combine(layout)(routed, weights).backward(upper)
    wanted = plain.gather_backward_reference(upper, routed.detach(), layout.positions, weights.detach(), layout.padding_rows)
    assert all_same((routed.grad, weights.grad), wanted)


def test_a_second_backward_has_the_same_bits() -> None:
    layout = layout_of()
    rows, weights = values(4, 7, dtype=torch.bfloat16).requires_grad_(), values(4, 3).requires_grad_()
    result = layer(rows, weights, layout)
    grad = values(4, 7, dtype=torch.bfloat16, seed=2)
    first = torch.autograd.grad(result, (rows, weights), grad, retain_graph=True)
    assert all_same(first, torch.autograd.grad(result, (rows, weights), grad))


def test_two_calls_of_one_layout_do_not_disturb_each_other() -> None:
    layout = layout_of()
    alone = gradients(lambda *args: layer(*args, layout))
    other = values(4, 7, dtype=torch.bfloat16, seed=9).requires_grad_()

    def amid(rows: Tensor, weights: Tensor) -> Tensor:
        result = layer(rows, weights, layout)
        layer(other, weights, layout).float().sum().backward(retain_graph=True)
        return result

    assert all_same(gradients(amid), alone)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_has_the_same_bits(reentrant: bool) -> None:
    layout = layout_of()
    rows, weights = values(4, 7, dtype=torch.bfloat16).requires_grad_(), values(4, 3, seed=1).requires_grad_()
    result = checkpoint(lambda *args: layer(*args, layout), rows, weights, use_reentrant=reentrant)
    result.backward(values(4, 7, dtype=torch.bfloat16, seed=2))
    assert all_same((result.detach(), rows.grad, weights.grad), gradients(lambda *args: layer(*args, layout)))


def test_compiled_whole_it_has_the_same_bits() -> None:
    layout = layout_of()
    compiled = torch.compile(lambda *args: layer(*args, layout), backend="aot_eager", fullgraph=True)
    assert all_same(gradients(compiled), gradients(lambda *args: layer(*args, layout)))


@pytest.mark.parametrize("which", [0, 1])
def test_one_side_alone_can_need_a_gradient(which: int) -> None:
    layout = layout_of()
    sides = [values(layout.num_rows, 7, dtype=torch.bfloat16), values(4, 3)]
    both = [side.clone().requires_grad_() for side in sides]
    Combine(layout)(*both).float().sum().backward()
    sides[which].requires_grad_()
    Combine(layout)(*sides).float().sum().backward()
    assert same(sides[which].grad, both[which].grad)
    assert sides[1 - which].grad is None


def test_the_weights_of_the_layout_get_their_gradient() -> None:
    weights = values(4, 3, seed=1).requires_grad_()
    layout = layout_of(weights)
    routed = values(layout.num_rows, 7)
    Combine(layout)(routed).sum().backward()
    given = weights.detach().clone().requires_grad_()
    Combine(layout)(routed, given).sum().backward()
    assert same(weights.grad, given.grad)


def test_strides_change_no_bit() -> None:
    layout = layout_of()
    rows = values(4, 14, dtype=torch.bfloat16)
    weights = values(3, 4, seed=1)
    positions = torch.stack([layout.positions, layout.positions], 2)[:, :, 0]
    assert not any(side.is_contiguous() for side in (rows[:, ::2], weights.t(), positions))
    straight = scatter_routes(rows[:, ::2].contiguous(), layout.positions, layout.num_rows)
    assert same(scatter_routes(rows[:, ::2], positions, layout.num_rows), straight)
    tall = straight.t().contiguous().t()
    assert same(gather_routes(tall, positions, weights.t()), gather_routes(straight, layout.positions, weights.t().contiguous()))
    leaf = rows[:, ::2].contiguous().requires_grad_()
    scatter_routes(leaf, positions, layout.num_rows).sum().backward()  # a gradient of strides 0
    assert same(leaf.grad, (layout.positions >= 0).sum(1)[:, None].expand(4, 7).to(torch.bfloat16).contiguous())


def test_quantization_on_the_way_is_quantization_of_the_rows() -> None:
    layout, rows = layout_of(), values(4, HEIGHT, dtype=torch.bfloat16).requires_grad_()
    found = Permute(layout).quantize(rows, mn_major=True)
    wanted = scatter_quantize_reference(rows.detach(), layout.positions, layout.num_rows, layout.padding_rows, True)
    assert all_same(found, wanted)
    assert not any(side.requires_grad for side in found)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Permute(layout_of())(values(3, 7)), "rows: 3 rows, and 4 are expected"),
        (lambda: Combine(layout_of())(values(3, 7)), "rows: 3 rows, and 8 are expected"),
        (lambda: Combine(layout_of())(values(8, 7), values(3, 3)), "weights: float32"),
        (lambda: Permute(layout_of()).quantize(values(4, 7)), "7 columns"),
        (lambda: Permute(layout_of())(values(4, 7).to("meta")), "rows: on meta"),
    ],
)
def test_rows_of_no_layout_are_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(RoutingError, match=says):
        call()


def samples() -> list[tuple[object, tuple[object, ...]]]:
    positions, number, padding, owners = make_routes(4, 3)
    rows, routed, weights = values(4, HEIGHT), values(number, HEIGHT), values(4, 3)
    grads = (rows.clone().requires_grad_(), routed.clone().requires_grad_(), weights.clone().requires_grad_())
    return [
        (ops.scatter_op, (grads[0], positions, padding, True, number)),
        (ops.scatter_op, (grads[0], positions.int(), owners, False, number)),
        (ops.scatter_backward_op, (routed, positions)),
        (ops.gather_op, (grads[1], positions, grads[2], padding, True)),
        (ops.gather_backward_op, (rows, routed, positions, weights, owners, False)),
        (ops.scatter_quantize_op, (rows, positions, padding, True, number, False)),
        (ops.scatter_quantize_op, (rows, positions, owners, False, number, True)),
        (ops.compact_op, (positions, int((positions >= 0).sum()))),
    ]


@pytest.mark.parametrize("index", range(8))
def test_torch_finds_nothing_wrong_with_the_operator(index: int) -> None:
    operator, arguments = samples()[index]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, arguments, test_utils=tests)

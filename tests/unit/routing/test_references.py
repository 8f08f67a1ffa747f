"""The references against independent sources: exact fractions, a bf16 loop, float64 autograd, a plain tree, nonzero."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from specalign.routing import reference as plain  # noqa: E402
from specalign.routing.quantize import quantize_reference, scatter_quantize_reference  # noqa: E402
from tests.unit.routing.interpreted_casts import bits, make_routes, poison, same  # noqa: E402
from tests.unit.routing.plain_kernels import dot, fma, quantize_group, single, weigh  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ACC, ROW, WEIGHT = 1.0, 205.0, 5237765 * 2.0**-54


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 2.0 ** torch.randint(-6, 7, shape, generator=generator)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def test_the_planted_triple_tells_an_fma_from_float64() -> None:
    assert fma(ROW, WEIGHT, ACC) == 1.0 + 2.0**-23
    assert single(ROW * WEIGHT + ACC) == 1.0


@pytest.mark.parametrize("width", [*range(1, 35), 63, 64, 65, 1500, 2050])
def test_the_references_fma_rounds_once_at_every_width(width: int) -> None:
    """The last columns too, where vector code ends."""
    rows = torch.tensor([ACC, ROW])[:, None].expand(2, width).contiguous()
    found = plain.gather_reference(rows, torch.tensor([[0, 1]]), torch.tensor([[1.0, WEIGHT]]))
    assert (found == 1.0 + 2.0**-23).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slots", [1, 3, 6, 8])
def test_gather_is_exact_fma_in_slot_order_then_one_rounding(dtype: torch.dtype, slots: int) -> None:
    positions, number, _, _ = make_routes(3, slots)
    rows, weights = values(number, 7, dtype=dtype), values(3, slots, seed=1)
    wanted = [
        [weigh([rows[row, column].item() for row in place if row >= 0], [w for w, row in zip(weight, place, strict=True) if row >= 0]) for column in range(7)]
        for place, weight in zip(positions.tolist(), weights.tolist(), strict=True)
    ]  # fmt: skip
    assert same(plain.gather_reference(rows, positions, weights), torch.tensor(wanted).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_is_a_copy_by_index_and_zeros_padding_only(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    positions, number, padding, _ = make_routes(5, 3)
    rows = values(5, 7, dtype=dtype)
    rows[:, 0] = -0.0
    wanted = torch.zeros(number, 7, dtype=dtype)
    for token, places in enumerate(positions.tolist()):
        for row in places:
            if row >= 0:
                wanted[row] = rows[token]
    assert same(plain.scatter_reference(rows, positions, number, padding), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_backward_is_a_loop_of_the_rows_dtype_in_slot_order(dtype: torch.dtype) -> None:
    positions, number, _, _ = make_routes(6, 8)
    grad = values(number, 33, dtype=dtype)
    total = torch.zeros(6, 33, dtype=dtype)
    for token, places in enumerate(positions.tolist()):
        for row in places:
            total[token] += grad[row] if row >= 0 else torch.zeros(33, dtype=dtype)
    assert same(plain.scatter_backward_reference(grad, positions), total)


def test_rounding_after_each_slot_is_seen() -> None:
    """256 + 1 + 1 is 256 in bf16 slot by slot, 258 with one rounding; in the other order 258 as well."""
    grad = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    back = plain.scatter_backward_reference(grad, torch.tensor([[0, 1, 2], [1, 2, 0], [-1, 0, -1]]))
    assert back.flatten().tolist() == [256.0, 258.0, 256.0]


def test_minus_zero_and_empty_slots() -> None:
    grad = torch.full((2, 3), -0.0)
    assert same(plain.scatter_backward_reference(grad, torch.tensor([[0, 1], [-1, -1]])), torch.zeros(2, 3))
    assert same(plain.gather_reference(grad, torch.tensor([[0, 1], [-1, -1]]), torch.ones(2, 2)), torch.zeros(2, 3))
    nan = torch.full((2, 3), float("nan"))
    routes, dots = plain.gather_backward_reference(nan[:1], nan, torch.tensor([[-1]]), torch.ones(1, 1), torch.tensor([0, 1]))
    assert same(routes, torch.zeros(2, 3))
    assert same(dots, torch.zeros(1, 1))


@pytest.mark.parametrize("width", [1, 7, 1023, 1024, 1025, 2050])
def test_a_weights_gradient_is_the_tree_of_1024_lanes(width: int) -> None:
    grad, rows = values(2, width), values(2, width, seed=1)
    wanted = [dot(first, second, 1024) for first, second in zip(grad.tolist(), rows.tolist(), strict=True)]
    places = torch.tensor([[0], [1]])
    _, found = plain.gather_backward_reference(grad, rows, places, torch.ones(2, 1), torch.empty(0, dtype=torch.int64))
    assert found.flatten().tolist() == wanted
    if width > 1024:
        assert wanted != [dot(first, second, 512) for first, second in zip(grad.tolist(), rows.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_near_those_of_float64(dtype: torch.dtype) -> None:
    positions, number, padding, _ = make_routes(6, 3)
    rows, weights, grad = values(number, 50, dtype=dtype), values(6, 3, seed=1), values(6, 50, dtype=dtype, seed=2)
    wide, factors = rows.double().requires_grad_(), weights.double().requires_grad_()
    taken = torch.where((positions >= 0)[:, :, None], wide[positions.clamp(min=0)], 0.0)
    (taken * factors[:, :, None]).sum(1).backward(grad.double())
    routes, dots = plain.gather_backward_reference(grad, rows, positions, weights, padding)
    unit, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert ((routes.double() - wide.grad).abs() <= unit * wide.grad.abs() + least).all()
    size = (taken.abs() * grad.double().abs()[:, None]).sum(2)
    assert ((dots.double() - factors.grad).abs() <= 16 * 2.0**-24 * size + 1e-12).all()


def test_a_routes_gradient_is_one_fp32_product_rounded_once() -> None:
    grad = values(1, 400, dtype=torch.bfloat16)
    weight = torch.tensor([[1.0 + 2.0**-10 + 2.0**-23]])
    rows = torch.ones(1, 400, dtype=torch.bfloat16)
    routes, _ = plain.gather_backward_reference(grad, rows, torch.tensor([[0]]), weight, torch.empty(0, dtype=torch.int64))
    wanted = torch.tensor([single(value * weight.item()) for value in grad[0].tolist()]).bfloat16()
    assert same(routes[0], wanted)


# Quantization.


def every_bf16() -> Tensor:
    """All finite bf16 codes, mixed so that each group holds many binades or few."""
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = codes[codes.isfinite()]
    return torch.cat([codes, codes.new_zeros(-len(codes) % 128)])


def agree(rows: Tensor) -> None:
    found, scales = quantize_reference(rows)
    for row, codes, found_scales in zip(rows.float().tolist(), bits(found).tolist(), scales.tolist(), strict=True):
        for group, scale in enumerate(found_scales):
            wanted, wanted_scale = quantize_group(row[group * 128 : (group + 1) * 128])
            assert scale == wanted_scale
            assert codes[group * 128 : (group + 1) * 128] == wanted


def test_every_finite_bf16_in_groups_of_neighbours_is_quantized_as_by_fractions() -> None:
    agree(every_bf16().view(-1, 128)[::4])


def test_random_rows_are_quantized_as_by_fractions() -> None:
    for dtype in DTYPES:
        agree(values(20, 256, dtype=dtype))


def test_ties_subnormals_and_the_ends_of_e4m3() -> None:
    """With an absmax of 448 the scale is 1: values are rounded as they are."""
    halves = torch.tensor([2.0**-10, 3 * 2.0**-10, 5 * 2.0**-10, 17.0, 19.0, 2.125, 2.375, 432.0, 440.0, 2.0**-11, 448.0])
    row = torch.zeros(1, 128)
    row[0, : len(halves)], row[0, 20 : 20 + len(halves)] = halves, -halves
    found, scales = quantize_reference(row)
    assert scales.item() == 1.0
    expected = [0.0, 2.0**-8, 2.0**-8, 16.0, 20.0, 2.0, 2.5, 448.0, 448.0, 0.0, 448.0]
    assert found.float()[0, : len(halves)].tolist() == expected
    agree(row)


@pytest.mark.parametrize("largest", [0.0, 1e-12, 1e-10, 1.0000001e-10, 1e-5, 448 * 1.1, 3e38])
def test_small_groups_have_the_scale_of_the_floor(largest: float) -> None:
    row = torch.zeros(1, 128)
    row[0, 3], row[0, 9], row[0, 10] = largest, -largest / 3, -0.0
    agree(row)
    scale = quantize_reference(row)[1].item()
    if largest <= 1e-10:
        assert scale == (torch.tensor(1e-10) / 448).item()


def test_nothing_leaves_the_range() -> None:
    """x / scale may round to more than 448; without the clamp, E4M3 of torch would still saturate or be NaN."""
    found, _ = quantize_reference(values(500, 128))
    assert (found.float().abs() <= 448).all()
    assert found.float().abs().amax(1).eq(448).all()


def test_a_nan_or_infinity_is_a_nan_of_its_group_alone() -> None:
    row = torch.ones(1, 384)
    row[0, 0], row[0, 130] = float("nan"), float("-inf")
    found, scales = quantize_reference(row)
    assert found[0].float().isnan().sum().item() == 129
    assert math.isnan(scales[0, 0])
    assert scales[0, 1].item() == math.inf
    assert (found[0, 256:].float() == 448).all()


@pytest.mark.parametrize("number", [1, 4, 5, 7])
def test_mn_major_scales_lie_row_by_row_in_columns_of_a_multiple_of_four(number: int) -> None:
    rows, places = values(1, 384), torch.tensor([[0]])
    padding = torch.arange(1, number)
    plain_values, plain_scales = scatter_quantize_reference(rows, places, number, padding, False)
    found, scales = scatter_quantize_reference(rows, places, number, padding, True)
    column = (number + 3) // 4 * 4
    assert (scales.stride(), scales.shape) == ((1, column), (number, 3))
    assert same(found, plain_values)
    assert same(scales, plain_scales)
    assert scales.as_strided((3, column), (column, 1))[:, number:].eq(0).all()


def test_compact_is_nonzero_row_by_row() -> None:
    positions, _, _, _ = make_routes(9, 3)
    listed = [[t, s] for t, row in enumerate(positions.tolist()) for s, place in enumerate(row) if place >= 0]
    assert plain.compact_reference(positions, len(listed)).tolist() == listed

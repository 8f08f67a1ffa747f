"""The Triton kernels give the bits of their references, in Triton's interpreter.

The functions `interpreted_…` are run by `test_the_kernels_in_the_interpreter`, in a process of their own.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from specalign.routing import reference as plain  # noqa: E402
from specalign.routing.blanks import Blanks  # noqa: E402
from specalign.routing.launches import Launch  # noqa: E402
from specalign.routing.quantize import GROUP, scatter_quantize_reference  # noqa: E402
from tests.unit.dump.interpreter import run_interpreted  # noqa: E402
from tests.unit.routing.interpreted_casts import make_routes, poison, right_cast, same  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = [
    (4, 3, 7, BF16), (3, 8, 1500, BF16), (2, 3, 2050, BF16), (2, 6, 2880, BF16), (3, 1, 7, FP16), (2, 6, 2050, FP16),
    (3, 8, 7, FP32), (2, 3, 1500, FP32), (3, 1, 2880, FP32),
]  # fmt: skip
EMPTY = [(0, 3, 8), (3, 0, 8), (3, 2, 0), (0, 0, 0)]
LAUNCHES = [Launch(), Launch(512, 4, 3), Launch(4096, 4, 2)]
SOURCES = Path(plain.__file__).parent


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter: right casts, and results that begin as a pattern."""
    import os

    if os.environ.get("TRITON_INTERPRET") == "1":
        right_cast(monkeypatch)
        poison(monkeypatch)


def test_the_kernels_in_the_interpreter() -> None:
    run_interpreted(Path(__file__), at_least=58)


def test_every_offset_of_a_row_is_taken_in_64_bits() -> None:
    """A row's number times the width passes 2^31: each index that is multiplied by a width or stride was made int64 before."""
    for name in ("scatter", "gather", "quantize"):
        tree = ast.parse((SOURCES / f"{name}_kernels.py").read_text("utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
        narrow = {f"{function.name}: {use}" for function in functions for use in narrow_offsets(function)}
        assert narrow == set(), name
    assert narrow_offsets(ast.parse("row = tl.load(at)\nx = row * WIDTH").body) == ["row * WIDTH"]
    assert narrow_offsets(ast.parse("row = tl.load(at).to(tl.int64)\nx = row * WIDTH").body) == []


def narrow_offsets(code: ast.FunctionDef | list[ast.stmt]) -> list[str]:
    """Products with a width or a stride whose other factor is a name that this code sets without `.to(tl.int64)`."""
    nodes = [node for stmt in (code if isinstance(code, list) else code.body) for node in ast.walk(stmt)]
    sums = {"token", "program", "row", "place"}
    made = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made.setdefault(node.targets[0].id, []).append(ast.unparse(node.value))
    found = []
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.unparse(node.right) in WIDE:
            name = ast.unparse(node.left).split("[")[0]
            values = made.get(name, [])
            wide = [
                ".to(tl.int64)" in value or value.split(" ")[0] in {"which", *sums} or value.startswith("write_blank(")
                for value in values
            ]
            if values and not all(wide):
                found.append(ast.unparse(node))
    return found


WIDE = {"WIDTH", "SLOTS", "row_stride", "group_stride"}


def values(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal values over many binades, with -0 in every row."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-4, 5, shape, generator=generator)
    drawn[..., ::3] = -0.0 if drawn.shape[-1] > 3 else drawn[..., ::3]
    return drawn.to(dtype)


def blanks_of(padding: Tensor, owners: Tensor) -> list[Blanks]:
    return [Blanks(padding, True), Blanks(owners, False)]


# Below, run in the interpreter.


def interpreted_the_cast_to_bf16_is_the_hardware_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    codes = np.arange(1 << 16, dtype=np.uint32)
    for low in (0, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        single = (codes << 16) | low
        finite = (codes & 0x7F80) != 0x7F80
        wanted = ((single.astype(np.uint64) + 0x7FFF + ((single >> 16) & 1)) >> 16).astype(np.uint16)
        found = interpreter._convert_float(single.view(np.float32), tl.float32, tl.bfloat16, None)
        assert (found.reshape(-1)[finite] == wanted[finite]).all()
    back = interpreter._convert_float(codes.astype(np.uint16), tl.bfloat16, tl.float32, None)
    finite = (codes & 0x7F80) != 0x7F80
    assert (np.asarray(back).view(np.uint32)[finite] == (codes << 16)[finite]).all()


@pytest.mark.parametrize(("tokens", "slots", "width", "dtype"), CASES)
def interpreted_scatter_is_its_reference(tokens: int, slots: int, width: int, dtype: torch.dtype) -> None:
    from specalign.routing.scatter_kernels import scatter_triton

    rows = values(tokens, width, dtype=dtype)
    positions, number, padding, owners = make_routes(tokens, slots)
    wanted = plain.scatter_reference(rows, positions, number, padding)
    for blanks, launch in zip([*blanks_of(padding, owners), Blanks(padding, True)], LAUNCHES, strict=True):
        assert same(scatter_triton(rows, positions, number, blanks, launch), wanted)
    some = scatter_triton(rows, positions.int(), number, Blanks(padding[1:], True))
    left = some[padding[0]].view(torch.uint8)
    assert (left == 0x5A).all(), "a row that is not listed was written"


@pytest.mark.parametrize(("tokens", "slots", "width", "dtype"), CASES)
def interpreted_the_sums_are_their_references(tokens: int, slots: int, width: int, dtype: torch.dtype) -> None:
    from specalign.routing.gather_kernels import gather_triton
    from specalign.routing.scatter_kernels import scatter_backward_triton

    positions, number, _, _ = make_routes(tokens, slots)
    rows, weights = values(number, width, dtype=dtype), values(tokens, slots, dtype=FP32, seed=1)
    for launch in LAUNCHES[:2]:
        found = scatter_backward_triton(rows, positions, launch)
        assert same(found, plain.scatter_backward_reference(rows, positions))
        assert same(gather_triton(rows, positions, weights, launch), plain.gather_reference(rows, positions, weights))


@pytest.mark.parametrize(("tokens", "slots", "width", "dtype"), CASES)
def interpreted_gather_backward_is_its_reference(tokens: int, slots: int, width: int, dtype: torch.dtype) -> None:
    from specalign.routing.gather_kernels import gather_backward_triton

    positions, number, padding, owners = make_routes(tokens, slots)
    rows, grad = values(number, width, dtype=dtype), values(tokens, width, dtype=dtype, seed=2)
    weights = values(tokens, slots, dtype=FP32, seed=1)
    wanted = plain.gather_backward_reference(grad, rows, positions, weights, padding)
    for blanks in blanks_of(padding, owners):
        found = gather_backward_triton(grad, rows, positions, weights, blanks)
        assert [same(*pair) for pair in zip(found, wanted, strict=True)] == [True, True]


@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize(
    ("tokens", "slots", "width", "dtype"), [(3, 3, 256, BF16), (3, 8, 1536, BF16), (2, 1, 2816, FP16), (3, 6, 128, FP32)]
)
def interpreted_scatter_quantize_is_its_reference(
    tokens: int, slots: int, width: int, dtype: torch.dtype, mn_major: bool
) -> None:
    from specalign.routing.quantize_kernels import scatter_quantize_triton

    rows = values(tokens, width, dtype=dtype)
    rows[0, :GROUP], rows[-1, 1], rows[0, -1] = 0, 1e-12, -1e4
    positions, number, padding, owners = make_routes(tokens, slots)
    wanted = scatter_quantize_reference(rows, positions, number, padding, mn_major)
    for blanks, launch in zip(blanks_of(padding, owners), LAUNCHES[:2], strict=True):
        found = scatter_quantize_triton(rows, positions, number, blanks, mn_major, launch)
        assert [same(*pair) for pair in zip(found, wanted, strict=True)] == [True, True]
        assert found[1].stride() == wanted[1].stride()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def interpreted_a_nan_or_infinity_spoils_its_group_and_no_other() -> None:
    from specalign.routing.quantize_kernels import scatter_quantize_triton

    rows = values(1, 4 * GROUP, dtype=FP32)
    rows[0, 5], rows[0, GROUP], rows[0, 2 * GROUP + 9] = float("nan"), float("inf"), float("-inf")
    place, none = torch.tensor([[0]]), torch.empty(0, dtype=torch.int64)
    wanted = scatter_quantize_reference(rows, place, 1, none, False)
    found = scatter_quantize_triton(rows, place, 1, Blanks(none, True), False)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.float().isnan(), other.float().isnan())
        assert torch.equal(one.float().nan_to_num(0), other.float().nan_to_num(0))
    assert found[0].float().isnan().sum(dim=1).tolist() == [GROUP + 2]


@pytest.mark.parametrize(("tokens", "slots"), [(4, 3), (5, 1), (700, 3), (3, 0), (0, 2)])
def interpreted_compact_is_nonzero(tokens: int, slots: int) -> None:
    from specalign.routing.compact_kernels import compact_triton

    positions = make_routes(tokens, slots)[0] if tokens * slots else torch.empty(tokens, slots, dtype=torch.int64)
    wanted = (positions >= 0).nonzero()
    assert torch.equal(compact_triton(positions, len(wanted)), wanted)
    if len(wanted) > 1:
        assert torch.equal(compact_triton(positions, len(wanted) - 1), wanted[:-1])


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize(("tokens", "slots", "width"), EMPTY)
def interpreted_nothing_to_do_is_done(tokens: int, slots: int, width: int, number: int, listed: bool) -> None:
    from specalign.routing import gather_kernels, quantize_kernels, scatter_kernels

    positions, weights = torch.full((tokens, slots), -1), torch.ones(tokens, slots)
    rows, routed = torch.ones(tokens, width), torch.ones(number, width)
    padding = torch.arange(number)
    blanks = Blanks(padding, True) if listed else Blanks(torch.full((number,), 2**31 - 1, dtype=torch.int32), False)
    found = scatter_kernels.scatter_triton(rows, positions, number, blanks)
    assert same(found, torch.zeros(number, width))
    assert same(scatter_kernels.scatter_backward_triton(routed, positions), torch.zeros(tokens, width))
    assert same(gather_kernels.gather_triton(routed, positions, weights), torch.zeros(tokens, width))
    routes, dots = gather_kernels.gather_backward_triton(rows, routed, positions, weights, blanks)
    assert same(routes, torch.zeros(number, width))
    assert same(dots, torch.zeros(tokens, slots))
    wide = torch.ones(tokens, width * 16)
    quantized, scales = quantize_kernels.scatter_quantize_triton(wide, positions, number, blanks, False)
    assert (quantized.shape, scales.shape) == ((number, width * 16), (number, width // 8))
    assert (quantized.view(torch.uint8) == 0).all()


def interpreted_fma_rounds_once() -> None:
    """205 * w is just below half a unit above 1, by less than float64 holds: an FMA in float64 rounds it away."""
    from specalign.routing.gather_kernels import gather_triton

    rows = torch.tensor([[1.0], [205.0]])
    weights = torch.tensor([[1.0, 5237765 * 2.0**-54]])
    assert gather_triton(rows, torch.tensor([[0, 1]]), weights).item() == 1.0 + 2.0**-23

"""Non-finite elements of tensors are counted as numpy counts them: by the torch reference, and by the kernel in its interpreter.

The functions `interpreted_…` are run by `test_the_kernel_in_the_interpreter`, as in `test_fingerprint_torch.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.dump import nonfinite_torch  # noqa: E402
from specalign.dump.dtypes import BY_TORCH_NAME, DType  # noqa: E402
from specalign.dump.errors import DumpError  # noqa: E402
from specalign.dump.fingerprint_torch import fingerprint_reference, fingerprint_tensor  # noqa: E402
from specalign.dump.nonfinite import unpack_counts  # noqa: E402
from tests.unit.dump.interpreter import run_interpreted  # noqa: E402
from tests.unit.dump.plain_fingerprints import plain_counts, special_rows  # noqa: E402
from tests.unit.dump.test_fingerprint_torch import SHAPES  # noqa: E402

DTYPES = [dtype for dtype in BY_TORCH_NAME.values() if hasattr(torch, dtype.torch)]
IDS = [dtype.torch for dtype in DTYPES]
WIDTHS = [1, 2, 3, 4, 5, 8, 63, 64]

Fingerprint = Callable[..., torch.Tensor]


def special_tensor(dtype: DType, rows: int, width: int) -> torch.Tensor:
    """Codes at the edges of what is finite; moved as integers, for a cast would change a NaN."""
    bits = special_rows(dtype.name, dtype.raw, rows, width)
    bits = bits & 1 if dtype.kind == "bool" else bits
    signed = f"<i{dtype.size}" if dtype.size > 1 else "u1"
    return torch.from_numpy(bits.view(signed)).view(getattr(torch, dtype.torch))


def codes_of(tensor: torch.Tensor, dtype: DType) -> list[list[int]]:
    same = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.size]
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1, tensor.shape[-1]).view(same)
    return [[code % 256**dtype.size for code in row] for row in flat.tolist()]


def counts_of(found: torch.Tensor) -> list[list[int]]:
    assert found.dtype == torch.int64
    assert found.shape[1] == 3
    return unpack_counts(found.cpu()[:, 2].numpy()).tolist()


def plain(tensor: torch.Tensor, dtype: DType) -> list[list[int]]:
    return [plain_counts(row, dtype.name) for row in codes_of(tensor, dtype)]


def check(fingerprint: Fingerprint, tensor: torch.Tensor, dtype: DType, **options: object) -> None:
    """The counts are those of Python's own numbers, and the lanes are what they are without counting."""
    found = fingerprint(tensor, count=True, **options)
    assert counts_of(found) == plain(tensor, dtype)
    assert torch.equal(found[:, :2], fingerprint_reference(tensor))


def layouts() -> dict[str, torch.Tensor]:
    """bf16 rows that lie in many ways."""
    base = special_tensor(BY_TORCH_NAME["bfloat16"], 12, 66)
    return {
        "every other row": base[::2],
        "columns of wider rows": base[:, 4:36],
        "columns off a word": base[:, 5:36],
        "rows of an odd stride": base.flatten()[:780].view(12, 65)[:, :64],
        "every third element": base[:, ::3],
        "transposed": base.T,
        "one row broadcast": base[1:2].expand(5, 66),
        "rows that overlap": base.flatten().as_strided((9, 4), (2, 1)),
        "one element": base[1:2, 3:4],
        "batch and sequence": base.view(3, 4, 66),
    }


# The torch reference.


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def test_every_type_is_counted_by_its_codes(dtype: DType, width: int) -> None:
    check(fingerprint_tensor, special_tensor(dtype, 7, width), dtype)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_float], ids=[d.torch for d in DTYPES if d.is_float])
def test_torch_itself_says_the_same(dtype: DType) -> None:
    rows = special_tensor(dtype, 5, 40)
    values = rows.to(torch.float64)
    never = (values.isnan() | values.isposinf()).sum(dim=1)
    found = counts_of(fingerprint_tensor(rows, count=True))
    assert found == torch.stack([never, values.isneginf().sum(dim=1)], dim=1).tolist()


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_rows_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    monkeypatch.setattr(nonfinite_torch, "_BLOCK", block)
    check(fingerprint_tensor, layouts()[name], BY_TORCH_NAME["bfloat16"])


def test_no_rows_and_no_elements() -> None:
    assert fingerprint_tensor(torch.zeros(0, 6), count=True).shape == (0, 3)
    assert fingerprint_tensor(torch.zeros(3, 0), count=True).tolist() == [[0, 0, 0]] * 3


REFUSED = [
    (torch.zeros(1, 2, dtype=torch.complex64), "complex64"),
    (torch.zeros(1, 1, dtype=torch.float8_e5m2).expand(1, 2**32), "4294967296 elements"),
]


@pytest.mark.parametrize(("tensor", "says"), REFUSED)
def test_what_cannot_be_counted_is_refused(tensor: torch.Tensor, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        nonfinite_torch.packed_counts(tensor)


# The Triton kernel.


def test_the_kernel_in_the_interpreter() -> None:
    run_interpreted(Path(__file__), at_least=150)


def kernel() -> Fingerprint:
    from specalign.dump.fingerprint_kernels import fingerprint_triton

    return fingerprint_triton


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def interpreted_every_type_is_counted_by_its_codes(dtype: DType, width: int) -> None:
    check(kernel(), special_tensor(dtype, 7, width), dtype)


@pytest.mark.parametrize("name", layouts())
def interpreted_rows_may_lie_anywhere(name: str) -> None:
    check(kernel(), layouts()[name], BY_TORCH_NAME["bfloat16"])


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("offset", [1, 2, 4])
def interpreted_memory_off_the_size_of_an_element(dtype: DType, offset: int) -> None:
    there = special_tensor(dtype, 5, 6).view(torch.uint8).numpy().tobytes()
    memory = np.zeros(64 + len(there), np.uint8)
    begin = -memory.ctypes.data % 16 + offset
    memory[begin : begin + len(there)] = np.frombuffer(there, np.uint8)
    rows = torch.frombuffer(memory, dtype=getattr(torch, dtype.torch), count=30, offset=begin).view(5, 6)
    assert rows.data_ptr() % 16 == offset
    check(kernel(), rows, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float8_e5m2"])
def interpreted_the_shape_of_the_launch_does_not_matter(shape: dict[str, int], dtype: str) -> None:
    from specalign.dump.fingerprint_kernels import Launch

    rows = special_tensor(BY_TORCH_NAME[dtype], 7, 52)
    check(kernel(), rows, BY_TORCH_NAME[dtype], launch=Launch(**shape))


@pytest.mark.parametrize("width", [64, 65, 129])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float8_e4m3fn", "float8_e4m3fnuz"])
def interpreted_long_rows_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch, dtype: str, width: int) -> None:
    from specalign.dump import fingerprint_kernels

    monkeypatch.setattr(fingerprint_kernels, "_CHUNK_UNITS", 16)
    check(kernel(), special_tensor(BY_TORCH_NAME[dtype], 3, width), BY_TORCH_NAME[dtype])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_float], ids=[d.torch for d in DTYPES if d.is_float])
def interpreted_one_element_that_is_not_finite_is_found_wherever_it_stands(dtype: DType) -> None:
    rows = np.zeros((36, 35), dtype.raw)
    infinity = dtype.first_nonfinite if dtype.specials != "negative_zero" else 0
    rows[np.arange(35), np.arange(35)] = dtype.sign | infinity
    tensor = torch.from_numpy(rows.view(f"<i{dtype.size}" if dtype.size > 1 else "u1")).view(getattr(torch, dtype.torch))
    one = [0, 1] if dtype.specials == "ieee" else [1, 0]
    assert counts_of(kernel()(tensor, count=True)) == [one] * 35 + [[0, 0]]


def interpreted_shards_add_up_to_the_row() -> None:
    dtype = BY_TORCH_NAME["bfloat16"]
    rows = special_tensor(dtype, 5, 91)
    shards = [kernel()(rows[:, a:b], first_byte=2 * a, count=True) for a, b in ((0, 30), (30, 34), (34, 91))]
    assert torch.equal(torch.stack(shards).sum(0), fingerprint_reference(rows, count=True))


def interpreted_no_rows_and_no_elements() -> None:
    assert kernel()(torch.zeros(0, 6), count=True).shape == (0, 3)
    assert kernel()(torch.zeros(3, 0), count=True).tolist() == [[0, 0, 0]] * 3


@pytest.mark.parametrize(("tensor", "says"), REFUSED)
def interpreted_refusals_are_those_of_the_reference(tensor: torch.Tensor, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        kernel()(tensor, count=True)

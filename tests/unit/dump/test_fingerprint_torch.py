"""Fingerprints of tensors have the bits of the definition: by the torch reference, and by the Triton kernel in its interpreter.

The functions `interpreted_…` are no tests by themselves: `test_the_kernel_in_the_interpreter` runs them in a process of their own,
since TRITON_INTERPRET must be set before triton is imported and changes it for good.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from specalign.dump import fingerprint_torch  # noqa: E402
from specalign.dump.dtypes import BY_TORCH_NAME  # noqa: E402
from specalign.dump.errors import DumpError  # noqa: E402
from specalign.dump.fingerprint import add_shards, fingerprint_rows  # noqa: E402
from specalign.dump.fingerprint_torch import fingerprint_reference, fingerprint_tensor, torch_multipliers  # noqa: E402
from tests.unit.dump.interpreter import run_interpreted  # noqa: E402
from tests.unit.dump.plain_fingerprints import plain_fingerprint, plain_multiplier, table, written_bytes  # noqa: E402

DTYPES = [getattr(torch, name) for name in BY_TORCH_NAME if hasattr(torch, name)]
WIDTHS = [1, 2, 3, 5, 8, 63, 64]
MOD = 2**64


def random_rows(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits, but for bool, whose bytes are 0 and 1."""
    generator = torch.Generator().manual_seed(sum(shape))
    size = dtype.itemsize
    bits = torch.randint(
        0, 2 if dtype == torch.bool else 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=generator
    )
    return bits.view(dtype)


def row_of(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)[None]


def row_bytes(tensor: torch.Tensor) -> list[bytes]:
    """The bytes of each row, element by element, so that no layout can mislead."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1, tensor.shape[-1])
    return [bytes(row.view(torch.uint8).tolist()) for row in flat]


def pairs(fingerprints: torch.Tensor) -> list[tuple[int, int]]:
    assert fingerprints.dtype == torch.int64
    return [(first % MOD, second % MOD) for first, second in fingerprints.tolist()]


def plain(tensor: torch.Tensor, first_byte: int = 0) -> list[tuple[int, int]]:
    return [plain_fingerprint(row, first_byte) for row in row_bytes(tensor)]


def views() -> dict[str, torch.Tensor]:
    """Rows that lie in every way that torch knows."""
    base = random_rows(torch.bfloat16, 12, 66)
    complex_rows = random_rows(torch.float32, 3, 10).view(torch.complex64)
    return {
        "every other row": base[::2],
        "columns of wider rows": base[:, 4:36],
        "columns off a word": base[:, 5:36],
        "an even stride off 16 bytes": base[:, :6],
        "every third element": base[:, ::3],
        "transposed": base.T,
        "one row broadcast": base[:1].expand(5, 66),
        "one element broadcast": base[:1, :1].expand(3, 7),
        "rows that overlap": base.flatten().as_strided((9, 4), (2, 1)),
        "rows of one element": base[:, 1:2],
        "rows of one element, transposed": base[1:2].T,
        "one element, transposed": base[1:2, 3:4].T,
        "one row": base[3:4, :7],
        "heads swapped": base[:, :60].reshape(12, 5, 12).swapaxes(1, 2),
        "batch and sequence": base.view(3, 4, 66),
        "with a gradient": base.float().requires_grad_(),
        "complex": complex_rows,
        "conjugated lazily": complex_rows.conj(),
        "negated lazily": complex_rows.conj().imag,
        "channels last": random_rows(torch.float16, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    }


# The torch reference.


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("first", [0, 1, 1535, 2**32 - 2, 2**62, 2**64 - 3])
def test_multipliers_follow_the_definition(lane: int, first: int) -> None:
    got = torch_multipliers(first, 5, torch.device("cpu"))[lane]
    assert [m % MOD for m in got.tolist()] == [plain_multiplier(lane, first + place) for place in range(5)]


@pytest.mark.parametrize(("dtype", "values", "data", "first", "lane_0", "lane_1"), table("Rows"))
def test_rows_have_the_fingerprints_of_the_page(dtype: str, values: str, data: str, first: str, lane_0: str, lane_1: str) -> None:
    rows = row_of(written_bytes(data))
    if values:
        numbers = torch.tensor([float(value) if "." in value else int(value) for value in values.split(", ")])
        if "." in values:
            numbers = torch.tensor([float(value) for value in values.split(", ")], dtype=torch.float64)
        typed = numbers.to(getattr(torch, dtype))[None]
        assert row_bytes(typed) == [written_bytes(data)]
        rows = typed
    assert pairs(fingerprint_reference(rows, first_byte=int(first))) == [(int(lane_0, 16), int(lane_1, 16))]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_counts_as_its_bytes(dtype: torch.dtype, width: int) -> None:
    rows = random_rows(dtype, 3, width)
    assert pairs(fingerprint_tensor(rows)) == plain(rows)


@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_rows_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    monkeypatch.setattr(fingerprint_torch, "_BLOCK_WORDS", block)
    monkeypatch.setattr(fingerprint_torch, "_CHUNK_WORDS", 4 * block)
    rows = views()[name]
    before = row_bytes(rows)
    assert pairs(fingerprint_tensor(rows)) == plain(rows)
    assert row_bytes(rows) == before


def test_two_axes_have_the_fingerprints_of_numpy() -> None:
    rows = random_rows(torch.int16, 5, 4101)
    assert torch.equal(fingerprint_tensor(rows), torch.from_numpy(fingerprint_rows(rows.numpy()).view("int64")))


@pytest.mark.parametrize("shape", [(0, 6), (0, 0), (2, 0, 6)])
def test_no_rows_have_no_fingerprints(shape: tuple[int, ...]) -> None:
    assert fingerprint_tensor(torch.zeros(shape, dtype=torch.bfloat16)).shape == (0, 2)


def test_rows_of_no_elements_give_zeros() -> None:
    assert pairs(fingerprint_tensor(torch.zeros(2, 3, 0))) == [(0, 0)] * 6


@given(st.binary(max_size=120), st.lists(st.integers(0, 30), max_size=3))
def test_shards_add_up_to_the_row(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(4 * cut, len(data) // 4 * 4) for cut in cuts), len(data)]
    parts = [fingerprint_tensor(row_of(data[a:b]), first_byte=a) for a, b in itertools.pairwise(edges)]
    assert pairs(torch.stack(parts).sum(0)) == [plain_fingerprint(data)]
    assert add_shards([part.numpy().view("uint64") for part in parts]).tolist() == [list(plain_fingerprint(data))]


@given(st.binary(min_size=1, max_size=24), st.integers(0, 191))
def test_any_changed_bit_changes_both_lanes(data: bytes, bit: int) -> None:
    bit %= 8 * len(data)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    before, after = (fingerprint_tensor(row_of(row)) for row in (data, bytes(changed)))
    assert (before != after).all()


REFUSED = [
    (torch.zeros(4), 0, r"\[4\].*x\[None\] for one row.*x\[:, None\]"),
    (torch.tensor(1), 0, r"shape \[\] does not say"),
    (torch.eye(2).to_sparse(), 0, r"sparse.*to_dense"),
    (torch.zeros(1, 4), 2, "2 bytes into word 0"),
]


@pytest.mark.parametrize(("tensor", "first", "says"), REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(tensor: torch.Tensor, first: int, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        fingerprint_tensor(tensor, first_byte=first)


def test_no_gradient_flows() -> None:
    assert not fingerprint_tensor(torch.zeros(1, 2, requires_grad=True)).requires_grad


# The Triton kernel.


def test_the_kernel_in_the_interpreter() -> None:
    run_interpreted(Path(__file__), at_least=100)


def kernel() -> Callable[..., torch.Tensor]:
    from specalign.dump.fingerprint_kernels import fingerprint_triton

    return fingerprint_triton


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def interpreted_every_dtype_counts_as_its_bytes(dtype: torch.dtype, width: int) -> None:
    rows = random_rows(dtype, 6, width)
    assert pairs(kernel()(rows)) == plain(rows)


@pytest.mark.parametrize(("dtype", "values", "data", "first", "lane_0", "lane_1"), table("Rows"))
def interpreted_rows_of_the_page(dtype: str, values: str, data: str, first: str, lane_0: str, lane_1: str) -> None:
    assert pairs(kernel()(row_of(written_bytes(data)), first_byte=int(first))) == [(int(lane_0, 16), int(lane_1, 16))]


@pytest.mark.parametrize("name", views())
def interpreted_rows_may_lie_anywhere(name: str) -> None:
    rows = views()[name]
    before = row_bytes(rows)
    assert pairs(kernel()(rows)) == plain(rows)
    assert row_bytes(rows) == before


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("stride", [20, 21, 22, 24, 32])
@pytest.mark.parametrize("width", [16, 17, 18])
def interpreted_alignment_does_not_matter(offset: int, stride: int, width: int) -> None:
    rows = random_rows(torch.uint8, 200)[offset:].as_strided((5, width), (stride, 1))
    assert pairs(kernel()(rows)) == plain(rows)


SHAPES: list[dict[str, int]] = [
    {"rows": 1, "block": 4},
    {"rows": 2, "block": 16, "stages": 3},
    {"rows": 8, "block": 128, "warps": 8},
    {"rows": 16, "block": 1024},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("width", [5, 160])
def interpreted_the_shape_of_the_launch_does_not_matter(shape: dict[str, int], width: int) -> None:
    from specalign.dump.fingerprint_kernels import Launch

    rows = random_rows(torch.bfloat16, 7, width)
    assert pairs(kernel()(rows, launch=Launch(**shape))) == plain(rows)


@pytest.mark.parametrize("width", [64, 65, 129])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8], ids=str)
def interpreted_long_rows_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int) -> None:
    from specalign.dump import fingerprint_kernels

    monkeypatch.setattr(fingerprint_kernels, "_CHUNK_UNITS", 16)
    rows = random_rows(dtype, 3, width)
    assert pairs(kernel()(rows, first_byte=12)) == plain(rows, 12)


def interpreted_shards_add_up_to_the_row() -> None:
    rows = random_rows(torch.bfloat16, 5, 91)
    shards = [kernel()(rows[:, a:b], first_byte=2 * a) for a, b in ((0, 30), (30, 34), (34, 91))]
    assert pairs(torch.stack(shards).sum(0)) == plain(rows)


def interpreted_any_changed_bit_changes_both_lanes() -> None:
    rows = torch.zeros(56, 7, dtype=torch.uint8)
    for bit in range(56):
        rows[bit, bit // 8] = 1 << bit % 8
    before, after = kernel()(torch.zeros_like(rows)), kernel()(rows)
    assert (before != after).all()
    assert len({*map(tuple, after.tolist())}) == 56


def interpreted_rows_more_than_two_to_the_31_words_apart(tmp_path: Path) -> None:
    sparse = np.memmap(tmp_path / "sparse", np.uint8, "w+", shape=(2**33 + 4096,))
    (tmp_path / "sparse").unlink()  # the memory stays until the test ends
    rows = torch.from_numpy(sparse).as_strided((2, 32), (2**33 + 64, 1))
    rows[0] = 1
    rows[1] = 2
    assert pairs(kernel()(rows)) == plain(rows)


def interpreted_no_rows_and_no_elements() -> None:
    assert kernel()(torch.zeros(0, 6)).shape == (0, 2)
    assert pairs(kernel()(torch.zeros(3, 0))) == [(0, 0)] * 3


@pytest.mark.parametrize(("tensor", "first", "says"), REFUSED)
def interpreted_refusals_are_those_of_the_reference(tensor: torch.Tensor, first: int, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        kernel()(tensor, first_byte=first)


def interpreted_the_last_multipliers_are_kept() -> None:
    from specalign.dump.fingerprint_kernels import _Tables

    tables, cpu = _Tables(2), torch.device("cpu")
    first = tables.get((0, 8, 1, cpu))
    assert tables.get((0, 8, 1, cpu)) is first
    tables.get((0, 9, 1, cpu))
    assert tables.get((0, 8, 1, cpu)) is first
    tables.get((0, 10, 1, cpu))  # drops 9, which was used before 8
    assert tables.get((0, 8, 1, cpu)) is first
    tables.get((0, 10, 1, cpu))
    tables.get((0, 11, 1, cpu))
    assert tables.get((0, 8, 1, cpu)) is not first
    assert len(tables._kept) == 2


def interpreted_threads_share_the_multipliers() -> None:
    from specalign.dump.fingerprint_kernels import _table, _Tables

    tables, cpu = _Tables(3), torch.device("cpu")
    keys: list[Any] = [(first, units, 2, cpu) for first in (0, 7) for units in (8, 9, 10)]
    expected = {key: _table(*key)[0] for key in keys}
    wrong: list[Any] = []

    def look() -> None:
        for _ in range(40):
            wrong.extend(key for key in keys if not torch.equal(tables.get(key)[0], expected[key]))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

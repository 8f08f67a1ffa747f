"""On a GPU the Triton kernel and the torch reference have the bits of numpy's fingerprint, in any layout and of any size."""

from __future__ import annotations

import importlib
import itertools
import threading
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.dump import fingerprint_torch  # noqa: E402
from specalign.dump.dtypes import BY_TORCH_NAME, DType  # noqa: E402
from specalign.dump.errors import DumpError  # noqa: E402
from specalign.dump.fingerprint import fingerprint_rows  # noqa: E402
from specalign.dump.fingerprint_torch import fingerprint_reference, fingerprint_tensor  # noqa: E402
from specalign.dump.nonfinite import count_nonfinite  # noqa: E402
from tests.unit.dump.plain_fingerprints import table, written_bytes  # noqa: E402
from tests.unit.dump.test_fingerprint_torch import DTYPES, REFUSED, SHAPES, pairs, plain, random_rows, row_of, views  # noqa: E402
from tests.unit.dump.test_nonfinite_torch import codes_of, counts_of, special_tensor  # noqa: E402

WIDTHS = [1, 2, 3, 5, 63, 64, 180, 360, 1023, 2880, 6144]
MIB = 2**20


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    """The module of the kernel. Imported here, so that the file can be collected where triton is missing."""
    try:
        return importlib.import_module("specalign.dump.fingerprint_kernels")
    except ModuleNotFoundError as missing:
        pytest.fail(f"{missing.name} is not installed: the kernel was asked for by name and cannot run", pytrace=False)


@pytest.fixture(params=["kernel", "reference"])
def fingerprint(request: pytest.FixtureRequest, kernels: ModuleType) -> fingerprint_torch.Kernel:
    return kernels.fingerprint_triton if request.param == "kernel" else fingerprint_reference


def by_numpy(rows: torch.Tensor, first_byte: int = 0) -> torch.Tensor:
    """The fingerprint of `[rows, width]` by numpy, from bytes that were copied to the CPU."""
    raw = rows.detach().cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return torch.from_numpy(fingerprint_rows(raw.numpy(), first_byte=first_byte).view("int64"))


def test_triton_is_what_a_gpu_gets(kernels: ModuleType) -> None:
    assert fingerprint_torch._triton_kernel() is kernels.fingerprint_triton


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_the_bits_of_numpy(fingerprint: fingerprint_torch.Kernel, dtype: torch.dtype, width: int) -> None:
    rows = random_rows(dtype, 37, width)
    got = fingerprint(rows.cuda())
    assert got.is_cuda
    assert torch.equal(got.cpu(), by_numpy(rows))


@pytest.mark.parametrize(("dtype", "values", "data", "first", "lane_0", "lane_1"), table("Rows"))
def test_rows_have_the_fingerprints_of_the_page(
    fingerprint: fingerprint_torch.Kernel, dtype: str, values: str, data: str, first: str, lane_0: str, lane_1: str
) -> None:
    rows = row_of(written_bytes(data)).cuda()
    assert pairs(fingerprint(rows, first_byte=int(first))) == [(int(lane_0, 16), int(lane_1, 16))]


@pytest.mark.parametrize("name", views())
def test_rows_may_lie_anywhere(fingerprint: fingerprint_torch.Kernel, name: str) -> None:
    rows = views()[name]
    place = torch.empty_strided(rows.shape, rows.stride(), dtype=rows.dtype, device="cuda") if _is_dense(rows) else None
    there = rows.cuda() if place is None else place.copy_(rows)
    assert pairs(fingerprint(there)) == plain(rows)


def _is_dense(rows: torch.Tensor) -> bool:
    """Whether the layout can be made by `empty_strided`: no lazy view, and no element twice."""
    return not (rows.is_conj() or rows.is_neg() or rows.requires_grad or 0 in rows.stride() or rows.stride() == (2, 1))


@pytest.mark.parametrize("stride", [4096, 4097, 4098, 4100, 4112])
@pytest.mark.parametrize("width", [4000, 4001, 4002])
def test_alignment_does_not_matter(stride: int, width: int) -> None:
    base = random_rows(torch.uint8, 9 * 4112)
    for offset in range(17):
        rows, there = (bits.as_strided((8, width), (stride, 1), offset) for bits in (base, base.cuda()))
        assert torch.equal(fingerprint_tensor(there).cpu(), by_numpy(rows)), offset


def test_overlapping_and_broadcast_rows() -> None:
    base = random_rows(torch.bfloat16, 4096)
    for size, strides in (((100, 64), (2, 1)), ((100, 64), (1, 1)), ((100, 64), (0, 1)), ((50, 7), (3, 0))):
        rows, there = (bits.as_strided(size, strides) for bits in (base, base.cuda()))
        assert torch.equal(fingerprint_tensor(there).cpu(), by_numpy(rows)), strides


@pytest.mark.parametrize("rows", [1, 3, 1000, 16384])
@pytest.mark.parametrize(
    "shape",
    [
        *SHAPES,
        *({"rows": r, "block": 128 * w, "warps": w, "stages": s} for r, w, s in itertools.product((2, 4, 8), (2, 4, 8), (1, 3))),
    ],
    ids=str,
)
def test_the_shape_of_the_launch_does_not_matter(kernels: ModuleType, rows: int, shape: dict[str, int]) -> None:
    bits = torch.randint(0, 256, (rows, 2 * 1440), dtype=torch.uint8, device="cuda").view(torch.bfloat16)
    got = kernels.fingerprint_triton(bits, launch=kernels.Launch(**shape))
    assert torch.equal(got.cpu(), by_numpy(bits))


def test_the_same_bits_from_run_to_run() -> None:
    bits = torch.randn(4096, 6144, dtype=torch.bfloat16, device="cuda")
    first = fingerprint_tensor(bits)
    assert all(torch.equal(fingerprint_tensor(bits), first) for _ in range(20))


@pytest.mark.parametrize("shift", [0, 1])
def test_rows_longer_than_a_chunk(shift: int) -> None:
    rows = torch.randint(0, 256, (3, 5 * MIB + 9), dtype=torch.uint8, device="cuda")[:, shift:]
    assert torch.equal(fingerprint_tensor(rows).cpu(), by_numpy(rows))


@pytest.mark.parametrize("pieces", [2, 8])
def test_tensor_parallel_shards_add_up(pieces: int) -> None:
    rows = torch.randn(129, 5760, device="cuda").to(torch.bfloat16)
    size = rows.shape[1] // pieces
    shards = [fingerprint_tensor(rows[:, at : at + size], first_byte=2 * at) for at in range(0, rows.shape[1], size)]
    assert torch.equal(torch.stack(shards).sum(0), fingerprint_tensor(rows))


def test_every_changed_bit_is_seen() -> None:
    rows = torch.zeros(8 * 512, 512, dtype=torch.uint8, device="cuda")
    bits = torch.arange(8 * 512, device="cuda")
    rows[bits, bits // 8] = (1 << bits % 8).to(torch.uint8)
    before, after = fingerprint_tensor(torch.zeros_like(rows)), fingerprint_tensor(rows)
    assert (before != after).all()
    assert torch.equal(after.cpu(), by_numpy(rows))


# Non-finite elements, counted in the same pass.


def counted(fingerprint: fingerprint_torch.Kernel, tensor: torch.Tensor, dtype: DType, **options: object) -> None:
    """Counts are numpy's, from codes that were copied as integers, and lanes are what they are without counting."""
    got = fingerprint(tensor, count=True, **options)
    raw = np.array(codes_of(tensor.cpu(), dtype), np.uint64).astype(dtype.raw)
    assert got.is_cuda
    assert counts_of(got) == count_nonfinite(raw, dtype).tolist()
    assert torch.equal(got[:, :2].cpu(), fingerprint_reference(tensor.cpu()))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", BY_TORCH_NAME.values(), ids=list(BY_TORCH_NAME))
def test_every_type_is_counted_by_its_codes(fingerprint: fingerprint_torch.Kernel, dtype: DType, width: int) -> None:
    counted(fingerprint, special_tensor(dtype, 37, width).cuda(), dtype)


@pytest.mark.parametrize("shape", [*SHAPES, {"rows": 8, "block": 512, "warps": 8, "stages": 3}], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float8_e5m2", "float8_e4m3fnuz"])
def test_the_shape_of_the_launch_does_not_change_a_count(kernels: ModuleType, shape: dict[str, int], dtype: str) -> None:
    rows = special_tensor(BY_TORCH_NAME[dtype], 9, 1440).cuda()
    counted(kernels.fingerprint_triton, rows, BY_TORCH_NAME[dtype], launch=kernels.Launch(**shape))


@pytest.mark.parametrize("offset", range(4))
def test_counts_of_rows_off_a_word(offset: int) -> None:
    dtype = BY_TORCH_NAME["bfloat16"]
    there = special_tensor(dtype, 16, 1003).cuda()
    counted(fingerprint_tensor, there[:, offset:], dtype)
    counted(fingerprint_tensor, there[:, offset : offset + 600], dtype)


def test_one_nan_among_many_rows_is_counted_in_its_row_alone() -> None:
    rows = torch.zeros(16384, 6144, dtype=torch.bfloat16, device="cuda")
    rows.view(torch.int16)[12345, 6143] = 0x7FC0
    rows.view(torch.int16)[12346, 0] = -0x80  # 0xff80, minus infinity
    found = fingerprint_tensor(rows, count=True)[:, 2]
    assert found.nonzero().flatten().tolist() == [12345, 12346]
    assert found[12345:12347].tolist() == [1, 1 << 32]


def test_rows_of_nan_alone_are_counted_beyond_a_chunk() -> None:
    size = 2**22 + 12
    rows = torch.full((2, size), 0x7F, dtype=torch.uint8, device="cuda")
    assert fingerprint_tensor(rows.view(torch.float8_e4m3fn), count=True)[:, 2].tolist() == [size] * 2
    assert fingerprint_tensor((rows | 0x80).sub(3).view(torch.float8_e5m2), count=True)[:, 2].tolist() == [size << 32] * 2


def test_counts_of_shards_add_up() -> None:
    dtype = BY_TORCH_NAME["float16"]
    rows = special_tensor(dtype, 65, 1440).cuda()
    shards = [fingerprint_tensor(rows[:, at : at + 180], first_byte=2 * at, count=True) for at in range(0, 1440, 180)]
    assert torch.equal(torch.stack(shards).sum(0), fingerprint_tensor(rows, count=True))


def test_a_cuda_graph_counts_what_is_there_when_it_is_replayed() -> None:
    rows = torch.zeros(64, 2880, dtype=torch.bfloat16, device="cuda")
    fingerprint_tensor(rows, count=True)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fingerprint_tensor(rows, count=True)
    graph.replay()
    assert not result[:, 2].any()
    rows.view(torch.int16)[7, :5] = 0x7FC0
    graph.replay()
    assert result[:, 2].nonzero().flatten().tolist() == [7]
    assert result[7, 2] == 5


# Places beyond 2^31: of bytes, of elements, of a row's stride.


@pytest.mark.parametrize("width", [4096, 4097])
def test_more_than_two_to_the_31_bytes_and_elements(width: int) -> None:
    rows = torch.zeros(2**31 // width + 4, width, dtype=torch.uint8, device="cuda")
    rows[-1].fill_(7)
    rows[-2, -1] = 1
    got = fingerprint_tensor(rows)
    assert torch.equal(got[-3:].cpu(), by_numpy(rows[-3:]))
    assert torch.equal(got[:-2], got[:1].expand(len(got) - 2, 2))


def test_rows_that_lie_more_than_two_to_the_31_words_apart() -> None:
    base = torch.empty(2**33 + MIB, dtype=torch.uint8, device="cuda")
    rows = base.as_strided((2, 4096), (2**33 + 64, 1))
    rows[0].fill_(1)
    rows[1].fill_(2)
    assert torch.equal(fingerprint_tensor(rows).cpu(), by_numpy(rows))


def test_a_row_of_more_than_two_to_the_31_bytes() -> None:
    size = 2**31 + 4 * MIB
    row = torch.zeros(1, size, dtype=torch.uint8, device="cuda")
    whole = fingerprint_tensor(row)
    row[0, -1] = 1
    last_word = torch.tensor([[0, 0, 0, 1]], dtype=torch.uint8)
    zero_word = torch.zeros_like(last_word)
    change = by_numpy(last_word, size - 4) - by_numpy(zero_word, size - 4)
    assert torch.equal((fingerprint_tensor(row) - whole).cpu(), change)
    halves = [fingerprint_tensor(row[:, : 2**30]), fingerprint_tensor(row[:, 2**30 :], first_byte=2**30)]
    assert torch.equal(halves[0] + halves[1], fingerprint_tensor(row))


# Streams, threads, graphs.


def test_streams_may_share_the_multipliers(kernels: ModuleType) -> None:
    rows = torch.randn(64, 3000, dtype=torch.bfloat16, device="cuda")
    expected = by_numpy(rows)
    for _ in range(10):
        kernels._TABLES._kept.clear()
        streams = [torch.cuda.Stream() for _ in range(4)]
        results = []
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(fingerprint_tensor(rows))
        torch.cuda.synchronize()
        assert all(torch.equal(result.cpu(), expected) for result in results)


def test_threads_may_share_the_multipliers(kernels: ModuleType) -> None:
    rows = {width: torch.randn(16, width, device="cuda") for width in range(64, 64 + 40)}
    expected = {width: by_numpy(bits) for width, bits in rows.items()}
    assert all(torch.equal(fingerprint_tensor(bits).cpu(), expected[width]) for width, bits in rows.items())  # compiles
    kernels._TABLES._kept.clear()
    wrong: list[int] = []

    def look() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            wrong.extend(
                width for width, bits in rows.items() if not torch.equal(fingerprint_tensor(bits).cpu(), expected[width])
            )

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kept", [True, False], ids=["multipliers kept", "multipliers not kept"])
def test_a_cuda_graph_may_hold_a_fingerprint(kernels: ModuleType, kept: bool) -> None:
    rows = torch.randn(64, 2880, dtype=torch.bfloat16, device="cuda")
    fingerprint_tensor(rows)  # compiles
    if not kept:
        kernels._TABLES._kept.clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fingerprint_tensor(rows)
    kernels._TABLES._kept.clear()
    rows.copy_(torch.randn_like(rows))
    graph.replay()
    assert torch.equal(result.cpu(), by_numpy(rows))
    assert torch.equal(fingerprint_tensor(rows), result)


@pytest.mark.parametrize(("tensor", "first", "says"), REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(tensor: torch.Tensor, first: int, says: str) -> None:
    with pytest.raises(DumpError, match=says):
        fingerprint_tensor(tensor.cuda(), first_byte=first)


def test_the_compiled_kernel_refuses_a_tensor_of_the_cpu(kernels: ModuleType) -> None:
    with pytest.raises(DumpError, match=r"on cpu.*fingerprint_tensor"):
        kernels.fingerprint_triton(torch.zeros(1, 4))


def test_no_rows_and_no_elements() -> None:
    assert fingerprint_tensor(torch.zeros(0, 6, device="cuda")).shape == (0, 2)
    assert pairs(fingerprint_tensor(torch.zeros(3, 0, device="cuda"))) == [(0, 0)] * 3

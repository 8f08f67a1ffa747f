"""`add_rounded` gives torch's bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from specalign.dump import sums
from specalign.dump.sums import add_all_rounded, add_rounded
from tests.unit.dump.readers.foreign import bits, refused

NAN = {"BF16": 0x7FC0, "F16": 0x7E00, "F32": 0x7FC00000}
TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def codes(dtype: str) -> torch.Tensor:
    """Every 61st code and the neighbourhood of all edges: zeros, subnormals, ones (ties), largest, infinities, NaN."""
    if dtype == "F32":
        edges = [0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x33800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001]
        some = np.random.default_rng(1).integers(0, 2**32, 500, dtype=np.uint64)
        values = np.array(sorted({*edges, *(e | 0x80000000 for e in edges), *some.tolist()}), np.uint32)
        return torch.from_numpy(values.view(np.int32).copy()).view(torch.float32)
    infinity = 0x7F80 if dtype == "BF16" else 0x7C00
    one = 0x3F80 if dtype == "BF16" else 0x3C00
    edges = [
        *range(4),
        0x7E,
        0x7F,
        0x80,
        0x81,
        0x3FF,
        0x400,
        0x401,
        *range(one - 3, one + 4),
        *range(infinity - 2, infinity + 3),
        0x7FFF,
    ]
    positive = sorted({*range(0, 0x8000, 61), *edges})
    values = np.array([*positive, *(v | 0x8000 for v in positive)], np.uint16)
    return torch.from_numpy(values.view(np.int16).copy()).view(TORCH[dtype])


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_pair_of_a_sample_of_codes_is_summed_as_torch_sums_it(dtype: str) -> None:
    sample = codes(dtype)
    left, right = (m.contiguous() for m in torch.meshgrid(sample, sample, indexing="ij"))
    expected = (left.float() + right.float()).to(TORCH[dtype])
    found = add_rounded(bits(left), bits(right), dtype)
    nan = torch.isnan(expected).numpy()
    assert np.array_equal(found[~nan], bits(expected)[~nan])
    assert (found[nan] == NAN[dtype]).all()
    assert nan.any()
    assert (~nan).sum() > 100_000


def test_sums_below_the_largest_exponents_are_torch_s_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No infinity, NaN or sum of 2**112 among them, any of which has its whole block added the plain way."""
    monkeypatch.setattr(sums, "_add", None)
    sample = codes("BF16")
    sample = sample[sample.float().abs() < 2.0**111]
    for turn in range(0, len(sample), 64):  # each code with each, by turns
        left, right = sample.repeat(64), torch.cat([sample.roll(turn + n) for n in range(64)])
        assert np.array_equal(add_rounded(bits(left), bits(right), "BF16"), bits((left.float() + right.float()).bfloat16()))


@pytest.mark.parametrize("shift", range(16))
def test_rounding_of_sums_with_every_distance_of_exponents(shift: int) -> None:
    """A row for each significand of the larger one: ties, and sums that carry into the next exponent."""
    large = (torch.arange(128, dtype=torch.int32) | 0x3F80).to(torch.int16).view(torch.bfloat16)
    small = (large.float() * 2.0**-shift).bfloat16()
    left, right = (m.contiguous() for m in torch.meshgrid(large, torch.cat([small, -small]), indexing="ij"))
    assert np.array_equal(add_rounded(bits(left), bits(right), "BF16"), bits((left.float() + right.float()).bfloat16()))


@pytest.mark.parametrize("block", [2, 7, 10, 1 << 17])
def test_several_pairs_at_once_are_what_they_are_one_by_one(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Also where an overflow or a NaN stands in one of them, and where elements are odd in number."""
    monkeypatch.setattr(sums, "BLOCK", block)
    values = torch.randn(9, 2, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    values[2, :, 1, 3], values[5, 0, 0, 0], values[6, :, 2, 7] = 3e38, float("nan"), -float("inf")
    for shape in ((3, 8), (2, 4), (3, 5)):
        pairs = [(bits(pair[0][: shape[0], : shape[1]].contiguous()), bits(pair[1][: shape[0], : shape[1]].contiguous()))
                 for pair in values]  # fmt: skip
        found = add_all_rounded(pairs, "BF16")
        for (left, right), one in zip(pairs, found, strict=True):
            assert one.shape == shape
            assert np.array_equal(one, plainly(left, right))


def plainly(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """By torch, with our one NaN."""
    total = (torch.from_numpy(left.view(np.int16).copy()).view(torch.bfloat16).float()
             + torch.from_numpy(right.view(np.int16).copy()).view(torch.bfloat16).float()).bfloat16()  # fmt: skip
    return np.where(torch.isnan(total).numpy(), np.uint16(NAN["BF16"]), bits(total))


def test_ties_go_to_even_and_subnormals_stay() -> None:
    one, half_ulp, ulp = 0x3F80, 0x3B80, 0x3C00  # 1, 2**-8 (half of 1's last bit), 2**-7
    pairs = [(one, half_ulp), (one + 1, half_ulp), (1, 1), (0x8000, 0x8000), (0x8000, 0), (one, ulp)]
    left, right = (np.array(column, "<u2") for column in zip(*pairs, strict=True))
    assert add_rounded(left, right, "BF16").tolist() == [one, one + 2, 2, 0x8000, 0, one + 1]


def test_large_tensors_are_summed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BLOCK", 7)
    left = torch.randn(5, 9).bfloat16()
    right = torch.randn(9, 5).bfloat16().T
    assert np.array_equal(
        add_rounded(bits(left), bits(right.contiguous()).reshape(5, 9), "BF16"), bits((left.float() + right.float()).bfloat16())
    )
    assert add_rounded(np.zeros((0, 4), "<u2"), np.zeros((0, 4), "<u2"), "BF16").shape == (0, 4)


def test_the_arguments_are_left_alone() -> None:
    left, right = np.array([0x3F800000], "<u4"), np.array([0x3F800000], "<u4")
    assert add_rounded(left, right, "F32").tolist() == [0x40000000]
    assert (left.tolist(), right.tolist()) == ([0x3F800000], [0x3F800000])


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I64", "F64"])
def test_sums_that_engines_do_not_make_are_refused(dtype: str) -> None:
    assert dtype in refused(add_rounded, np.zeros(1, "u1"), np.zeros(1, "u1"), dtype)


def test_two_shapes_are_refused_and_never_broadcast() -> None:
    for a, b in itertools.permutations([(1, 4), (4,), (2, 4)], 2):
        assert "no pair" in refused(add_rounded, np.zeros(a, "<u2"), np.zeros(b, "<u2"), "BF16")

"""MXFP4: every code with every scale against arithmetic on the bit fields, as the OCP Microscaling spec states them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specalign.models import WeightsError, dequantize_mxfp4


def value_of(code: int) -> float:
    """e2m1 from its bits: sign, exponent with bias 1 (0 is subnormal), one bit of mantissa."""
    sign, exponent, mantissa = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
    magnitude = mantissa * 0.5 if exponent == 0 else math.ldexp(1 + mantissa / 2, exponent - 1)
    return math.copysign(magnitude, sign)


def all_codes() -> Tensor:
    """One block, `[1, 1, 1, 16]`: element i has the code i % 16, the low half of each byte first."""
    codes = [i % 16 for i in range(32)]
    return torch.tensor([codes[i] | codes[i + 1] << 4 for i in range(0, 32, 2)], dtype=torch.uint8).view(1, 1, 1, 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_code_with_every_scale_is_exact(dtype: torch.dtype) -> None:
    """Scale codes 0..252: beyond that the largest codes leave the range of fp32 and bf16."""
    blocks = all_codes().expand(1, 253, 1, 16)
    scales = torch.arange(253, dtype=torch.uint8).view(1, 253, 1)
    got = dequantize_mxfp4(blocks, scales, dtype=dtype)
    assert got.shape == (1, 32, 253)
    want = torch.tensor(
        [[math.ldexp(value_of(i % 16), scale - 127) for scale in range(253)] for i in range(32)], dtype=torch.float64
    )
    assert torch.equal(got[0].double(), want)
    assert torch.equal(got[0].double().signbit(), want.signbit())  # the code 8 is -0


def test_scales_belong_to_their_block_and_rows_become_columns() -> None:
    blocks = torch.full((2, 3, 2, 16), 0x21, dtype=torch.uint8)  # codes 1 and 2: 0.5, 1.0
    scales = torch.tensor([[[127, 128], [129, 130], [131, 132]]] * 2, dtype=torch.uint8)
    scales[1] += 10
    got = dequantize_mxfp4(blocks, scales, dtype=torch.float32)
    assert got.shape == (2, 64, 3)
    for expert in range(2):
        for row in range(3):
            for i in range(64):
                power = 2.0 ** (2 * row + i // 32 + 10 * expert)
                assert got[expert, i, row] == (0.5, 1.0)[i % 2] * power


@pytest.mark.parametrize(("scale", "dtype"), [(255, torch.float32), (254, torch.float32), (143, torch.float16)])
def test_values_that_are_not_finite_are_refused(scale: int, dtype: torch.dtype) -> None:
    with pytest.raises(WeightsError, match=f"expert 0 .* not finite in {dtype}.* scale code is {scale}"):
        dequantize_mxfp4(all_codes(), torch.full((1, 1, 1), scale, dtype=torch.uint8), dtype=dtype)


@pytest.mark.parametrize(
    ("blocks", "scales", "message"),
    [
        (torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, dtype=torch.uint8), "must be uint8"),
        (torch.zeros(1, 2, 1, 8, dtype=torch.uint8), torch.zeros(1, 2, 1, dtype=torch.uint8), r"not \[1, 2, 1, 8\]"),
        (torch.zeros(1, 2, 1, 16, dtype=torch.uint8), torch.zeros(1, 2, 2, dtype=torch.uint8), r"and \[1, 2, 2\]"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(blocks: Tensor, scales: Tensor, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        dequantize_mxfp4(blocks, scales)

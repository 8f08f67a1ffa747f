"""The parts of the model against closed forms in float64, written here without looking at the code under test."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specalign.models.gpt_oss_attention import attend, visible
from specalign.models.gpt_oss_moe import swiglu
from specalign.models.norms import RMSNorm
from specalign.models.rope import Rotary, rotate
from specalign.numerics.rope import plain_frequencies, yarn_concentration, yarn_frequencies


def close(got: Tensor, want: Tensor, *, within: float) -> bool:
    return bool((got.double() - want.double()).abs().max() <= within)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_rms_norm_is_its_formula(scale: float) -> None:
    x = torch.randn(3, 7, 48, generator=torch.Generator().manual_seed(0)) * scale
    norm = RMSNorm(48, eps=1e-5).requires_grad_(False)
    norm.weight.copy_(torch.linspace(-1, 2, 48))
    want = torch.empty(3, 7, 48, dtype=torch.float64)
    for i in range(3):
        for j in range(7):
            row = x[i, j].double()
            want[i, j] = norm.weight.double() * row / math.sqrt(float((row * row).sum()) / 48 + 1e-5)
    assert close(norm(x), want, within=2e-6)


def test_rms_norm_rounds_bf16_once_at_the_end() -> None:
    """A norm that computed in bf16, or cast before the product as Llama's does, would be off by more than half a unit."""
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm = RMSNorm(48, eps=1e-5).bfloat16().requires_grad_(False)
    norm.weight.copy_(torch.linspace(0.1, 2, 48))
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    got = norm(x)
    assert got.dtype == torch.bfloat16
    half_units = ((got.double() - exact).abs() / (exact.abs() * 2**-8)).max()  # bf16: 8 bits, so half a unit is at most 2^-8
    assert half_units <= 1.001


def test_plain_frequencies_are_powers_of_theta() -> None:
    want = [150000.0 ** (-2 * i / 64) for i in range(32)]
    assert close(plain_frequencies(64, 150000.0), torch.tensor(want, dtype=torch.float64), within=1e-7)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize(
    ("factor", "fast", "slow", "length"), [(32.0, 32.0, 1.0, 4096), (8.0, 32.0, 1.0, 64), (4.0, 6.0, 2.0, 900)]
)
def test_yarn_frequencies_are_the_papers(truncate: bool, factor: float, fast: float, slow: float, length: int) -> None:
    """The paper's ramp over dimensions; an edge is where the wave 2 pi theta^(2d/D) turns `beta` times within `length`."""
    dim, theta = 64, 150000.0
    got = yarn_frequencies(
        dim, theta, factor=factor, original_length=length, beta_fast=fast, beta_slow=slow, truncate=truncate
    ).double()

    def edge(beta: float) -> float:
        return math.log(length / (2 * math.pi * beta), theta) * dim / 2

    low, high = edge(fast), edge(slow)
    if truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, dim - 1.0)
    for i in range(dim // 2):
        frequency = theta ** (-2 * i / dim)
        share = min(1.0, max(0.0, (i - low) / (high - low)))
        want = frequency * (1 - share) + frequency / factor * share
        assert abs(float(got[i]) - want) <= 2e-6 * want + 1e-9, i


def test_the_released_models_ramp() -> None:
    """GPT-OSS: factor 32, 4096 positions, theta 150000, heads of 64: dimensions 0..8 keep their frequency, 18.. are divided."""
    got = yarn_frequencies(64, 150000.0, factor=32.0, original_length=4096, truncate=False)
    ratio = plain_frequencies(64, 150000.0) / got
    assert torch.allclose(ratio[:9], torch.ones(9), atol=1e-6)
    assert torch.allclose(ratio[18:], torch.full((14,), 32.0), atol=1e-4)
    assert bool((ratio[9:18].diff() > 0).all())


def test_concentration() -> None:
    assert yarn_concentration(32.0) == pytest.approx(1.3465735902799727, abs=1e-15)
    assert yarn_concentration(1.0) == 1.0
    assert yarn_concentration(40.0, mscale=1.0, mscale_all_dim=1.0) == 1.0
    want = (0.1 * 0.7 * math.log(40) + 1) / (0.1 * 1.3 * math.log(40) + 1)
    assert yarn_concentration(40.0, mscale=0.7, mscale_all_dim=1.3) == pytest.approx(want, abs=1e-15)


def test_rotation_is_a_complex_product() -> None:
    x = torch.randn(2, 5, 3, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 17, 300, 301])
    cos, sin = Rotary(plain_frequencies(16, 100.0), 1.25).cos_sin(positions, torch.float32)
    pairs = torch.complex(x[..., :8].double(), x[..., 8:].double())
    angles = positions.double()[:, None] * torch.tensor([100.0 ** (-2 * i / 16) for i in range(8)], dtype=torch.float64)
    turned = pairs * torch.polar(torch.full_like(angles, 1.25), angles)[:, None]
    assert close(rotate(x, cos, sin), torch.cat((turned.real, turned.imag), -1), within=1e-4)  # fp32 angles of up to 301 radians


def test_the_frequencies_survive_a_cast_of_the_model() -> None:
    """Frequencies rounded to bf16 would shift the angle at position 1000 by radians."""
    from tests.unit.models.tiny import tiny

    model = tiny()
    before = model.rotary.frequencies.clone()
    model.bfloat16()
    assert torch.equal(model.rotary.frequencies, before)
    assert model.rotary.cos_sin(torch.arange(3), torch.bfloat16)[0].dtype == torch.bfloat16


def test_swiglu_is_its_formula_and_clamps_as_gpt_oss_does() -> None:
    values = [-9.0, -7.0, -3.5, -0.25, 0.0, 0.5, 2.0, 6.9, 7.0, 7.1, 30.0]
    for gate in values:
        for up in values:
            got = float(swiglu(torch.tensor([gate, up]), alpha=1.702, limit=7.0))
            g, u = min(gate, 7.0), max(-7.0, min(up, 7.0))
            assert got == pytest.approx((u + 1) * g / (1 + math.exp(-1.702 * g)), abs=1e-5, rel=1e-6), (gate, up)


def test_gate_and_up_are_interleaved() -> None:
    assert swiglu(torch.tensor([1.0, 2.0, 3.0, 4.0]), alpha=1.702, limit=7.0)[1] == pytest.approx(
        5 * 3 / (1 + math.exp(-1.702 * 3))
    )


@pytest.mark.parametrize("window", [None, 1, 3])
def test_attention_is_a_softmax_with_one_more_term(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    past, count, shared, group, dim = 4, 3, 2, 3, 8
    queries = torch.randn(1, count, shared, group, dim, generator=generator)
    keys, values = torch.randn(2, 1, past + count, shared, dim, generator=generator)
    sinks = torch.randn(shared, group, generator=generator)
    mask = visible(past, count, window, torch.device("cpu"))
    first = past + count - mask.shape[1]
    got = attend(queries, keys[:, first:], values[:, first:], sinks, mask)
    for token in range(count):
        seen = [row for row in range(past + count) if row <= past + token and (window is None or past + token - row < window)]
        for head in range(shared * group):
            k, g = divmod(head, group)
            query = queries[0, token, k, g].double()
            terms = [math.exp(float(query @ keys[0, row, k].double()) / math.sqrt(dim)) for row in seen]
            total = sum(terms) + math.exp(float(sinks[k, g]))
            want = sum((t / total * values[0, row, k].double() for t, row in zip(terms, seen, strict=True)), torch.zeros(dim))
            assert close(got[0, token, k, g], want, within=1e-6)


def test_a_window_leaves_out_rows_that_nobody_sees() -> None:
    assert visible(10, 2, 4, torch.device("cpu")).tolist() == [[True, True, True, True, False], [False, True, True, True, True]]
    assert visible(0, 2, 4, torch.device("cpu")).tolist() == [[True, False], [True, True]]

"""RMSNorm and the way to fc, against closed forms in float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specalign.draft import DraftError, Eagle3Config, FcInput, RMSNorm

WIDTH, CHUNKS = 8, 3


def fc_input(**flags: bool) -> FcInput:
    config = Eagle3Config(
        hidden_size=CHUNKS * WIDTH, target_hidden_size=WIDTH, intermediate_size=8, num_attention_heads=2, num_key_value_heads=1,
        head_dim=4, vocab_size=8, chunks=CHUNKS, rms_norm_eps=1e-12, **flags,
    )  # fmt: skip
    made = FcInput(config, dtype=torch.float64)
    with torch.no_grad():
        made.get_parameter("fc.weight").copy_(torch.eye(CHUNKS * WIDTH))  # so that what arrives at fc is what comes out
    return made


def states() -> list[torch.Tensor]:
    """Constant chunks 1, 2 and 3: the RMS of a chunk is its value, that of the whole is sqrt(14/3)."""
    return [torch.full((2, WIDTH), float(i + 1), dtype=torch.float64) for i in range(CHUNKS)]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, [1.0, 2.0, 3.0]),
        ({"norm_before_fc": True}, [(i + 1) / (14 / 3) ** 0.5 for i in range(3)]),
        ({"fc_norm": True}, [1.0, 1.0, 1.0]),
        ({"norm_before_fc": True, "fc_norm": True}, [1.0, 1.0, 1.0]),
    ],
    ids=["none", "whole", "per chunk", "both"],
)
def test_what_arrives_at_fc_is_the_closed_form(flags: dict[str, bool], wanted: list[float]) -> None:
    got = fc_input(**flags)(states())
    want = torch.tensor(wanted, dtype=torch.float64).repeat_interleave(WIDTH).expand(2, -1)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_both_norms_run_whole_first_then_per_chunk() -> None:
    """The weight of the whole norm scales features within a chunk; only whole-then-chunk gives w / rms(w) in each chunk."""
    made = fc_input(norm_before_fc=True, fc_norm=True)
    ramp = torch.linspace(1, 2, CHUNKS * WIDTH, dtype=torch.float64)
    with torch.no_grad():
        made.get_parameter("input_norm.weight").copy_(ramp)
        for i in range(CHUNKS):
            made.get_parameter(f"fc_norm.{i}.weight").fill_(float(10**i))
    chunks = ramp.view(CHUNKS, WIDTH)
    want = (chunks / chunks.pow(2).mean(-1, keepdim=True).sqrt()) * torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64)
    torch.testing.assert_close(made(states()), want.flatten().expand(2, -1), rtol=1e-11, atol=1e-11)


def test_chunks_keep_the_order_that_they_are_given_in() -> None:
    a, b, c = states()
    assert fc_input()([c, a, b])[0, ::WIDTH].tolist() == [3.0, 1.0, 2.0]


def test_states_of_a_batch_are_joined_feature_by_feature() -> None:
    batch = [state.expand(5, 2, WIDTH) for state in states()]
    got = fc_input()(batch)
    assert got.shape == (5, 2, CHUNKS * WIDTH)
    assert got[..., ::WIDTH].tolist() == [[[1.0, 2.0, 3.0]] * 2] * 5
    assert torch.equal(fc_input()(got), got), "the concatenation is taken as well"


def test_without_the_flags_there_are_no_norm_weights() -> None:
    assert set(fc_input().state_dict()) == {"fc.weight"}
    both = {"fc.weight", "input_norm.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"}
    assert set(fc_input(norm_before_fc=True, fc_norm=True).state_dict()) == both


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rmsnorm_has_the_bits_of_transformers(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    ours, theirs = RMSNorm(64, eps=1e-5), LlamaRMSNorm(64, eps=1e-5)
    weight, x = torch.rand(64, generator=g) + 0.5, torch.randn(40, 64, generator=g) * 100
    for norm in (ours, theirs):
        norm.weight.data.copy_(weight)
        norm.to(dtype)
    assert torch.equal(ours(x.to(dtype)), theirs(x.to(dtype)))


def test_rmsnorm_in_float64_is_not_rounded_to_float32() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    got = RMSNorm(2, eps=1e-12, dtype=torch.float64)(x)
    torch.testing.assert_close(got, x / (12.5 + 1e-12) ** 0.5, rtol=1e-14, atol=0)


def test_rmsnorm_of_zeros_is_zero_and_eps_counts() -> None:
    assert RMSNorm(4, eps=1e-6)(torch.zeros(1, 4)).tolist() == [[0.0] * 4]
    got = RMSNorm(1, eps=3.0)(torch.tensor([[1.0]]))
    assert got.item() == pytest.approx(0.5)


def test_rmsnorm_refuses_another_width() -> None:
    """A weight of width 1 would broadcast."""
    with pytest.raises(DraftError, match=r"over 1 features was given 8"):
        RMSNorm(1, eps=1e-6)(torch.ones(2, 8))

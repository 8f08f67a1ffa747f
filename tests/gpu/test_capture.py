"""Capture on a GPU: bits from run to run, against raw hooks on transformers' model, and CUDA graphs refused by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.capture import CaptureError, capture_states  # noqa: E402
from specalign.layer_ids import POST_NORM  # noqa: E402
from tests.unit.models.tiny import tiny  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_forwards_capture_the_same_bits(dtype: torch.dtype) -> None:
    model = tiny().to("cuda", dtype)
    tokens = torch.randint(0, model.config.vocab_size, (2, 33), device="cuda")
    n = model.config.num_hidden_layers
    first, second = (model(tokens, capture=(*range(n + 1), POST_NORM)).states for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hooks_on_transformers_capture_its_own_hidden_states(dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=128
    )
    model = transformers.LlamaForCausalLM(config).to("cuda", dtype).eval()
    tokens = torch.randint(0, 128, (2, 17), device="cuda")
    with torch.no_grad(), capture_states(model, (0, 1, 2, 3, 4, POST_NORM)) as captured:
        hidden = model(tokens, output_hidden_states=True).hidden_states
    for state, theirs in zip((0, 1, 2, 3), hidden, strict=False):
        assert torch.equal(captured.states[state], theirs), state
    assert torch.equal(captured.states[5], hidden[4])
    assert not torch.equal(captured.states[4], hidden[4])


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch says so of the capture that was broken off
def test_a_cuda_graph_is_refused_by_name() -> None:
    block = torch.nn.Linear(8, 8, device="cuda")
    model = torch.nn.Sequential(block, torch.nn.Linear(8, 8, device="cuda"))
    static = torch.zeros(4, 8, device="cuda")
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CaptureError, match=r"(?i)cuda graph"),
        capture_states(model, (1,), blocks=list(model)),
        torch.cuda.graph(graph),
    ):
        model(static)

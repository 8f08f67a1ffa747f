"""record_megatron on megatron-core's own GPTModel, on the CPU: one gloo rank, local layer spec, dense.

Runs where megatron-core 0.16 is installed. On a CPU these parts of it must be stood in for: the current CUDA device, and the
state of CUDA's random numbers (right with dropout 0 only).
"""

# ruff: noqa: E402  # without megatron-core the module is skipped before it imports what needs it

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch import Tensor

from specalign.capture import capture_states
from specalign.integrations.megatron import record_megatron
from tests.unit.recorder.dumps import ids, read_passes, same_bits

LAYERS, WIDTH, LENGTH = 4, 16, 6

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of megatron-core itself, about what is not installed beside it
]


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One rank."""
    from megatron.core import parallel_state, tensor_parallel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(tensor_parallel.random.CudaRNGStatesTracker, "fork", lambda *args, **kwargs: contextlib.nullcontext())
        patch.setattr(tensor_parallel.random, "_get_cuda_rng_state", lambda *args, **kwargs: torch.get_rng_state())
        patch.setattr(tensor_parallel.random, "_set_cuda_rng_state", lambda *args, **kwargs: None)
        store = tmp_path_factory.mktemp("gloo") / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        yield
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def chunk(**config: Any) -> Any:
    """All four layers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    settings = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        perform_initialization=True,
        **config,
    )
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    return GPTModel(settings, spec, vocab_size=64, max_sequence_length=32, pre_process=True, post_process=True)


def arguments(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)[None, None]
    return tokens, torch.arange(length).expand(tokens.shape), mask


def test_boundaries_and_rows_of_megatrons_own_model(parallel: None, tmp_path: Path) -> None:
    model = chunk()
    tokens = ids(2, LENGTH)
    with (
        capture_states(model, tuple(range(LAYERS + 1))) as captured,
        record_megatron(model, tmp_path / "d", post_norm=True, modules=["*.mlp", "*.self_attention.linear_qkv"]),
    ):
        model(*arguments(tokens))
    (read,) = read_passes(tmp_path / "d")
    for boundary, state in enumerate(captured.states):
        assert state.shape == (LENGTH, 2, WIDTH)
        assert same_bits(read[f"boundary.{boundary}"], state.flatten(0, 1)), boundary
    assert {"post_norm", "module.layers.3.mlp", "module.layers.0.self_attention.linear_qkv"} <= read.keys
    for row, (token, position, request) in enumerate(zip(read.rows.tokens, read.rows.positions, read.rows.requests, strict=True)):
        assert tokens[request, position] == token
        assert row == position * 2 + request


def test_full_recomputation_is_recorded_once_and_compared(parallel: None, tmp_path: Path) -> None:
    model = chunk(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    model.train()
    with record_megatron(model, tmp_path / "d", recompute="compare") as recording:
        model(*arguments(ids(2, LENGTH)), labels=ids(2, LENGTH, seed=3)).sum().backward()
    assert recording.stats.recomputed == LAYERS
    assert recording.stats.passes == 1
    plain = chunk()
    with record_megatron(plain, tmp_path / "plain"):
        plain(*arguments(ids(2, LENGTH)))
    (one,), (other,) = read_passes(tmp_path / "d"), read_passes(tmp_path / "plain")
    assert one.keys == other.keys
    assert all(same_bits(one[key], other[key]) for key in one.keys)

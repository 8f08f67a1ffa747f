"""A tiny GPTModel with experts out of megatron-core 0.16, on the CPU: one gloo rank, local layer spec, all-gather dispatcher.

On a CPU these parts of it must be stood in for: the current CUDA device, the state of CUDA's random numbers (right with dropout
0 only), and Transformer Engine's GEMM of the router, whose name is missing where the engine is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

LAYERS, WIDTH, LENGTH, BATCH, VOCAB, EXPERTS, TOPK = 2, 16, 6, 2, 64, 8, 2


@contextlib.contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(tensor_parallel.random.CudaRNGStatesTracker, "fork", lambda *args, **kwargs: contextlib.nullcontext())
        patch.setattr(tensor_parallel.random, "_get_cuda_rng_state", lambda *args, **kwargs: torch.get_rng_state())
        patch.setattr(tensor_parallel.random, "_set_cuda_rng_state", lambda *args, **kwargs: None)
        patch.setattr(moe_utils, "te_general_gemm", None, raising=False)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


def gpt(*, experts: int | None = EXPERTS, **config: Any) -> Any:
    """The model on the CPU, in training mode; `config` is Megatron's own."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    plain = {
        "num_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_attention_heads": 2,
        "use_cpu_initialization": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "add_bias_linear": False,
    }
    routed = {"num_moe_experts": experts, "moe_router_topk": TOPK, "moe_token_dispatcher_type": "allgather"} if experts else {}
    settings = TransformerConfig(**{**plain, **routed, **config})
    spec = get_gpt_decoder_block_spec(settings, use_transformer_engine=False, normalization="RMSNorm")
    return GPTModel(settings, spec, vocab_size=VOCAB, max_sequence_length=32)


def tokens(seed: int) -> Tensor:
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def token_losses(model: Any, seed: int) -> Tensor:
    """The loss of each token of microbatch `seed`, `[batch, length]`, where the model is."""
    device = next(model.parameters()).device
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device), diagonal=1)[None, None]
    positions = torch.arange(LENGTH, device=device).expand(BATCH, LENGTH)
    found: Tensor = model(tokens(seed).to(device), positions, mask, labels=tokens(1000 + seed).to(device))
    return found


def loss_of(model: Any, seed: int) -> Tensor:
    """The loss of microbatch `seed`, summed."""
    return token_losses(model, seed).sum()


def forward_backward(model: Any, seeds: range, *, ahead: int) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and gradients of microbatches whose backwards come `ahead` forwards later, oldest first, as in 1F1B."""
    model.zero_grad()
    losses, waiting = [], []
    for seed in seeds:
        waiting.append(loss_of(model, seed))
        losses.append(waiting[-1].detach().clone())
        if len(waiting) > ahead:
            waiting.pop(0).backward()
    for loss in waiting:
        loss.backward()
    return losses, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def same_bits(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(raw(one), raw(other))
        for one, other in zip(ours, theirs, strict=True)
    )


def raw(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)

"""One prefill of one sequence, as SGLang's scheduler would hand it to a model."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from tests.conformance.sglang_cpu.attention import DenseAttention


def prefill(tokens: torch.Tensor, positions: torch.Tensor | None = None) -> ForwardBatch:
    """A batch of one request that starts with `tokens` (int64 `[tokens]`) and keeps the states of all of them."""
    count = tokens.shape[0]
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        input_ids=tokens,
        req_pool_indices=torch.zeros(1, dtype=torch.int64),
        seq_lens=torch.tensor([count]),
        out_cache_loc=torch.arange(count),
        seq_lens_sum=count,
    )
    batch.positions = torch.arange(count) if positions is None else positions
    batch.extend_seq_lens, batch.extend_start_loc, batch.extend_num_tokens = torch.tensor([count]), torch.tensor([0]), count
    batch.capture_hidden_mode = CaptureHiddenMode.FULL  # what a target in front of an EAGLE3 head is run with
    return batch


def run(module: Any, batch: ForwardBatch, **inputs: Any) -> Any:
    """`module(input_ids, positions, batch)`, with dense attention and without gradients."""
    with torch.no_grad(), forward_context(ForwardContext(attn_backend=DenseAttention())):
        return module(batch.input_ids, batch.positions, batch, **inputs)

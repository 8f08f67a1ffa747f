"""The baseline of benchmarks/compare.py: a comparison row by row, as the published layerwise comparers do it, and their files.

The trainer's file holds packed sequences and one tensor a layer. The engine's files hold one forward each: a pair (delta,
residual) a layer, and the ids and positions of its rows. For each row of each layer the pair is summed in float32 and rounded,
both sides are widened, and the largest difference is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

Rows = list[tuple[int, int]]
"""(request, position) of each row."""


def token(request: int, position: int) -> int:
    """No two requests begin alike."""
    return 1000 * (request + 1) + position


def write_files(folder: Path, requests: int, prompt: int, steps: int, layers: int, width: int) -> tuple[Path, Path]:
    """A trainer's and an engine's files whose values agree bit for bit."""
    table = torch.randn(requests, prompt + steps, layers, width, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    packed = [(r, p) for r in range(requests) for p in range(prompt + steps)]
    train, engine = folder / "megatron" / "rank00000", folder / "sglang" / "TP0_PP0_Rank0_pid1"
    for made in (train, engine):
        made.mkdir(parents=True)
    torch.save(
        {
            "store_prefix": "actor",
            "input_ids": torch.tensor([[token(*row) for row in packed]]),
            "cu_seqlens": torch.arange(requests + 1, dtype=torch.int32) * (prompt + steps),
            "layers": {layer: table[:, :, layer].reshape(-1, 1, width).clone() for layer in range(layers)},
            "modules": {},
        },
        train / "actor_Pass00000.pt",
    )
    forwards = [[(r, p) for r in range(requests) for p in range(prompt)]]
    forwards += [[(r, prompt + step) for r in range(requests)] for step in range(steps)]
    for number, rows in enumerate(forwards):
        torch.save(_pass_of(rows, table, requests, number == 0), engine / f"Pass{number:05d}.pt")
    return folder / "megatron", folder / "sglang"


def _pass_of(rows: Rows, table: torch.Tensor, requests: int, is_prefill: bool) -> dict[str, Any]:
    picked = table[[r for r, _ in rows], [p for _, p in rows]]
    zero = torch.zeros_like(picked[:, 0])
    last = [max(p for q, p in rows if q == r) + 1 for r in range(requests)]
    info = {
        "input_ids": torch.tensor([token(*row) for row in rows]),
        "positions": torch.tensor([p for _, p in rows]),
        "seq_lens": torch.tensor(last),
        "rids": [f"rid{r}" for r in range(requests)],
        "forward_mode": "1" if is_prefill else "2",
        "extend_seq_lens": [len(rows) // requests] * requests if is_prefill else None,
    }
    # The sum of the pair is the value itself: a delta of it, over a residual of zeros.
    pairs = {f"model.layers.{layer}": [picked[:, layer].clone(), zero] for layer in range(picked.shape[1])}
    return pairs | {f"model.forward_batch_info.{name}": value for name, value in info.items() if value is not None}


def compare_row_by_row(train: Path, engine: Path) -> tuple[float, int]:
    """(largest difference, rows compared over all layers)."""
    trained = torch.load(train / "rank00000" / "actor_Pass00000.pt", weights_only=True)
    cuts = trained["cu_seqlens"].tolist()
    at = {int(trained["input_ids"][0, begin]) // 1000: begin for begin in cuts[:-1]}
    largest, compared = 0.0, 0
    for file in sorted((engine / "TP0_PP0_Rank0_pid1").iterdir()):
        forward = torch.load(file, weights_only=True)
        tokens = forward["model.forward_batch_info.input_ids"].tolist()
        positions = forward["model.forward_batch_info.positions"].tolist()
        for layer, hidden in trained["layers"].items():
            delta, residual = forward[f"model.layers.{layer}"]
            for row, (first, position) in enumerate(zip(tokens, positions, strict=True)):
                theirs = (delta[row].float() + residual[row].float()).to(delta.dtype)
                ours = hidden[at[first // 1000] + position, 0]
                largest = max(largest, float((ours.float() - theirs.float()).abs().max()))
                compared += 1
    return largest, compared

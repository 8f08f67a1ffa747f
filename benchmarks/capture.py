"""What capturing three states adds to a forward of a GPT-OSS-20B-shaped model, in time and in memory.

    python benchmarks/capture.py [--record] [--layers 24] [--tokens 4096] [--rounds 15]

Random weights in bf16 on one GPU. Forwards with and without capture run in turn, in alternating order, so that a clock that
drifts drifts for both; the figure is the median of the paired differences over the median forward. The noise is what the same
measure says about two equal forwards. Memory: what the states hold, and by how much the peak of a forward grows beyond that.

    time     at most 2% of the forward
    memory   nothing beyond the captured states

The model here is the reference in plain torch, whose forward is many times slower than an engine's. So the cost is also put
against the fastest forward that there could be: what the capture loop adds over blocks that do nothing, over the time of the
model's matrix products alone at the rate of a large bf16 product measured in the same run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl")]  # runs from a bare checkout too

from specalign.capture import CapturePlan, capture_loop  # noqa: E402  # after the path is set
from specalign.layer_ids import State  # noqa: E402
from specalign.models import GptOssConfig, random_gpt_oss  # noqa: E402

RESULT = Path(__file__).parent / "results" / "capture.json"


def shape_20b(layers: int) -> GptOssConfig:
    """The numbers of gpt-oss-20b's public config; `layers` may be fewer."""
    return GptOssConfig.from_dict(
        {
            "model_type": "gpt_oss",
            "num_hidden_layers": layers,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "vocab_size": 201088,
            "sliding_window": 128,
            "rms_norm_eps": 1e-05,
            "swiglu_limit": 7.0,
            "initializer_range": 0.02,
            "attention_bias": True,
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "max_position_embeddings": 131072,
        }
    )


def milliseconds(run: Callable[[], object]) -> float:
    """One run between two events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def paired(base: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """(median of base, median of other - base), in milliseconds."""
    bases, differences = [], []
    for turn in range(rounds):
        first, second = (base, other) if turn % 2 == 0 else (other, base)
        times = {id(first): milliseconds(first), id(second): milliseconds(second)}
        bases.append(times[id(base)])
        differences.append(times[id(other)] - times[id(base)])
    return statistics.median(bases), statistics.median(differences)


def memory(run: Callable[[], Any]) -> tuple[int, int, Any]:
    """(peak over what was there before, what is still held while the result lives, the result), in bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before, result


def measure(layers: int, tokens: int, rounds: int) -> dict[str, Any]:
    """All figures of one run."""
    device = torch.device("cuda")
    config = shape_20b(layers)
    model = random_gpt_oss(config, seed=0, dtype=torch.bfloat16, device=device)
    batch = torch.randint(0, config.vocab_size, (1, tokens), device=device)
    states: tuple[State, ...] = (layers // 3, layers * 2 // 3, layers)

    def plain() -> object:
        return model(batch)

    def again() -> object:
        return model(batch)

    def capturing() -> object:
        return model(batch, capture=states)

    with torch.inference_mode():
        for warm in (plain, capturing, plain, capturing):
            warm()
        forward, noise = paired(plain, again, rounds)
        _, added = paired(plain, capturing, rounds)
        peak_plain, held_plain, _ = memory(plain)
        peak_states, held_states, output = memory(capturing)
        alone = capture_alone(config, tokens, states)
    size = sum(state.numel() * state.element_size() for state in output.states)
    moved = 2 * size  # each state is read once and written once
    return {
        "forward_ms": forward,
        "added_ms": added,
        "added_percent": 100 * added / forward,
        "noise_percent": 100 * noise / forward,
        "copy_floor_ms": copy_milliseconds(moved // 2),
        "capture_alone_ms": alone,
        "fastest_forward_ms": fastest_forward(config, tokens),
        "states_bytes": size,
        "held_bytes_beyond_states": held_states - held_plain - size,
        "peak_bytes_beyond_states": peak_states - peak_plain - size,
        "layers": layers,
        "tokens": tokens,
        "states": list(map(str, states)),
        "rounds": rounds,
    }


def capture_alone(config: GptOssConfig, tokens: int, states: tuple[State, ...]) -> float:
    """What the loop adds over blocks that do nothing, in milliseconds."""
    hidden = torch.randn(1, tokens, config.hidden_size, dtype=torch.bfloat16, device="cuda")
    blocks = [lambda x: x for _ in range(config.num_hidden_layers)]
    plan = CapturePlan(states, config.num_hidden_layers)

    def plain() -> torch.Tensor:
        stream = hidden
        for block in blocks:
            stream = block(stream)
        return stream

    return paired(plain, lambda: capture_loop(blocks, hidden, plan), 51)[1]


def fastest_forward(config: GptOssConfig, tokens: int) -> float:
    """The matrix products of a forward, without attention scores and the head, at the rate of a large bf16 product here."""
    size = 8192
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = statistics.median(milliseconds(lambda: a @ b) for _ in range(9))
    width = config.head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    layer = config.hidden_size * (width + 3 * config.num_experts_per_tok * config.intermediate_size)
    return 2 * tokens * config.num_hidden_layers * layer / (2 * size**3 / product)


def copy_milliseconds(size: int) -> float:
    """The floor: a plain device-to-device copy of as many bytes."""
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return statistics.median(milliseconds(lambda: target.copy_(source)) for _ in range(9))


def environment() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
        "dtype": "bfloat16",
    }


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU: nothing was measured", file=sys.stderr)
        return 2
    figures = measure(args.layers, args.tokens, args.rounds)
    figures["alone_percent_of_fastest"] = 100 * figures["capture_alone_ms"] / figures["fastest_forward_ms"]
    report = {"date": str(datetime.date.today()), "environment": environment(), "figures": figures}
    for key, value in {**figures, **environment()}.items():
        print(f"{key:28} {value:.4f}" if isinstance(value, float) else f"{key:28} {value}")
    if args.record:
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    times = max(figures["added_percent"], figures["alone_percent_of_fastest"])
    good = times <= 2 and figures["peak_bytes_beyond_states"] <= 0 and figures["held_bytes_beyond_states"] <= 0
    print("within the targets" if good else "NOT within the targets (2% of the forward, no memory beyond the states)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

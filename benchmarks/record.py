"""What recording 25 boundaries adds to a forward of a GPT-OSS-20B-shaped model, and what it stores.

    python benchmarks/record.py [--record] [--folder DIR] [--layers 24] [--tokens 4096] [--rounds 9] [--many 16]
    python benchmarks/record.py --small            # a few seconds on a CPU: does it run at all?

Random weights in bf16 on one GPU, as in benchmarks/capture.py. Forwards with and without hooks run in turn, in alternating order;
the figure is the median of the paired differences over the median forward, between two events on the stream of the model, so
that a hook that waits counts. Entering, waiting for the disk and leaving are outside of the measured time.

    fingerprints   at most 3% of the forward; at least 300 times less on disk than values
    values         at most 8% while the writer keeps up: one forward by itself. Of many in a row it is said whether it kept up
    in a row       stretches of forwards, plain and recorded in turn, and how far their pairs are apart
    baseline       hooks that copy with a blocking .cpu()
    floors         the copies within the GPU alone, page-locked copies to the host alone

The plain reference's forward is many times slower than an engine's, so absolute times are given beside percentages.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl"), str(Path(__file__).parent)]  # runs from a bare checkout too

import capture as shape  # noqa: E402  # benchmarks/capture.py: the model's shape, after the path is set

from specalign.models import GptOssConfig, random_gpt_oss  # noqa: E402
from specalign.recorder import Recording, record_layers  # noqa: E402

RESULT = Path(__file__).parent / "results" / "record.json"
PENDING = 4 << 30
PAIRS = 4
"""Of stretches of forwards in a row, plain and recorded."""


class Clock:
    """Milliseconds of a run: between two events on the GPU, by the wall on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"

    def __call__(self, run: Callable[[], object]) -> float:
        if not self.gpu:
            begin = time.perf_counter()
            run()
            return 1000 * (time.perf_counter() - begin)
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last)


def small_config() -> GptOssConfig:
    """Four layers that a CPU runs at once."""
    return dataclasses.replace(
        shape.shape_20b(4),
        hidden_size=128,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=512,
        num_local_experts=4,
        num_experts_per_tok=2,
    )


@contextlib.contextmanager
def recording(model: torch.nn.Module, folder: Path, mode: str, reserve: int = 0) -> Iterator[Recording]:
    """A recording into a folder that is removed afterwards."""
    try:
        with record_layers(model, folder, mode=mode, max_pending_bytes=PENDING, reserve_bytes=reserve) as opened:  # type: ignore[arg-type]
            yield opened
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_forward(
    clock: Clock, model: torch.nn.Module, batch: torch.Tensor, folder: Path, mode: str, rounds: int, reserve: int
) -> tuple[float, float, bool, int]:
    """(median plain, median added, whether the writer kept up, bytes on disk of one forward)."""
    plain, added, kept, stored = [], [], True, 0
    for turn in range(rounds):
        base = clock(lambda: model(batch)) if turn % 2 == 0 else None
        with recording(model, folder, mode, reserve) as opened:
            recorded = clock(lambda: model(batch))
            opened.flush()
            kept = kept and opened.stats.kept_up
            stored = sum(path.stat().st_size for path in opened.rank_folder.glob("*.safetensors"))
        base = clock(lambda: model(batch)) if base is None else base
        plain.append(base)
        added.append(recorded - base)
    return statistics.median(plain), statistics.median(added), kept, stored


def many_forwards(
    clock: Clock, model: torch.nn.Module, batch: torch.Tensor, folder: Path, mode: str, count: int, reserve: int
) -> dict[str, Any]:
    """Forwards in a row: what the writer takes, and whether it keeps up.

    Stretches of a quarter of them run plain and recorded in turn, the other first each time (ABBA), so that a clock that drifts
    from stretch to stretch is no cost: the figure is the median of the paired differences. Then all of them run recorded, for
    what the writer takes.
    """
    length = max(1, count // PAIRS)

    def run(forwards: int) -> None:
        for _ in range(forwards):
            model(batch)

    plain, added = [], []
    for turn in range(PAIRS):
        base = clock(lambda: run(length)) if turn % 2 == 0 else None
        with recording(model, folder, mode, reserve) as opened:
            recorded = clock(lambda: run(length))
            opened.flush()
        base = clock(lambda: run(length)) if base is None else base
        plain.append(base / length)
        added.append((recorded - base) / length)
    with recording(model, folder, mode, reserve) as opened:
        begin = time.perf_counter()
        run(count)
        opened.flush()
        whole = time.perf_counter() - begin
        stats = opened.stats
    base, extra = statistics.median(plain), statistics.median(added)
    return {
        "forwards": count,
        "pairs": PAIRS,
        "forwards_of_a_stretch": length,
        "plain_ms": base,
        "plain_ms_least": min(plain),
        "plain_ms_most": max(plain),
        "added_ms": extra,
        "added_ms_least": min(added),
        "added_ms_most": max(added),
        "added_percent": 100 * extra / base,
        "kept_up": stats.kept_up,
        "waits": stats.waits,
        "seconds_waited": stats.seconds_waited,
        "peak_pending_bytes": stats.peak_pending_bytes,
        "writer_gb_per_s": stats.bytes / max(stats.seconds_writing, 1e-9) / 1e9,
        "seconds_until_on_disk": whole,
    }


def blocking_hooks(clock: Clock, model: Any, batch: torch.Tensor, rounds: int) -> float:
    """The baseline: median of what hooks add that wait for `.cpu()`."""
    added = []
    kept: list[torch.Tensor] = []
    for _ in range(rounds):
        base = clock(lambda: model(batch))
        handles = [block.register_forward_hook(lambda module, args, output: kept.append(output.cpu())) for block in model.blocks]
        handles.append(model.blocks[0].register_forward_pre_hook(lambda module, args: kept.append(args[0].cpu())))
        added.append(clock(lambda: model(batch)) - base)
        kept.clear()
        for handle in handles:
            handle.remove()
    return statistics.median(added)


def floors(clock: Clock, config: GptOssConfig, tokens: int, device: torch.device) -> dict[str, float]:
    """What no recorder can beat: the copies alone."""
    state = torch.randn(tokens, config.hidden_size, device=device).to(torch.bfloat16)
    count = config.num_hidden_layers + 1
    clones = statistics.median(clock(lambda: [state.clone() for _ in range(count)]) for _ in range(9))
    size = 1 << (28 if device.type == "cuda" else 20)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    found = {"device_clones_ms": clones}
    for name, pinned in (("pinned", True), ("pageable", False)):
        target = torch.empty(size, dtype=torch.uint8, pin_memory=pinned and device.type == "cuda")
        target.copy_(source)
        found[f"{name}_copy_gb_per_s"] = (
            size
            / 1e6
            / statistics.median(
                clock(lambda target=target: target.copy_(source, non_blocking=True))
                for _ in range(9)  # type: ignore[misc]
            )
        )
    return found


def measure(args: argparse.Namespace, folder: Path, device: torch.device) -> dict[str, Any]:
    """All figures of one run."""
    config = small_config() if args.small else shape.shape_20b(args.layers)
    tokens = 64 if args.small else args.tokens
    model = random_gpt_oss(config, seed=0, dtype=torch.bfloat16, device=device)
    batch = torch.randint(0, config.vocab_size, (1, tokens), device=device)
    clock = Clock(device)
    pass_bytes = tokens * (config.num_hidden_layers + 1) * config.hidden_size * 2
    reserve = min(pass_bytes + (256 << 20), PENDING) if device.type == "cuda" else 0
    figures: dict[str, Any] = {
        "layers": config.num_hidden_layers,
        "tokens": tokens,
        "hidden": config.hidden_size,
        "rounds": args.rounds,
    }
    with torch.inference_mode():
        for mode in ("full", "fingerprint"):  # compiles the fingerprint kernel, warms the caches
            with recording(model, folder / "warm", mode):
                model(batch)
        for mode in ("fingerprint", "full"):
            forward, added, kept, stored = one_forward(clock, model, batch, folder / mode, mode, args.rounds, reserve)
            figures[mode] = {
                "plain_ms": forward,
                "added_ms": added,
                "added_percent": 100 * added / forward,
                "kept_up": kept,
                "bytes_on_disk": stored,
                "in_a_row": many_forwards(
                    clock, model, batch, folder / "many", mode, args.many, PENDING if reserve and mode == "full" else reserve
                ),
            }
        figures["blocking_added_ms"] = blocking_hooks(clock, model, batch, min(args.rounds, 5))
        figures["noise_percent"] = 100 * abs(noise(clock, model, batch, args.rounds)) / figures["full"]["plain_ms"]
    figures |= floors(clock, config, tokens, device)
    figures["times_less_on_disk"] = figures["full"]["bytes_on_disk"] / figures["fingerprint"]["bytes_on_disk"]
    return figures


def noise(clock: Clock, model: torch.nn.Module, batch: torch.Tensor, rounds: int) -> float:
    """What the same measure says about two equal forwards."""
    return statistics.median(clock(lambda: model(batch)) - clock(lambda: model(batch)) for _ in range(rounds))


def environment(device: torch.device, folder: Path) -> dict[str, str]:
    """What the figures depend on."""
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    free = shutil.disk_usage(folder).free >> 30
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": sys.version.split()[0],
        "dtype": "bfloat16",
        "folder": f"{folder.parent} ({free} GiB free)",
        "max_pending_bytes": str(PENDING),
    }


def roomy_folder(size: int) -> Path:
    """/dev/shm if it has room for so many bytes, else the folder of temporary files."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > size else Path(tempfile.gettempdir())


def lines(figures: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """One figure a line."""
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from lines(value, f"{prefix}{key}.")
        else:
            yield f"{prefix + key:40} {value:.4f}" if isinstance(value, float) else f"{prefix + key:40} {value}"


def spread(row: dict[str, Any]) -> str:
    """How far apart the pairs are."""
    least, most = (100 * row[f"added_ms_{end}"] / row["plain_ms"] for end in ("least", "most"))
    return (
        f"{least:.2f}% to {most:.2f}% over {row['pairs']} pairs of {row['forwards_of_a_stretch']} forwards;"
        f" the plain ones took {row['plain_ms_least']:.1f} to {row['plain_ms_most']:.1f} ms"
    )


def verdicts(figures: dict[str, Any]) -> list[tuple[bool, str]]:
    """Each target, and whether it is met."""
    row, marks, full = figures["full"]["in_a_row"], figures["fingerprint"], figures["full"]
    kept = "kept up" if row["kept_up"] else f"did NOT keep up: {row['waits']} waits, {row['seconds_waited']:.2f} s"
    return [
        (marks["added_percent"] <= 3, f"fingerprints add {marks['added_percent']:.2f}% to a forward (at most 3%)"),
        (
            marks["in_a_row"]["added_percent"] <= 3,
            f"and {marks['in_a_row']['added_percent']:.2f}% in a row (at most 3%), {spread(marks['in_a_row'])}",
        ),
        (figures["times_less_on_disk"] >= 300, f"they take {figures['times_less_on_disk']:.0f} times less disk (at least 300)"),
        (full["kept_up"] and full["added_percent"] <= 8, f"values add {full['added_percent']:.2f}% to one forward (at most 8%)"),
        (
            row["added_percent"] <= 8 or not row["kept_up"],
            f"values add {row['added_percent']:.2f}% to each in a row, {spread(row)}; the writer {kept}",
        ),
    ]


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU, to see that the benchmark runs")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--many", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="where the dumps go meanwhile; by default into memory, if it has room")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.small:
        args.rounds, args.many = min(args.rounds, 2), min(args.many, 3)
    if not args.small and not torch.cuda.is_available():
        print("this benchmark needs a GPU (or --small): nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cpu" if args.small else "cuda")
    parent = args.folder or roomy_folder((args.many + 2) * (args.layers + 1) * args.tokens * 2880 * 2)
    with tempfile.TemporaryDirectory(dir=parent, prefix="specalign-record-") as made:
        figures = measure(args, Path(made), device)
        report = {"date": str(datetime.date.today()), "environment": environment(device, Path(made)), "figures": figures}
    for line in lines({**figures, **report["environment"]}):
        print(line)
    if args.record:
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    results = verdicts(figures)
    for good, text in results:
        print("ok      " if good else "MISSED  ", text)
    return 0 if args.small or all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())

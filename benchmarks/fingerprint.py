"""How fast rows are fingerprinted, against the time in which they can be read at all.

    python benchmarks/fingerprint.py [--record] [--out FILE] [--rounds N] [--rows N] [--width N] [--sweep]

Rows of bf16 (width 6144, 16384 rows unless told otherwise). Fingerprinting and its floor, a plain sum over the same bytes, run in
turn, in alternating order; the figures are the medians of both, and their ratio is the median of the ratios of the pairs. The
noise is the same ratio of two runs of the floor, as its distance from 1.

    numpy   floor: numpy's sum of the bytes as uint64, on one core                       at least 0.5 GB/s
    triton  floor: torch's sum of the bytes as fp32, on the GPU; fresh memory each turn at least 3.4 TB/s on an H200
            counted: with the non-finite elements of each row, as a recording does it   at least 3.4 TB/s on an H200
            counted, one NaN in each row: what a second look at every row costs          no target
    torch   the reference in plain torch on the same GPU, for comparison                 no target

Without a GPU only numpy is measured, and the output says so. `--sweep` measures every shape of launch on the GPU, fastest first.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl")]  # runs from a bare checkout too

from specalign.dump.fingerprint import fingerprint_rows  # noqa: E402  # after the path is set

RESULT = Path(__file__).parent / "results" / "fingerprint.json"
TARGETS = {"numpy": 0.5e9, "triton": 3.4e12, "triton counted": 3.4e12}
WIDTHS = (2880, 2880 // 8, 6144, 6143, 7168)
"""What other rows cost: another model's, its tensor-parallel shard, rows that begin off 4 bytes."""

Timer = Callable[[Callable[[], object]], float]
"""Seconds of one run."""


def seconds(run: Callable[[], object]) -> float:
    """One run on the CPU."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def paired(
    run: Callable[[int], object], floor: Callable[[int], object], size: int, rounds: int, timer: Timer
) -> dict[str, float]:
    """Bytes a second of both, the ratio of their times and the noise; each round gets its own number, to choose its memory."""
    for turn in (0, 1):
        run(turn), floor(turn)
    times: list[float] = []
    floors: list[float] = []
    again: list[float] = []
    for turn in range(rounds):
        order = [(times, run), (floors, floor)] if turn % 2 == 0 else [(floors, floor), (times, run)]
        for place, (into, call) in enumerate([*order, (again, floor)]):
            into.append(timer(functools.partial(call, 3 * turn + place)))
    return {
        "bytes_per_second": size / statistics.median(times),
        "floor_bytes_per_second": size / statistics.median(floors),
        "ratio": statistics.median(floor / mine for mine, floor in zip(times, floors, strict=True)),
        "noise": abs(1 - statistics.median(a / b for a, b in zip(again, floors, strict=True))),
    }


def measure_numpy(rows: int, width: int, rounds: int) -> dict[str, float]:
    bits = np.random.default_rng(0).integers(0, 2**16, (rows, width), np.uint16)
    whole = bits.reshape(-1)[: bits.size // 4 * 4].view(np.uint64)
    return paired(lambda _: fingerprint_rows(bits), lambda _: whole.sum(), bits.nbytes, rounds, seconds)


class OnGpu:
    """Several copies of the rows, together larger than any cache, so that each turn reads memory."""

    def __init__(self, rows: int, width: int) -> None:
        import torch

        self.size = 2 * rows * width
        self.copies = [
            torch.randint(0, 0x7F80, (rows, width), dtype=torch.int16, device="cuda").view(torch.bfloat16)  # finite
            for _ in range(min(64, max(3, 2**30 // self.size)))
        ]

    def rows(self, turn: int) -> Any:
        return self.copies[turn % len(self.copies)]

    def spoil(self) -> None:
        """A NaN in the last column of every row."""
        for copy in self.copies:
            copy[:, -1] = float("nan")

    def floor(self, turn: int) -> object:
        import torch

        return self.rows(turn).flatten()[: self.size // 4 * 2].view(torch.float32).sum()

    def seconds(self, run: Callable[[], object]) -> float:
        """One run between two events; a sleep before it hides the time that the CPU takes to launch."""
        torch: Any = cuda()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)  # cycles: about half a millisecond
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def measure(self, fingerprint: Callable[[Any], object], rounds: int) -> dict[str, float]:
        return paired(lambda turn: fingerprint(self.rows(turn)), self.floor, self.size, rounds, self.seconds)


def measure_gpu(rows: int, width: int, rounds: int) -> dict[str, dict[str, float]]:
    """The kernel at the asked width and at others, and the reference."""
    from specalign.dump.fingerprint_kernels import fingerprint_triton
    from specalign.dump.fingerprint_torch import fingerprint_reference

    counted = functools.partial(fingerprint_triton, count=True)
    bench = OnGpu(rows, width)
    figures = {
        "triton": bench.measure(fingerprint_triton, rounds),
        "triton counted": bench.measure(counted, rounds),
        "torch": bench.measure(fingerprint_reference, max(3, rounds // 5)),
    }
    bench.spoil()
    figures["triton counted, NaN"] = bench.measure(counted, rounds)
    del bench
    for other in WIDTHS:
        figures[f"triton width {other}"] = OnGpu(rows, other).measure(counted, rounds)
    return figures


def sweep(rows: int, width: int, rounds: int) -> list[tuple[float, Any]]:
    """(bytes a second, shape of launch), fastest first."""
    from specalign.dump.fingerprint_kernels import Launch, fingerprint_triton

    bench, found = OnGpu(rows, width), []
    for r, words, warps, stages in itertools.product((1, 2, 4, 8), (4, 8), (1, 2, 4, 8), (1, 2, 3, 4)):
        launch = Launch(rows=r, block=32 * warps * words, warps=warps, stages=stages)
        try:
            figures = bench.measure(functools.partial(fingerprint_triton, launch=launch, count=True), rounds)
        except Exception as broken:  # too much shared memory for this GPU: said, and the sweep goes on
            print(f"{launch}: {type(broken).__name__}: {str(broken).splitlines()[0]}")
            continue
        found.append((figures["bytes_per_second"], launch))
    return sorted(found, key=lambda pair: -pair[0])


def cuda() -> Any:
    """torch, if it sees a GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch if torch.cuda.is_available() else None


def environment() -> dict[str, object]:
    """What the figures depend on."""
    about: dict[str, object] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    if torch := cuda():
        versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
        about |= {"gpu": torch.cuda.get_device_name(), **versions}
    return about


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--width", type=int, default=6144)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.sweep:
        for speed, launch in sweep(args.rows, args.width, args.rounds):
            print(f"{speed / 1e12:6.3f} TB/s  {launch}")
        return 0
    figures = {"numpy": measure_numpy(min(args.rows, 4096), args.width, min(args.rounds, 15))}
    if cuda():
        figures |= measure_gpu(args.rows, args.width, args.rounds)
    for name, figure in figures.items():
        print(format_figure(name, figure))
    about = environment() | {"rows": args.rows, "width": args.width, "rounds": args.rounds}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if not cuda():
        print("no GPU is visible: the kernel was NOT measured")
    if args.record:
        report = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "environment": about, "figures": figures}
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 0 if all(figures[name]["bytes_per_second"] >= TARGETS[name] for name in figures if name in TARGETS) else 1


def format_figure(name: str, figure: dict[str, float]) -> str:
    unit, scale = ("GB/s", 1e9) if name == "numpy" else ("TB/s", 1e12)
    speed, floor = figure["bytes_per_second"] / scale, figure["floor_bytes_per_second"] / scale
    text = f"{name:20}{speed:7.3f} {unit} | floor {floor:7.3f} {unit}, ratio {figure['ratio']:.3f}, noise {figure['noise']:.3f}"
    if name not in TARGETS:
        return text
    verdict = "within" if figure["bytes_per_second"] >= TARGETS[name] else "BELOW"
    return f"{text} | {verdict} the target of {TARGETS[name] / scale:g} {unit}"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())

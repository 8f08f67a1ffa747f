"""How fast routes are scattered, gathered and quantized on one GPU, beside what the same traffic reaches in straight lines.

    python benchmarks/routing.py [--record] [--out FILE] [--sweep]

bf16 rows of T tokens, H wide, with k routes each to 256 experts (distinct, drawn): `[T k, H]` expert-major rows, without padding.
Bytes are counted once per read and write; figures are medians of `triton.testing.do_bench`, which flushes the L2 cache before
each run, all in one run of this script.

    scatter            1 read, k writes                                     3.68 / 3.60 / 3.45 TB/s on an H200
    scatter backward   k reads, 1 write                                     4.15 / 3.80 / 3.90
    gather             k reads, 1 write                                     4.2 / 3.9 / 3.9
    gather backward    1 + k reads, k writes, with the weights' gradients   3.9 / 3.8 / 3.8
    ceiling            a kernel of the same reads and writes in straight lines, its best launch: each at least 0.97 of it
    fused              scatter and quantization in one, over one after the other, H = 6144: at most 0.28, column scales 0.40
    checks             of range and owner, in a CUDA graph as the scatter is: at most 5% of it; the wait of "sync" stands apart
    index_copy         torch's repeat_interleave and index_copy_, over the scatter: at least 7; index_copy_ alone without a bound

`--sweep` measures launches instead, the fastest first, and judges nothing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench, do_bench_cudagraph

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl"), str(Path(__file__).parent)]  # runs from a bare checkout too

import routing_ceiling_kernels as ceiling  # noqa: E402  # after the path is set

from specalign.routing.blanks import Blanks  # noqa: E402
from specalign.routing.check_kernels import check_triton  # noqa: E402
from specalign.routing.faults import Checked  # noqa: E402
from specalign.routing.gather_kernels import gather_backward_triton, gather_triton  # noqa: E402
from specalign.routing.launches import FASTEST, Launch  # noqa: E402
from specalign.routing.layout import ReceiveLayout  # noqa: E402
from specalign.routing.quantize_kernels import scatter_quantize_triton  # noqa: E402
from specalign.routing.routes import check_route_positions  # noqa: E402
from specalign.routing.scatter_kernels import scatter_backward_triton, scatter_triton  # noqa: E402

RESULT = Path(__file__).parent / "results" / "routing.json"
SHAPES = ((16384, 6144, 8), (4096, 6144, 8), (16384, 2880, 4))
FLOORS = {
    "scatter": (3.68, 3.60, 3.45),
    "scatter backward": (4.15, 3.80, 3.90),
    "gather": (4.2, 3.9, 3.9),
    "gather backward": (3.9, 3.8, 3.8),
}
OF_CEILING = 0.97
EXPERTS = 256
STRAIGHT = ((1024, 4), (2048, 8), (4096, 8), (8192, 16))
"""Launches of the ceilings: block, warps."""

Run = Callable[[], Any]


class Case:
    """Tensors of one shape, and the kernels over them."""

    def __init__(self, tokens: int, width: int, slots: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        ids = torch.rand(tokens, EXPERTS, generator=generator, device="cuda").topk(slots).indices
        weights = torch.rand(tokens, slots, generator=generator, device="cuda")
        self.layout = ReceiveLayout(ids, weights, num_experts=EXPERTS)
        self.blanks = Blanks(self.layout.padding_rows, listed=True)
        self.slots, self.width = slots, width
        self.tokens = torch.randn(tokens, width, generator=generator, device="cuda").bfloat16()
        self.rows = torch.randn(tokens * slots, width, generator=generator, device="cuda").bfloat16()
        self.spare = torch.empty(slots, tokens, width, dtype=torch.bfloat16, device="cuda")

    def bytes(self, name: str) -> int:
        """Moved once per read and write; positions and weights, a thousandth of it, are not counted."""
        return {"gather backward": 1 + 2 * self.slots}.get(name, 1 + self.slots) * self.tokens.numel() * 2

    def kernel(self, name: str, launch: Launch | None = None) -> Run:
        """A run of our kernel."""
        layout, shape = self.layout, () if launch is None else (launch,)
        return {
            "scatter": lambda: scatter_triton(self.tokens, layout.positions, layout.num_rows, self.blanks, *shape),
            "scatter backward": lambda: scatter_backward_triton(self.rows, layout.positions, *shape),
            "gather": lambda: gather_triton(self.rows, layout.positions, layout.weights, *shape),
            "gather backward": lambda: gather_backward_triton(
                self.tokens, self.rows, layout.positions, layout.weights, self.blanks
            ),
        }[name]

    def ceiling(self, name: str, block: int, warps: int) -> Run:
        """The same traffic in straight lines."""
        planes = self.rows.view(self.spare.shape)
        return {
            "scatter": lambda: ceiling.spread(self.tokens, self.spare, block, warps),
            "scatter backward": lambda: ceiling.add_up(planes, self.tokens, block, warps),
            "gather": lambda: ceiling.add_up(planes, self.tokens, block, warps),
            "gather backward": lambda: ceiling.scale(self.tokens, planes, self.spare, block, warps),
        }[name]


def milliseconds(run: Run, *, rep: int = 100) -> float:
    """Median of one run."""
    found: float = do_bench(run, warmup=25, rep=rep, return_mode="median")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU is visible to torch: nothing was measured", file=sys.stderr)
        return 2
    if args.sweep:
        return sweep()
    figures = {}
    for number, shape in enumerate(SHAPES):
        case = Case(*shape)
        figures["x".join(map(str, shape))] = speeds(case, number) | extras(case)
        del case
        torch.cuda.empty_cache()
    report = {"date": str(datetime.date.today()), "environment": environment(), "shapes": "T x H x k", "figures": figures}
    if args.record:
        args.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report["environment"]))
    failed = 0
    for name, found, bound, good in judged(figures):
        failed += not good
        print(f"{'ok    ' if good else 'MISSED'} {name:52} {found:8.3f}  {bound}")
    return 1 if failed else 0


def speeds(case: Case, number: int) -> dict[str, Any]:
    """TB/s of each kernel and of its ceiling."""
    found = {}
    for name in FLOORS:
        tera = case.bytes(name) / 1e9
        own = milliseconds(case.kernel(name))
        straight = min(
            milliseconds(case.ceiling(name, *launch), rep=40) for launch in ((1024, 4), (2048, 8), (4096, 8), (8192, 16))
        )
        again = milliseconds(case.kernel(name))
        own = statistics.mean((own, again))
        found[name] = {
            "tb_per_s": tera / own,
            "floor": FLOORS[name][number],
            "of_ceiling": straight / own,
            "ceiling": tera / straight,
        }
    return found


def extras(case: Case) -> dict[str, Any]:
    """Fused quantization, checks, and torch's own way."""
    layout, found = case.layout, {}
    scatter = milliseconds(case.kernel("scatter"))
    if not case.width % 128:
        every = torch.arange(layout.num_rows, device="cuda")[:, None]
        nothing = Blanks(every[:0, 0], listed=True)
        for name, columns in (("row scales", False), ("column scales", True)):
            fused = (case.tokens, layout.positions, layout.num_rows, case.blanks, columns)
            after = (case.rows, every, layout.num_rows, nothing, columns)
            spent = [milliseconds(functools.partial(scatter_quantize_triton, *given)) for given in (fused, after)]
            found[f"fused over both, {name}"] = spent[0] / (scatter + spent[1])
    checked = Checked(layout.positions, layout.num_rows)
    graph = do_bench_cudagraph(lambda: check_triton(checked), return_mode="median")
    scattered = do_bench_cudagraph(case.kernel("scatter"), return_mode="median")
    repeated = case.tokens.repeat_interleave(case.slots, 0)
    into, places = torch.empty_like(case.rows), layout.positions.reshape(-1)
    return found | {
        "checks over scatter": graph / scattered,
        "checks in microseconds": graph * 1000,
        "wait of sync in microseconds": waited(case),
        "index_copy alone over scatter": milliseconds(lambda: into.index_copy_(0, places, repeated)) / scatter,
        "repeat and index_copy over scatter": milliseconds(
            lambda: into.index_copy_(0, places, case.tokens.repeat_interleave(case.slots, 0))
        )
        / scatter,
    }


def waited(case: Case) -> float:
    """What `check="sync"` takes of the caller's time, the device idle, by the wall."""
    layout, spent = case.layout, []
    for _ in range(50):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        check_route_positions(layout.positions, layout.num_rows)
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent) * 1e6


def judged(figures: dict[str, Any]) -> Iterator[tuple[str, float, str, bool]]:
    """Each figure with its bound, and whether it is held."""
    bounds = {"fused over both, row scales": 0.28, "fused over both, column scales": 0.40, "checks over scatter": 0.05}
    for shape, found in figures.items():
        for name, value in found.items():
            label = f"{shape} {name}"
            if isinstance(value, dict):
                yield label, value["tb_per_s"], f"TB/s, at least {value['floor']}", value["tb_per_s"] >= value["floor"]
                yield f"{label} of its ceiling", value["of_ceiling"], f"at least {OF_CEILING}", value["of_ceiling"] >= OF_CEILING
            elif name in bounds:
                yield label, value, f"at most {bounds[name]}", value <= bounds[name]
            elif name == "repeat and index_copy over scatter":
                yield label, value, "at least 7", value >= 7


def sweep() -> int:
    """Each kernel with each launch, fastest first."""
    for shape in SHAPES:
        case = Case(*shape)
        for name in FASTEST.keys() & FLOORS.keys():
            speeds = [
                (case.bytes(name) / 1e9 / milliseconds(case.kernel(name, way), rep=20), way) for way in launches(name, case.width)
            ]
            straight = min(milliseconds(case.ceiling(name, *way), rep=30) for way in STRAIGHT)
            print(f"{shape} {name}: ceiling {case.bytes(name) / 1e9 / straight:.3f} TB/s")
            for speed, launch in sorted(speeds, key=lambda found: -found[0])[:6]:
                print(f"    {speed:.3f} TB/s  {launch}")
    return 0


def launches(name: str, width: int) -> Iterator[Launch]:
    """What is worth a try."""
    ways = ("", ".cs") if name == "scatter" else ("",)
    for block, warps, whole, way in itertools.product((1024, 2048, 4096, 8192), (4, 8, 16), (True, False), ways):
        parts = 1 if whole else -(-width // block)
        if 4 <= block // (32 * warps) <= 32 and (whole or parts > 1):
            yield Launch(block, warps, parts, way)


def environment() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "cuda": str(torch.version.cuda), "python": sys.version.split()[0],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""What the plugin costs a test, and what a GPU lease costs.

    python benchmarks/plugin.py [--runs N] [--tests N] [--record] [--gate]

    test    pytest over N empty tests, `-p specalign` over bare pytest, the start of both taken off, for one test   at most 1 ms
    start   the same over an empty folder: `benchmarks/start.py` measures it more closely                          at most 50 ms
    lease   one lease of a made-up GPU that nobody else wants, taken and given back                                at most 5 ms

The runs of pytest are paired as in `start.py`: with and without in turn, in alternating order, and the noise is what two equal
commands differ by. Golden checks are measured by `benchmarks/golden.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import start

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "plugin.json"
sys.path[:0] = [str(ROOT / "impl")]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure, in milliseconds, and what it may be."""

    name: str
    ms: float
    target_ms: float
    noise_ms: float

    @property
    def ok(self) -> bool:
        return self.ms <= self.target_ms

    def format(self) -> str:
        verdict = "within" if self.ok else "OVER"
        return f"{self.name:6}{self.ms:9.3f} ms, noise {self.noise_ms:.3f} ms | {verdict} the target of {self.target_ms:g} ms"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="paired runs of each figure (default 9)")
    parser.add_argument("--tests", type=int, default=2000, help="empty tests of a run (default 2000)")
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a figure is over its target")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = [*measure_tests(Path(folder), args.tests, args.runs), measure_lease(Path(folder), 200 * args.runs)]
    about = start.environment(args.runs) | {"tests": args.tests}
    for figure in figures:
        print(figure.format())
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if args.record:
        document = {"date": datetime.date.today().isoformat(), "environment": about,
                    "figures": [dataclasses.asdict(figure) | {"ok": figure.ok} for figure in figures]}  # fmt: skip
        RESULT.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 1 if args.gate and not all(figure.ok for figure in figures) else 0


def measure_tests(folder: Path, tests: int, runs: int) -> list[Figure]:
    """The cost of a start, and what N tests add to it, for one of them."""
    (folder / "empty").mkdir()
    (folder / "many").mkdir()
    (folder / "many" / "test_many.py").write_text("".join(f"def test_{n}():\n    pass\n\n\n" for n in range(tests)))
    empty, many = (_cost(folder / name, good, runs) for name, good in (("empty", 5), ("many", 0)))
    added = (min(many.wall_ms, many.cpu_ms) - min(empty.wall_ms, empty.cpu_ms)) / tests
    noise = (many.noise_ms + empty.noise_ms) / tests
    return [
        Figure("test", added, 1.0, noise),
        Figure("start", min(empty.wall_ms, empty.cpu_ms), 50.0, empty.noise_ms),
    ]


def _cost(place: Path, good: int, runs: int) -> start.Cost:
    bare = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(place), str(place))
    env = start.clean_environ() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    floor, ours = (start.Command(argv, frozenset({good})) for argv in (bare, (*bare, "-p", "specalign")))
    return start.compare(place.name, 50, floor, ours, env, runs)


def measure_lease(folder: Path, times: int) -> Figure:
    """One of two GPUs, taken and given back; the noise is the distance of the quartiles."""
    from specalign.leases import Device, Inventory, LockFolder, Pool

    devices = tuple(Device(f"GPU-{n}", n, "made up", (9, 0), memory_total=2**37, memory_free=2**37) for n in range(2))
    pool = Pool(lambda: Inventory(devices, "made up"), LockFolder(folder / "locks"))
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        with pool.lease(timeout=0):
            pass
        spent.append(1000 * (time.perf_counter() - begin))
    low, middle, high = statistics.quantiles(spent, n=4)
    return Figure("lease", middle, 5.0, high - low)


if __name__ == "__main__":
    sys.exit(main())

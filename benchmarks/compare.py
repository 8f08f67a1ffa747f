"""How fast two dumps are compared, and in how much memory.

    python benchmarks/compare.py [--record] [--folder DIR] [--small]

    baseline     6 layers, hidden 2048, 8 requests, 256 prompt + 256 decode tokens, one file a decode step, 300 MB in all, in
                 the files of the engines (slime's Megatron dump against SGLang's with pairs): at least 10 times the throughput
                 of a loop over request, position and layer as the published comparers have it (`published_loop.py`)
    own format   the same in our own format, against the leanest such loop that numpy allows; no floor
    floor        for both: what any comparison by numpy must do (`compare_floor.py`), and so how often the loop at most
    throughput   large passes on warm files: at least 1 GB/s of tensor bytes on one core. Bytes of ONE side are counted: every
                 element is read on both sides
    jobs         two processes: at least 1.5 times one, or what two processes reach that only read the same files
    memory       peak at most 128 MiB + one pass + 64 bytes a row, with large passes and with many rows

Everything runs in processes of its own, so that each peak is that of the comparison, and figures are compared within one run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl")]  # runs from a bare checkout too

import numpy as np  # noqa: E402  # after the path is set
from numpy.typing import NDArray  # noqa: E402

from specalign.compare.layerwise import compare_dumps  # noqa: E402
from specalign.dump.keys import RowKind  # noqa: E402
from specalign.dump.manifest import Manifest  # noqa: E402
from specalign.dump.opening import open_dump  # noqa: E402
from specalign.dump.passes import RawTensor, TensorSpec  # noqa: E402
from specalign.dump.rows import Rows, make_rows  # noqa: E402
from specalign.dump.writer import DumpWriter  # noqa: E402

RESULT = Path(__file__).parent / "results" / "compare.json"
SELF = [sys.executable, __file__, "--child"]
MIB = 1024 * 1024
MANIFEST = Manifest("benchmarks/compare.py", device="cpu", arch="cpu")

TURNS = 5
"""Of the baseline, in each of which everything runs once."""

Row = tuple[int, int, int]
"""Request, position, kind."""


def rows_of(rows: Sequence[Row]) -> Rows:
    """Rows whose token is their request and position, so that no two requests begin alike."""
    requests, positions, kinds = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    names = np.unique(requests)
    return make_rows(1000 * requests + positions, positions, np.searchsorted(names, requests), kinds, [f"r{n}" for n in names])


def write(folder: Path, forwards: Sequence[Sequence[Row]], layers: int, width: int) -> None:
    """A dump whose values are those of (request, position, layer), whatever the forwards: a slice of one table of noise."""
    table = np.random.default_rng(0).integers(0, 0x4000, 64 * 1024 + width, dtype=np.uint16)
    with DumpWriter(folder, MANIFEST) as writer:
        for forward in forwards:
            tensors = []
            for layer in range(1, layers + 1):
                data = np.empty((len(forward), width), np.uint16)
                for place, (request, position, _) in enumerate(forward):
                    begin = (request * 7919 + position * 104729 + layer * 1299709) % (64 * 1024)
                    data[place] = table[begin : begin + width]
                tensors.append(RawTensor(TensorSpec(f"boundary.{layer}", "BF16", data.shape), data))
            writer.write_pass(rows_of(forward), tensors)


def prefill(requests: int, length: int, begin: int = 0) -> list[Row]:
    """Rows of prompts, one request after the other."""
    return [(r, p, RowKind.PREFILL) for r in range(requests) for p in range(begin, begin + length)]


def decode(requests: int, position: int) -> list[Row]:
    """One step of all requests."""
    return [(r, position, RowKind.DECODE) for r in range(requests)]


def row_loop(a: Path, b: Path) -> tuple[float, int]:
    """The baseline: (largest difference, rows compared). Every file is read once, whole; then one row at a time is compared."""
    sides: list[dict[tuple[int, int], tuple[dict[str, NDArray[Any]], int]]] = []
    for folder in (a, b):
        dump, seen = open_dump(folder), {}
        for info in dump.infos():
            rows, tensors = dump.rows(info), {key: np.array(t.data) for key, t in dump.load(info).items()}
            for place in range(len(rows)):
                seen[int(rows.tokens[place]) // 1000, int(rows.positions[place])] = (tensors, place)
        sides.append(seen)
    largest, compared = 0.0, 0
    for where, (tensors, place) in sides[0].items():
        others, other_place = sides[1][where]
        for key in tensors:
            x, y = (side[key][at].astype(np.uint32) << 16 for side, at in ((tensors, place), (others, other_place)))
            largest = max(largest, float(np.abs(x.view(np.float32) - y.view(np.float32)).max()))
            compared += 1
    return largest, compared


def read_all(folder: Path, part: int, parts: int) -> int:
    """What a comparison cannot do without: every byte of the tensors is looked at once."""
    dump, total = open_dump(folder), 0
    for info in dump.infos():
        for tensor in dump.load(info).values():
            size = len(tensor.data) // parts
            total += int(tensor.data[part * size : (part + 1) * size].view(np.uint64).max() >= 0)
    return total


def child(arguments: Sequence[str]) -> int:
    """One measurement: seconds, result and peak memory as JSON on standard output."""
    what = arguments[0]
    if what == "write-published":
        import published_loop

        published_loop.write_files(Path(arguments[1]), *map(int, arguments[2:]))
        return 0
    a, b, extra = Path(arguments[1]), Path(arguments[2]), int(arguments[3])
    warm_up(what)
    begin, spent = time.perf_counter(), time.process_time()
    if what == "compare":
        report = compare_dumps(open_dump(a), open_dump(b), jobs=extra)
        found: Any = [report.ok, sum(key.rows_compared for key in report.keys)]
    elif what == "loop":
        found = row_loop(a, b)
    elif what == "published":
        import published_loop

        found = published_loop.compare_row_by_row(a, b)
    elif what == "floor":
        import compare_floor

        steps, layers, elements = map(int, arguments[4:])
        # The prefill has as many rows as all steps together.
        found = compare_floor.look_through(a, b) + compare_floor.sum_pairs(2 * steps, layers, elements)
    else:
        found = read_in_parts(a, extra)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - spent
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "found": found, "peak": peak_bytes()}))
    return 0


def read_in_parts(folder: Path, parts: int) -> float:
    """Seconds of the slowest of so many processes that each read their part; starting them does not count."""
    command = [*SELF, "read-part", str(folder)]
    processes = [subprocess.Popen([*command, str(part), str(parts)], stdout=subprocess.PIPE, text=True) for part in range(parts)]
    return max(float(process.communicate()[0]) for process in processes)


def warm_up(what: str) -> None:
    """Import what is imported when it is needed, such as torch by the loop: what starting costs is no part of a comparison."""
    if what == "published":
        import torch

        torch.set_num_threads(1)
    elif what in ("compare", "floor"):
        importlib.import_module("specalign.dump.readers")
        importlib.import_module("compare_floor")


def peak_bytes() -> int:
    """The most memory that this process held. `ru_maxrss` would also count what its parent held when it forked."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) * 1024


def measure(what: str, a: Path, b: Path, extra: int = 1, runs: int = 1, more: Sequence[int] = ()) -> dict[str, Any]:
    """The fastest of several runs, and the largest peak of any."""
    command = [*SELF, what, str(a), str(b), str(extra), *map(str, more)]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)]
    return {**min(found, key=lambda item: item["seconds"]), "peak": max(item["peak"] for item in found)}


def size_of(folder: Path) -> int:
    """Bytes of tensors in a dump."""
    dump = open_dump(folder)
    return sum(tensor.data.nbytes for info in dump.infos() for tensor in dump.load(info).values())


def against_the_loop(folder: Path, small: bool) -> dict[str, Any]:
    """The baseline scenario, in the engines' files, and in ours."""
    requests, prompt, steps, layers, width = (4, 16, 16, 2, 256) if small else (8, 256, 256, 6, 2048)
    rows = requests * (prompt + steps) * layers
    made = subprocess.run(
        [*SELF, "write-published", str(folder), *map(str, (requests, prompt, steps, layers, width))], check=False
    )
    check(made.returncode == 0, "the engines' files could not be written (they need torch)")
    foreign = _duel("published", folder / "megatron", folder / "sglang", rows, (steps, layers, requests * width))
    train, rollout = folder / "train", folder / "rollout"
    write(train, [prefill(requests, prompt + steps)], layers, width)
    write(rollout, [prefill(requests, prompt), *(decode(requests, prompt + step) for step in range(steps))], layers, width)
    own = _duel("loop", train, rollout, rows, (0, 0, 0))
    return {"files": steps + 2, "engines_files": foreign, "own_format": own | {"bytes": size_of(train) + size_of(rollout)}}


def _duel(loop: str, a: Path, b: Path, rows: int, summed: Sequence[int]) -> dict[str, float]:
    """Seconds of both and of the floor, in turn; the fastest of each. `summed`: steps, pairs of each, elements of a pair."""
    ours, theirs, floors = [], [], []
    for _ in range(TURNS):
        ours.append(measure("compare", a, b))
        theirs.append(measure(loop, a, b))
        floors.append(measure("floor", a, b, more=summed))
    check(all(one["found"] == [True, rows] for one in ours), f"ours compares {rows} rows: {ours}")
    check(all(one["found"] == [0.0, rows] for one in theirs), f"the loop compares {rows} rows: {theirs}")
    seconds, loop_seconds, floor = (min(one["cpu_seconds"] for one in side) for side in (ours, theirs, floors))
    return {"cpu_seconds": seconds, "loop_cpu_seconds": loop_seconds, "times_the_loop": loop_seconds / seconds,
            "floor_cpu_seconds": floor, "times_the_loop_at_the_floor": loop_seconds / floor}  # fmt: skip


def large_passes(folder: Path, small: bool) -> dict[str, Any]:
    """Throughput, memory, and two processes."""
    passes, tokens, layers, width = (1, 64, 2, 256) if small else (4, 4096, 24, 2880)
    a, b = folder / "large-a", folder / "large-b"
    write(a, [prefill(1, tokens, tokens * number) for number in range(passes)], layers, width)
    shutil.copytree(a, b)
    one, two = measure("compare", a, b, 1, runs=3), measure("compare", a, b, 2, runs=3)
    check(one["found"] == two["found"] == [True, passes * tokens * layers], f"all rows are compared: {one}, {two}")
    read_one, read_two = measure("read", a, b, 1, runs=3), measure("read", a, b, 2, runs=3)
    size = size_of(a)
    limit = 128 * MIB + size // passes + 64 * passes * tokens
    return {"bytes_one_side": size, "seconds": one["seconds"], "gb_per_second_one_side": size / one["seconds"] / 1e9,
            "jobs_2_times_one": one["seconds"] / two["seconds"], "reading_2_times_one": read_one["found"] / read_two["found"],
            "peak_bytes": one["peak"], "limit_bytes": limit}  # fmt: skip


def many_rows(folder: Path, small: bool) -> dict[str, Any]:
    """Memory that grows with the rows: narrow tensors, long requests."""
    passes, requests, tokens, width = (2, 2, 64, 8) if small else (32, 16, 4096, 8)
    a, b = folder / "many-a", folder / "many-b"
    table = np.zeros((requests * tokens, width), np.uint16)
    with DumpWriter(a, MANIFEST) as writer:
        for number in range(passes):
            r, p = np.divmod(np.arange(requests * tokens), tokens)
            rows = make_rows(
                p % 1000 + 1 + r, p + tokens * number, r, np.zeros(len(r), np.uint8), [f"r{n}" for n in range(requests)]
            )
            writer.write_pass(rows, [RawTensor(TensorSpec("boundary.1", "BF16", table.shape), table)])
    shutil.copytree(a, b)
    found = measure("compare", a, b)
    rows_in_all = passes * requests * tokens
    check(found["found"] == [True, rows_in_all], f"all rows are compared: {found}")
    return {"rows_one_side": rows_in_all, "seconds": found["seconds"], "peak_bytes": found["peak"],
            "limit_bytes": 128 * MIB + table.nbytes + 64 * 2 * rows_in_all}  # fmt: skip


def check(right: bool, what: str) -> None:
    """A figure of a comparison that compared something else would mean nothing."""
    if not right:
        raise SystemExit(f"the comparison did not do what is measured: {what}")


def floor_lines(duel: dict[str, float]) -> list[tuple[str, float, None, str]]:
    """What was measured, and what it cannot fall below."""
    return [
        ("  CPU ms", 1000 * duel["cpu_seconds"], None, ""),
        ("  floor, CPU ms", 1000 * duel["floor_cpu_seconds"], None, ""),
        ("  floor, times the loop", duel["times_the_loop_at_the_floor"], None, ""),
    ]


def report(results: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Lines of (what, figure, floor, reached)."""
    large, rows = results["large_passes"], results["many_rows"]
    foreign, own = results["baseline"]["engines_files"], results["baseline"]["own_format"]
    figures = [
        ("times the published loop", foreign["times_the_loop"], 10, ">="),
        *floor_lines(foreign),
        ("times a lean numpy loop", own["times_the_loop"], None, ""),
        *floor_lines(own),
        ("GB/s of one side, one core", large["gb_per_second_one_side"], 1, ">="),
        ("two jobs over one", large["jobs_2_times_one"], min(1.5, large["reading_2_times_one"]), ">="),
        ("peak, large passes, MiB", large["peak_bytes"] / MIB, large["limit_bytes"] / MIB, "<="),
        ("peak, many rows, MiB", rows["peak_bytes"] / MIB, rows["limit_bytes"] / MIB, "<="),
    ]
    lines = []
    for what, figure, floor, sign in figures:
        reached = floor is None or (figure >= floor if sign == ">=" else figure <= floor)
        lines.append((what, f"{figure:.2f}", "none" if floor is None else f"{sign} {floor:.2f}", reached))
    return lines


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "read-part":
            begin = time.perf_counter()
            read_all(Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
            print(time.perf_counter() - begin)
            return 0
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny dumps: does the benchmark run at all?")
    parser.add_argument("--folder", type=Path, help="where the dumps go for a while: about 5 GB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        results = {
            "baseline": against_the_loop(folder, args.small),
            "large_passes": large_passes(folder, args.small),
            "many_rows": many_rows(folder, args.small),
        }
    lines = report(results)
    for what, figure, floor, reached in lines:
        print(f"{what:<28}{figure:>10}   {floor:<12}{'reached' if reached else 'MISSED'}")
    environment = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    print(f"{environment}")
    if args.record:
        document = {"date": datetime.date.today().isoformat(), "environment": environment, **results}
        RESULT.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

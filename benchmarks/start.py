"""What the plugin and `specalign check` cost at start.

    python benchmarks/start.py [--runs N] [--record] [--gate] [DRAFT TARGET [CHECK ARGUMENT ...]]

Each figure is the median difference of paired runs: with and without are started in turn, in alternating order, so that a
machine that slows down slows both. The noise is what the same measure says about two equal commands. Wall time is what a user
waits; CPU time is shown beside it, since other work on the machine does not add to it, and `--gate` goes by the smaller of the
two.

    plugin   pytest that collects an empty folder, `-p specalign` over nothing       at most  50 ms
    check    `specalign check DRAFT TARGET` over `python -c pass`                    at most 300 ms

Without DRAFT and TARGET, two configs with the numbers of a GPT-OSS target and its EAGLE3 head are written for the run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "start.json"

DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 2880,
    "num_hidden_layers": 1,
    "vocab_size": 201088,
    "draft_vocab_size": 201088,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 30, 36], "use_aux_hidden_state": True},
}
TARGET = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "vocab_size": 201088,
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """One command over another, in milliseconds: medians, and the median of the paired differences."""

    name: str
    target_ms: float
    floor_ms: float
    with_ms: float
    wall_ms: float
    cpu_ms: float
    noise_ms: float

    @property
    def ratio(self) -> float:
        return self.with_ms / self.floor_ms

    @property
    def ok(self) -> bool:
        return min(self.wall_ms, self.cpu_ms) <= self.target_ms

    def format(self) -> str:
        verdict = "within" if self.ok else "OVER"
        return (
            f"{self.name:8}{self.wall_ms:7.1f} ms wall, {self.cpu_ms:6.1f} ms CPU, noise {self.noise_ms:4.1f} ms"
            f" | {self.with_ms:6.1f} over a floor of {self.floor_ms:6.1f} ms, ratio {self.ratio:.2f}"
            f" | {verdict} the target of {self.target_ms:.0f} ms"
        )


@dataclasses.dataclass(frozen=True)
class Command:
    """What to start, and the exit codes that mean that it did its work."""

    argv: tuple[str, ...]
    good: frozenset[int]

    def time(self, env: dict[str, str]) -> tuple[float, float]:
        """Wall and CPU seconds of one run."""
        before, start = _children_cpu(), time.perf_counter()
        done = subprocess.run(self.argv, env=env, capture_output=True, text=True, check=False)
        wall, cpu = time.perf_counter() - start, _children_cpu() - before
        if done.returncode not in self.good:
            raise SystemExit(f"{' '.join(self.argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return wall, cpu


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", nargs="*", metavar="DRAFT TARGET", help="arguments of `specalign check`")
    parser.add_argument("--runs", type=int, default=15, help="paired runs of each figure (default 15)")
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a figure is over its target")
    args, more = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        costs = [measure_plugin(Path(folder), args.runs), measure_check([*args.check, *more], Path(folder), args.runs)]
    about = environment(args.runs)
    for cost in costs:
        print(cost.format())
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if args.record:
        record(costs, about)
    return 1 if args.gate and not all(cost.ok for cost in costs) else 0


def measure_plugin(folder: Path, runs: int) -> Cost:
    empty = folder / "empty"
    empty.mkdir()
    bare = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(empty), str(empty))
    nothing_collected = frozenset({5})
    env = clean_environ() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return compare(
        "plugin", 50, Command(bare, nothing_collected), Command((*bare, "-p", "specalign"), nothing_collected), env, runs
    )


def measure_check(arguments: list[str], folder: Path, runs: int) -> Cost:
    if not arguments:
        for name, config in (("draft", DRAFT), ("target", TARGET)):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))
        arguments = [str(folder / "draft"), str(folder / "target")]
    bare = Command((sys.executable, "-c", "pass"), frozenset({0}))
    check = Command((sys.executable, "-m", "specalign.cli.main", "check", *arguments), frozenset({0, 1}))
    return compare("check", 300, bare, check, clean_environ(), runs)


def compare(name: str, target_ms: float, floor: Command, command: Command, env: dict[str, str], runs: int) -> Cost:
    """Run both in turn `runs` times, after one run of each that warms the file cache and writes the bytecode."""
    floor.time(env), command.time(env)
    pairs, noise = [], []
    for turn in range(runs):
        order = (floor, command) if turn % 2 == 0 else (command, floor)
        timed = {id(which): which.time(env) for which in order}
        pairs.append((timed[id(floor)], timed[id(command)]))
        noise.append(abs(floor.time(env)[0] - timed[id(floor)][0]))
    return Cost(
        name,
        target_ms,
        floor_ms=_median_ms(without[0] for without, _ in pairs),
        with_ms=_median_ms(with_it[0] for _, with_it in pairs),
        wall_ms=_median_ms(with_it[0] - without[0] for without, with_it in pairs),
        cpu_ms=_median_ms(with_it[1] - without[1] for without, with_it in pairs),
        noise_ms=_median_ms(noise),
    )


def environment(runs: int) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "pytest": importlib.metadata.version("pytest"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "runs": runs,
    }


def record(costs: list[Cost], about: dict[str, object]) -> None:
    figures = [dataclasses.asdict(cost) | {"ratio": cost.ratio, "ok": cost.ok} for cost in costs]
    rounded = [{key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()} for row in figures]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"date": today, "environment": about, "figures": rounded}, indent=2) + "\n")
    print(f"written to {RESULT.relative_to(ROOT)}")


def clean_environ() -> dict[str, str]:
    """Ours without what would change the measure; the sources come first, so that a bare checkout can be measured."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "SPECALIGN_"))}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT / "impl"), str(ROOT)])}


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _median_ms(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * 1000


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())

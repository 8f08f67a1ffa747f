"""`python -m tests.mutation.run`: mutants of the library, and whether a test notices each of them.

All mutants of `layer_ids`, and seeded samples over `capture` and `draft`, and over `dump` and `compare`. A mutant that survives is explained: only the wording of a
message differs, or `explained.toml` says why no test can tell it. Anything else is printed as a diff, and the exit status is 1.

mutmut looks for code in `src`, so it works on a copy of the tree under `build/mutants`, in which `impl` has that name.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.classify import Explanation, Mutant, read_explained, read_run

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"
EXPLAINED = Path(__file__).with_name("explained.toml")
NOTHING = "no mutant has this name"
COPIED = ("src", "pytest_specalign", "tests", "conftest.py", "examples", "docs", "README.md", "CHANGELOG.md", "Makefile")

LAYER_ID_TESTS = tuple(
    f"tests/unit/{name}"
    for name in (
        "test_layer_ids.py",
        "test_layer_ids_edges.py",
        "test_layer_ids_captured.py",
        "test_layer_ids_views.py",
        "test_engine_data.py",
        "test_meaning.py",
        "test_files.py",
        "test_sources.py",
        "test_tensor_files.py",
        "test_tensor_headers.py",
        "test_example_heads.py",
        "layer_ids",
        "checks",
        "cli/test_check.py",
        "cli/test_ids_and_engines.py",
    )
)
UNFIT = "not compiles and not imports_nothing_heavy"
"""Tests that cannot judge a mutant: mutmut's way into each function is a graph break, and a fresh process knows no `src`."""

SAMPLED = {
    "sample": (("capture", "draft"), ("tests/unit/capture", "tests/unit/draft")),
    "compared": (("dump", "compare"), ("tests/unit/dump", "tests/unit/compare")),
}
"""Rooms of which a sample is run, and the tests that are asked."""


@dataclasses.dataclass(frozen=True)
class Campaign:
    """One run of mutmut: the code it mutates, the tests that it asks, and how many mutants (None: all of them)."""

    name: str
    places: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int | None = None

    @property
    def folder(self) -> Path:
        """The copy that mutmut works in."""
        return BUILD / self.name


def campaigns(only: Sequence[str], sample: int) -> list[Campaign]:
    """What to run: rooms or modules as `layer_ids`, `layer_ids/rules`, `capture`; all three rooms when `only` is empty."""
    rooms = ("layer_ids", *(room for rooms, _ in SAMPLED.values() for room in rooms))
    wanted = tuple(only) or rooms
    for place in wanted:
        if place.split("/")[0] not in rooms:
            raise SystemExit(f"{place}: there are {', '.join(rooms)}, or a module as layer_ids/rules")

    def of(*names: str) -> tuple[str, ...]:
        return tuple(place for place in wanted if place.split("/")[0] in names)

    every = [Campaign("layer_ids", of("layer_ids"), LAYER_ID_TESTS)]
    every += [Campaign(name, of(*sampled), tests, sample) for name, (sampled, tests) in SAMPLED.items()]
    return [campaign for campaign in every if campaign.places]


def mutmut_table(campaign: Campaign) -> str:
    """The table that mutmut reads."""
    mutated = [f"src/specalign/{place}{end}" for place in campaign.places for end in (".py", "/*.py")]
    keys = {
        "source_paths": ["src/specalign"],
        "only_mutate": mutated,
        "pytest_add_cli_args_test_selection": list(campaign.tests),
        "pytest_add_cli_args": ["-k", UNFIT],
        "also_copy": list(COPIED),
    }
    return "\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def prepare(campaign: Campaign) -> None:
    """A fresh copy of what git knows and of what it does not ignore, with `impl` called `src`."""
    shutil.rmtree(campaign.folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        copy = campaign.folder / ("src" + name.removeprefix("impl") if name.startswith("impl/") else name)
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    project = campaign.folder / "pyproject.toml"
    text = project.read_text("utf-8")
    if 'pythonpath = ["impl", "."]' not in text:
        raise SystemExit(
            'pyproject.toml: the line pythonpath = ["impl", "."] is not there, so the copy would test the wrong code'
        )
    project.write_text(text.replace('pythonpath = ["impl", "."]', 'pythonpath = ["src", "."]') + mutmut_table(campaign), "utf-8")


def run_mutmut(campaign: Campaign, names: Iterable[str] = ()) -> None:
    """mutmut over the names, or over all mutants; its status says nothing about survivors, so `read_run` looks at its notes.

    One thread: mutmut forks after the tests have run once, a pool of threads does not live on in the fork, and a test that waits
    for it in vain would pass for one that noticed its mutant.
    """
    alone = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "mutmut", "run", *names], cwd=campaign.folder, env=alone, check=False)


def sampled_names(campaign: Campaign, size: int, seed: int) -> list[str]:
    """A seeded choice out of all mutants. mutmut writes their names before it finds that it has been asked for none of them."""
    run_mutmut(campaign, [NOTHING])
    names: list[str] = []
    for meta in (campaign.folder / "mutants").rglob("*.py.meta"):
        names += json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    return random.Random(seed).sample(sorted(names), min(size, len(names)))


def run(campaign: Campaign, seed: int) -> list[Mutant]:
    """The mutants of a campaign that were run."""
    prepare(campaign)
    if campaign.sample is None:
        run_mutmut(campaign)
    else:
        names = sampled_names(campaign, campaign.sample, seed)
        if names:
            run_mutmut(campaign, names)
    mutants = read_run(campaign.folder)
    if not mutants:
        raise SystemExit(f"{campaign.name}: mutmut ran no mutant; see what it printed above")
    return mutants


def table(mutants: Sequence[Mutant], explained: Sequence[Explanation]) -> tuple[str, list[Mutant]]:
    """The counts for each module as text, and the mutants that nothing explains."""
    rows: dict[str, collections.Counter[str]] = {}
    unexplained = []
    for mutant in mutants:
        fate = fate_of(mutant, explained)
        for room in (mutant.module, "total"):
            rows.setdefault(room, collections.Counter())[fate] += 1
        if fate == "unexplained":
            unexplained.append(mutant)
    rows["total"] = rows.pop("total", collections.Counter())
    columns = ("killed", "text", "explained", "unexplained")
    lines = [f"{'room':<34}{'mutants':>9}" + "".join(f"{column:>13}" for column in columns)]
    for room, counts in rows.items():
        lines.append(f"{room:<34}{counts.total():>9}" + "".join(f"{counts[column]:>13}" for column in columns))
    return "\n".join(lines), unexplained


def fate_of(mutant: Mutant, explained: Sequence[Explanation]) -> str:
    """The column of the table that a mutant belongs to."""
    if mutant.killed:
        return "killed"
    if mutant.text:
        return "text"
    return "explained" if any(entry.covers(mutant) for entry in explained) else "unexplained"


def stale(mutants: Sequence[Mutant], explained: Sequence[Explanation]) -> list[str]:
    """Explained changes of functions that were run, which no survivor shows any more: the code or a test has moved on."""
    functions = {mutant.where for mutant in mutants}
    seen = {(mutant.where, mutant.added) for mutant in mutants if not mutant.killed}
    pairs = [(entry.where, line) for entry in explained for line in sorted(entry.becomes) if entry.where in functions]
    return [f"{where}: {line}" for where, line in pairs if (where, line) not in seen]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every survivor is explained, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=200, help="mutants of each sample (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROOM", help="layer_ids, layer_ids/rules, capture, dump, …")
    parser.add_argument("--again", action="store_true", help="judge the last run's survivors anew, and run nothing")
    options = parser.parse_args(arguments)
    explained, mutants, old = read_explained(EXPLAINED), [], []
    for campaign in campaigns(options.only, options.sample):
        found = read_run(campaign.folder) if options.again else run(campaign, options.seed)
        mutants += found
        old += stale(found, explained) if campaign.sample is None else []
    text, unexplained = table(mutants, explained)
    for mutant in unexplained:
        print(mutant.format(), end="\n\n")
    for line in old:
        print(f"explained.toml explains what no mutant shows: {line}")
    print(text)
    return 1 if unexplained or old or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())

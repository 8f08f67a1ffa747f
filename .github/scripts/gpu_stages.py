"""Reads gpu_stages.toml and runners.yml, and prints the jobs of gpu.yml as a matrix.

    python3 gpu_stages.py --stages FILE --runners FILE [--only STAGE] [--unsharded]

It prints `matrix=JSON`, for $GITHUB_OUTPUT. --only takes one stage, or `all`; --unsharded makes one job of each stage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_RUNNER = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*): \[(?P<labels>[A-Za-z0-9._-]+(?:, [A-Za-z0-9._-]+)*)\]")


class BadFileError(Exception):
    """A file that does not say what it must; the message says where and what."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One table of gpu_stages.toml; the file describes the fields."""

    name: str
    runner: str = ""
    gpus: int = 1
    shards: int = 1
    tests: str = ""
    select: str = ""
    timeout: int = 60
    minimum: int = 1
    required: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("its name may hold small letters, digits and '-' only")
        for field, kind in (("runner", str), ("tests", str), ("select", str), ("required", tuple)):
            if not isinstance(getattr(self, field), kind):
                raise ValueError(f"{field} is {getattr(self, field)!r}: give a {kind.__name__}")
        for field in ("gpus", "shards", "timeout", "minimum"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} is {value!r}: give a whole number of at least 1")


def read_stages(file: Path) -> list[Stage]:
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFileError(f"{file}: {error}") from error
    if not tables:
        raise BadFileError(f"{file}: no stage")
    return [_stage(file, name, table) for name, table in tables.items()]


def _stage(file: Path, name: str, table: Any) -> Stage:
    try:
        return Stage(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{file}: [{name}]: {error}") from error


def read_runners(file: Path) -> dict[str, list[str]]:
    """Name → labels. The one form of a line that is allowed means the same in YAML, which the standard library cannot read."""
    runners: dict[str, list[str]] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _RUNNER.fullmatch(line)
        if match is None or match["name"] in runners:
            raise BadFileError(f"{file}:{number}: {line!r}: write each name once, as `name: [label, label]`")
        runners[match["name"]] = match["labels"].split(", ")
    return runners


def choose(stages: list[Stage], only: str) -> list[Stage]:
    chosen = [stage for stage in stages if only in ("all", stage.name)]
    if not chosen:
        raise BadFileError(f"no stage is called {only!r}; there are {', '.join(stage.name for stage in stages)}")
    return chosen


def jobs(stages: list[Stage], runners: dict[str, list[str]]) -> list[dict[str, Any]]:
    """One row for each job: a stage's shard."""
    for stage in stages:
        if stage.runner not in runners:
            raise BadFileError(f"[{stage.name}]: runner is {stage.runner!r}; runners.yml has {', '.join(runners) or 'none'}")
    return [
        {
            "stage": stage.name,
            "runner": json.dumps(runners[stage.runner]),
            "gpus": stage.gpus,
            "shard": f"{number}/{stage.shards}",
            "artifact": f"gpu-{stage.name}-{number}-of-{stage.shards}",
            "tests": stage.tests,
            "select": stage.select,
            "timeout": stage.timeout,
        }
        for stage in stages
        for number in range(1, stage.shards + 1)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=Path, required=True)
    parser.add_argument("--runners", type=Path, required=True)
    parser.add_argument("--only", default="all")
    parser.add_argument("--unsharded", action="store_true")
    args = parser.parse_args()
    try:
        stages = choose(read_stages(args.stages), args.only)
        if args.unsharded:
            stages = [dataclasses.replace(stage, shards=1) for stage in stages]
        rows = jobs(stages, read_runners(args.runners))
    except BadFileError as error:
        print(f"::error::{error}", file=sys.stderr)
        return 1
    print(f"matrix={json.dumps({'include': rows})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What is told to the processes of one run, as a JSON file in the run's own folder (mode 700)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.load(open(sys.argv[1] + '/plan.json', encoding='utf-8'))['import_path'];"
    " from specalign.ranks.{module} import main; main(sys.argv)"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Attributes:
    parent: pid of the process that asked.
    world_size: number of ranks.
    backend: for `init_process_group`.
    devices: UUID of the GPU of each rank; empty for none.
    timeout: seconds for the function, from when all ranks have joined.
    start_timeout: seconds until then.
    grace: seconds that the others have when one rank has failed.
    end_timeout: seconds for the ranks to end after all have returned.
    import_path: `sys.path` of the process that asked.
    modules: as `named_modules` gives them.
    """

    parent: int
    world_size: int
    backend: str
    devices: tuple[str, ...]
    timeout: float
    start_timeout: float
    grace: float
    end_timeout: float
    import_path: tuple[str, ...]
    modules: Mapping[str, Mapping[str, Any]]

    @property
    def group_timeout(self) -> float:
        """Seconds for torch's own operations: later than every limit here, which say more about who was late, and where."""
        return max(self.timeout, self.start_timeout) + 60

    def write(self, folder: Path) -> None:
        plan_file(folder).write_text(json.dumps(dataclasses.asdict(self)), "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        return cls(**json.loads(plan_file(folder).read_text("utf-8")))


def plan_file(folder: Path) -> Path:
    return folder / "plan.json"


def call_file(folder: Path) -> Path:
    return folder / "call.pickle"


def store_file(folder: Path) -> Path:
    """Of torch's FileStore, where the ranks meet: no port, so none that somebody else may take."""
    return folder / "store"


def result_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.result"


def failure_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.failure"


def stacks_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stacks"


def python_command(module: str, *args: object) -> list[str]:
    """The command of a Python like this one that runs `main` of a module of this room, with the import path of the plan."""
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()  # what multiprocessing gives its children
    safe = [] if "-P" in flags else ["-P"]  # the current folder must not stand in for json
    return [sys.executable, *flags, *safe, "-c", _BOOT.format(module=module), *map(str, args)]

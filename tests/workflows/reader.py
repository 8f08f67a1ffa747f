"""The workflows as data: jobs, steps, and the shell blocks in them, of this repository and of the examples."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted([*(GITHUB / "workflows").glob("*.yml"), *(ROOT / "examples" / "github-actions").glob("*.yml")])
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yml"))


@dataclasses.dataclass(frozen=True)
class Step:
    """One step; `job` is empty in a composite action."""

    file: Path
    job: str
    number: int
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.data.get("name") or self.data.get("uses") or self.data.get("run", "").splitlines()[0])

    @property
    def script(self) -> str | None:
        return self.data.get("run")

    @property
    def uses(self) -> str | None:
        return self.data.get("uses")

    @property
    def title(self) -> str:
        folder = self.file.parent.name
        return f"{folder}/{self.file.name}: {self.job} {self.number}: {self.name}"


@functools.cache
def load(file: Path) -> dict[str, Any]:
    """Every value is a text, so that `on` stays a word, and `3.10` and `true` what was written."""
    loaded: dict[str, Any] = yaml.load(file.read_text("utf-8"), yaml.BaseLoader)
    return loaded


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(file).get("jobs", {})
    return found


def steps(file: Path) -> Iterator[Step]:
    lists = {name: job.get("steps", []) for name, job in jobs(file).items()} or {"": load(file)["runs"]["steps"]}
    for job, found in lists.items():
        for number, data in enumerate(found, start=1):
            yield Step(file, job, number, data)


def all_steps() -> list[Step]:
    return [step for file in (*WORKFLOWS, *ACTIONS) for step in steps(file)]


def find(file: Path, name: str) -> Step:
    """The one step of that name."""
    (step,) = (step for step in steps(file) if step.data.get("name") == name)
    return step


def evaluate(expression: str, **known: Any) -> Any:
    """The value of an expression of GitHub's, as far as our conditions need: names, texts, == != && || ! contains fromJSON always.

    A name that is not in `known` (like {"github.event_name": "push"}) is null, as GitHub has it.
    """
    text = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", expression.strip(), flags=re.DOTALL).replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    parts = re.split(r"('[^']*')", text)
    parts[::2] = [
        re.sub(r"\b(?:github|inputs|matrix|steps)(?:\.[\w-]+)+", lambda name: f"known.get({name[0]!r})", part)
        for part in parts[::2]
    ]
    functions = {
        "known": known["names"],
        "contains": lambda where, what: what in where,
        "fromJSON": yaml.safe_load,
        "always": lambda: True,
    }
    return eval(" ".join("".join(parts).split()), {"__builtins__": {}}, functions)

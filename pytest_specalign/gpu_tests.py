"""Which tests of a run are GPU tests, and what became of them before they could run: deselected, dropped, a module skipped.

This is seen where tests are collected. Under xdist that is each worker, which sends it to the controller when it ends.

What nobody can see: a file that was never looked at (`collect_ignore`, `--ignore`, `norecursedirs`), a mark that is added to a
test after it was taken out, and a test class that a skipped module would have inherited its mark from.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from pytest_specalign.state import GPU_TEST, SELECTION

FIXTURES: Final = frozenset({"gpu_lease", "module_gpu_lease", "session_gpu_lease", "specalign_device"})

SHARDS: Final = {
    "splits": "--splits",  # pytest-split
    "num_shards": "--num-shards",  # pytest-shard
    "test-group-count": "--test-group-count",  # pytest-test-groups
}
"""Options of plugins that give a run its share of the tests: dest → flag. That the rest is not run is somebody's wish."""

NARROWING: Final = ("lf", "stepwise", "ignore", "ignore_glob")
"""Options of pytest that leave out whole files, without a word about their tests."""


@dataclasses.dataclass
class Selection:
    """What collection did with the GPU tests, in one process.

    Attributes:
        selected: node ids of the GPU tests that are to run.
        wished: how many GPU tests an option of the run took out: -k, -m, --deselect, --lf, a shard.
        dropped: node id → who took it out, where no option asked for that.
        modules: path of a module with GPU tests → why it was skipped as a whole.
        is_narrowed: an option took out tests of any kind, so that this run is a part.
        by: node id → who called `pytest_deselected`, until collection ends.
    """

    selected: list[str] = dataclasses.field(default_factory=list)
    wished: int = 0
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    is_narrowed: bool = False
    by: dict[str, str] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only: what xdist carries."""
        return dataclasses.asdict(dataclasses.replace(self, by={}))


def merge(parts: Iterable[Selection]) -> Selection:
    """What the workers of one run saw: mostly each of them the same."""
    whole = Selection()
    for part in parts:
        whole.selected = list(dict.fromkeys([*whole.selected, *part.selected]))
        whole.wished = max(whole.wished, part.wished)
        whole.dropped |= part.dropped
        whole.modules |= part.modules
        whole.is_narrowed |= part.is_narrowed
    return whole


def is_gpu_test(item: pytest.Item) -> bool:
    """Whether a test has the mark `gpu`, uses a lease, or asked for one while it ran."""
    uses = not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return uses or item.get_closest_marker("gpu") is not None or item.stash.get(GPU_TEST, False)


def watch_selection(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Around every `pytest_collection_modifyitems`: what is missing afterwards was taken out."""
    seen = config.stash.get(SELECTION, None)
    before = list(items) if seen is not None else []
    yield
    if seen is None:
        return
    kept = set(map(id, items))
    seen.selected = [item.nodeid for item in items if is_gpu_test(item)]
    sharded = _sharded(config)
    seen.is_narrowed |= sharded or any(config.getoption(name, default=None) for name in NARROWING)
    for item in before:
        if id(item) not in kept and is_gpu_test(item):
            who = seen.by.get(item.nodeid, "a plugin or conftest that did not call pytest_deselected")
            if sharded or not who:
                seen.wished += 1
            else:
                seen.dropped[item.nodeid] = who


def note_deselected(items: Sequence[pytest.Item]) -> None:
    """Somebody says that these are taken out. An empty name stands for pytest itself, which does it where an option says so."""
    seen = items[0].config.stash.get(SELECTION, None) if items else None
    if seen is None:
        return
    who = _caller(items[0].config.rootpath)
    seen.is_narrowed |= not who
    for item in items:
        if is_gpu_test(item):
            seen.by[item.nodeid] = who


def note_skipped(collector: pytest.Collector, report: pytest.CollectReport) -> pytest.CollectReport:
    """Remember a module, or a package, that is skipped as a whole and holds GPU tests."""
    seen = collector.config.stash.get(SELECTION, None)
    if seen is not None and report.skipped and _holds_gpu_tests(collector.path):
        seen.modules[collector.nodeid] = skip_reason(report.longrepr)
    return report


def skip_reason(longrepr: object) -> str:
    """What was said, out of the (path, line, text) that pytest makes of a skip."""
    text = longrepr[2] if isinstance(longrepr, tuple) and len(longrepr) == 3 else longrepr
    return str(text).removeprefix("Skipped: ").strip() or "no reason given"


def _holds_gpu_tests(path: Path) -> bool:
    """Of a module, or of any module of a package."""
    names_gpu_tests: Any = importlib.import_module("pytest_specalign.gpu_sources").names_gpu_tests
    if path.name == "__init__.py":
        path = path.parent
    return any(map(names_gpu_tests, path.rglob("*.py") if path.is_dir() else [path]))


def _sharded(config: pytest.Config) -> bool:
    values = [config.getoption(name, default=None) for name in SHARDS]
    return any(isinstance(value, int) and value > 1 for value in values)


def _caller(rootpath: Path) -> str:
    """Who called the hook: the first frame that is neither pluggy's nor ours; empty for pytest itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        if package == "_pytest" and not name.startswith("_pytest.config"):
            return ""
        if package not in ("pluggy", "pytest_specalign", "_pytest"):
            file = Path(frame.f_code.co_filename)
            return str(file.relative_to(rootpath)) if file.is_relative_to(rootpath) else name
        frame = frame.f_back
    return "unknown code"

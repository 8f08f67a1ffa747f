"""How a run treats goldens: what it may write, where artifacts go, which store it asks; and what it did."""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.options import get_option
from pytest_specalign.state import GOLDEN_RUN

if TYPE_CHECKING:
    from specalign.golden.stores import Fetcher

_FALSE = frozenset({"", "0", "false", "no", "off"})
_MIB = 2**20
_LIMIT_MIB = 256


@dataclasses.dataclass
class GoldenRun:
    """The settings of a run, and what this process did so far.

    Attributes:
        mode: "check", "new" or "update".
        patterns: of `--specalign-golden-force`: only keys that fit are written.
        ci: whether this is CI, where nothing is written but what a pattern names.
        artifacts: folder for both sides of what differs, or None.
        limit: most bytes of tensors in the artifacts of one failure.
        used: the goldens that were checked or written, with the tests that did.
        owners: the same by case-folded name, with the test that was first.
        written: one line for each golden that was written.
        matched: the patterns that fitted a key.
    """

    mode: str
    patterns: tuple[str, ...]
    ci: bool
    artifacts: Path | None
    limit: int
    used: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    owners: dict[str, str] = dataclasses.field(default_factory=dict)
    written: list[str] = dataclasses.field(default_factory=list)
    matched: set[str] = dataclasses.field(default_factory=set)
    fetcher: Fetcher | None = None

    def may_write(self, text: str, *, missing: bool) -> bool:
        """Whether the golden of that key may be written: one that is missing, or in the place of another.

        Args:
            text: node id of the test, and `::name` of the result if it has one.
        """
        if self.mode == "check" or (self.mode == "new" and not missing):
            return False
        matches = importlib.import_module("specalign.golden.keys").matches
        fitting = [pattern for pattern in self.patterns if matches(pattern, text)]
        self.matched.update(fitting)
        return bool(fitting) or not (self.patterns or self.ci)

    def why_not(self, text: str) -> str:
        """What to do about a missing golden that may not be written."""
        if self.mode == "check":
            return "write it with --specalign-golden=new where you trust the result, look at it, and commit it"
        if self.patterns:
            return f"no --specalign-golden-force fits {text}"
        return f"this is CI, where none is written unless forced by name: --specalign-golden-force='{text}'"


def get_run(config: pytest.Config) -> GoldenRun:
    """How this run treats goldens; read the first time only.

    Raises:
        pytest.UsageError: an update in CI that names no golden.
    """
    if GOLDEN_RUN not in config.stash:
        mode, patterns = get_option(config, "golden") or "check", get_option(config, "golden_force")
        ci = os.environ.get("CI", "").strip().lower() not in _FALSE
        if mode == "update" and ci and not patterns:
            raise pytest.UsageError(
                "--specalign-golden=update: this is CI (the variable CI is set), where goldens are not updated unless named: add"
                " --specalign-golden-force=PATTERN, or update where you can look at the result"
            )
        limit = (get_option(config, "artifacts_limit") or _LIMIT_MIB) * _MIB
        config.stash[GOLDEN_RUN] = GoldenRun(str(mode), patterns, ci, get_option(config, "artifacts"), limit)
    return config.stash[GOLDEN_RUN]


def get_fetcher(config: pytest.Config) -> Fetcher:
    """What fetches goldens from the store that the hook names.

    Raises:
        GoldenError: no hook names one, or what it returns is none.
    """
    run = get_run(config)
    if run.fetcher is None:
        stores = importlib.import_module("specalign.golden.stores")
        told: Any = config.hook.pytest_specalign_golden_store(config=config)
        if told is None:
            raise importlib.import_module("specalign.golden.errors").GoldenError(
                "this golden lies in a store, and nothing says which: implement pytest_specalign_golden_store(config) in a"
                " conftest, and return specalign.golden.stores.FsspecStore(url) or the like"
            )
        run.fetcher = stores.Fetcher(stores.check_store(told))
    return run.fetcher

"""What a test hands to a golden, tensors or a dump: how it is held against one, written as one, and shown beside one."""

from __future__ import annotations

import abc
import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_specalign.golden_run import get_fetcher

if TYPE_CHECKING:
    from specalign.compare.leaves import Leaf
    from specalign.compare.modes import Mode
    from specalign.dump.passes import Dump
    from specalign.golden.check import GoldenReport, Nonfinite
    from specalign.golden.environment import Environment
    from specalign.golden.files import Golden, Place
    from specalign.golden.keys import Key

Keep = Literal["values", "fingerprint", "external"]
KEEPS = ("values", "fingerprint", "external")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a test says of one check.

    Attributes:
        name: of the result.
        mode: "bits", "ulp:N", "abs:X", "rel:X", or a `Mode`.
        keep: how the golden is written.
        arch: where the result was computed, if that is not where its tensors are; "any" for every machine alike.
        allow_nonfinite: "no", "inf" or "all"; None goes by the names of the tensors.
    """

    name: str = ""
    mode: str | Mode = "bits"
    keep: Keep = "values"
    arch: str | None = None
    allow_nonfinite: Nonfinite | None = None


@dataclasses.dataclass(frozen=True)
class Side(abc.ABC):
    """A result, as the side that is held against the golden."""

    asked: Asked
    key: Key
    environment: Environment
    mode: Mode

    @property
    @abc.abstractmethod
    def form(self) -> str:
        """The form in which its golden would be written."""

    def form_of(self, golden: Golden) -> str:
        """The form in which a golden was written, in the words of `form`."""
        return golden.document.form

    @abc.abstractmethod
    def check(self, golden: Golden) -> GoldenReport:
        """Hold it against a golden."""

    @abc.abstractmethod
    def write(self, place: Place, config: pytest.Config) -> Path:
        """Write it as a golden, and return the golden's path."""

    @abc.abstractmethod
    def write_artifacts(self, folder: Path, report: GoldenReport, golden: Golden, limit: int) -> None:
        """Write what differs of both sides."""

    def refuse_to_write(self) -> tuple[str, ...]:
        """Why no golden may be made of it."""
        return ()

    def report(self, path: Path, problems: tuple[str, ...], compared: int = 0) -> GoldenReport:
        """A report without a comparison."""
        made: GoldenReport = library("check").GoldenReport(self.key, path, str(self.mode), compared, problems=problems)
        return made


@dataclasses.dataclass(frozen=True)
class TensorSide(Side):
    """Tensors."""

    leaves: Sequence[Leaf]

    @property
    def form(self) -> str:
        return self.asked.keep

    def check(self, golden: Golden) -> GoldenReport:
        check = library("check").check_tensors
        found: GoldenReport = check(golden, self.leaves, self.environment, self.mode, self.asked.allow_nonfinite)
        return found

    def refuse_to_write(self) -> tuple[str, ...]:
        return _refusals(library("check").illegal_values(self.asked.name, self.leaves, self.asked.allow_nonfinite))

    def write(self, place: Place, config: pytest.Config) -> Path:
        files = library("files")
        if self.asked.keep != "external":
            path: Path = files.write_golden(place, self.key, self.environment, self.leaves, self.asked.keep)
            return path
        store = get_fetcher(config).store
        written: Path = library("stores").write_external(store, place, self.key, self.environment, self.leaves)
        return written

    def write_artifacts(self, folder: Path, report: GoldenReport, golden: Golden, limit: int) -> None:
        library("artifacts").write_tensor_sides(folder, report, golden, self.leaves, limit)


@dataclasses.dataclass(frozen=True)
class DumpSide(Side):
    """A dump."""

    dump: Dump

    @property
    def form(self) -> str:
        return "dump of fingerprints" if self.asked.keep == "fingerprint" else _form_of(self.dump)

    def form_of(self, golden: Golden) -> str:
        return _form_of(library("dumps").open_golden_dump(golden))

    def check(self, golden: Golden) -> GoldenReport:
        found: GoldenReport = library("dumps").check_dump(golden, self.dump, self.environment, self.mode)
        return found

    def refuse_to_write(self) -> tuple[str, ...]:
        return _refusals(library("dumps").illegal_values(self.dump))

    def write(self, place: Place, config: pytest.Config) -> Path:
        hashed = self.asked.keep == "fingerprint"
        path: Path = library("dumps").write_dump(place, self.key, self.environment, self.dump, fingerprint=hashed)
        return path

    def write_artifacts(self, folder: Path, report: GoldenReport, golden: Golden, limit: int) -> None:
        opened = library("dumps").open_golden_dump(golden)
        library("artifacts").write_dump_sides(folder, report, opened, self.dump, limit)


def _form_of(dump: Dump) -> str:
    hashed = any(spec.fingerprint for info in dump.infos() for spec in info.tensors.values())
    return "dump of fingerprints" if hashed else "dump"


def _refusals(bad: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"no golden is written of this result: {text}" for text in bad)


def library(module: str) -> Any:
    """A module of the library's room, imported when the first golden is checked and not when the plugin starts."""
    return importlib.import_module(f"specalign.golden.{module}")

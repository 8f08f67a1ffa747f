"""Whose golden is where: the key and the folder of a collected test, and tests that would share a golden."""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_specalign.options import get_option
from pytest_specalign.state import GOLDEN_TESTS

if TYPE_CHECKING:
    from specalign.golden.keys import Key

FIXTURE = "specalign_golden"
FOLDER = "__golden__"


@dataclasses.dataclass(frozen=True)
class Owner:
    """A test as the owner of goldens.

    Attributes:
        parts: module, classes, function and parameters, as in `specalign.golden.keys.Key`.
        folder: of its goldens.
        place: that folder relative to rootdir, with slashes.
        module_path: the file of the test.
    """

    parts: tuple[str, str, str, str | None]
    folder: Path
    place: str
    module_path: Path

    @property
    def test(self) -> str:
        """What usage records call the test: the folder, and `Key.test`; no room of the library is needed to tell it."""
        module, classes, function, params = self.parts
        path = "::".join(part for part in (self.place, module, *classes.split("."), function) if part)
        return path if params is None else f"{path}[{params}]"

    def golden(self, name: str) -> str:
        """What usage records call its golden of that name."""
        return f"{self.place}/{self.named(name).stem}"

    def named(self, name: str) -> Key:
        """The key of its golden of that name."""
        made: Key = importlib.import_module("specalign.golden.keys").Key(*self.parts, name)
        return made


def owner_of(item: pytest.Item) -> Owner:
    """The owner that a collected test is.

    Goldens lie in `__golden__` beside the test; in `<rootdir>/__golden__/<package>` for a test of an installed package; and
    below `--specalign-golden-dir`, where that is set, in the same folders as the tests below rootdir.
    """
    root, path = item.config.rootpath, item.path
    given = get_option(item.config, "golden_dir")
    ours = path.is_relative_to(root) and "site-packages" not in path.parts
    if given is not None:
        folder = given / (path.parent.relative_to(root) if ours else _package(item))
    else:
        folder = path.parent / FOLDER if ours else root / FOLDER / _package(item)
    return Owner(_parts(item), folder, Path(os.path.relpath(folder, root)).as_posix(), path)


def uses_golden(item: pytest.Item) -> bool:
    """Whether a test names our fixture, or another that does."""
    return FIXTURE in getattr(item, "fixturenames", ())


def refuse_collisions(config: pytest.Config, report: pytest.CollectReport) -> pytest.CollectReport:
    """A failed report in place of `report` if one of its tests would share its goldens with another test."""
    items = [node for node in report.result or () if isinstance(node, pytest.Item) and uses_golden(node)]
    if not items:
        return report
    known = config.stash.setdefault(GOLDEN_TESTS, {})
    seen: set[str] = set()
    found = [line for item in items if (line := _collision(item, known, seen)) is not None]
    if not found:
        return report
    return pytest.CollectReport(report.nodeid, "failed", "\n".join(found), [], report.sections)


def _collision(item: pytest.Item, known: dict[str, str], seen: set[str]) -> str | None:
    owner = owner_of(item)
    folded = f"{owner.folder}/{owner.named('').folded}".casefold()
    other = known.setdefault(folded, item.nodeid)
    twice = other == item.nodeid and folded in seen  # in one collector; the collector itself may be asked again
    seen.add(folded)
    if other == item.nodeid and not twice:
        return None
    return (
        f"{item.nodeid}: would share its goldens with {'another test of the same id' if twice else other}: their files have one"
        " name, or names that differ in capitals alone. Rename one of them, or give its parameters other ids"
    )


def _parts(item: pytest.Item) -> tuple[str, str, str, str | None]:
    classes = ".".join(node.name for node in item.listchain() if isinstance(node, pytest.Class))
    function = (item.originalname if isinstance(item, pytest.Function) else None) or item.name
    callspec = getattr(item, "callspec", None)
    return item.path.name, classes, function, None if callspec is None else callspec.id


def _package(item: pytest.Item) -> str:
    module = getattr(item, "module", None)
    return getattr(module, "__package__", None) or item.path.parent.name

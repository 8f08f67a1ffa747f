"""Modules that the ranks must find under the names that they have here.

Under pytest's import mode `importlib`, a test module stands in `sys.modules` under a name that `sys.path` does not lead to. So
the files of the modules that a call names are sent with it, and a rank looks there where the usual search finds another file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import pickletools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Place = Mapping[str, Any]
"""`{"file": path or None, "path": folders of a package or None, "loader": "module:class" or None}`."""


def named_modules(pickled: bytes, loaders: Mapping[str, str]) -> dict[str, Place]:
    """Where the modules that a pickle names lie, with their packages, and those with a loader of their own.

    Args:
        pickled: a pickle whose names are modules of this process.
        loaders: module → `module:class` of the loader that it was loaded with here, for those that need it in the ranks.
    """
    texts = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    names = {part for text in {*texts, *loaders} if text in sys.modules for part in _with_packages(text)}
    return {name: _place(sys.modules[name], loaders.get(name)) for name in sorted(names) if name in sys.modules}


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _place(module: Any, loader: str | None) -> Place:
    folders = getattr(module, "__path__", None)
    path = None if folders is None else [str(folder) for folder in folders]
    return {"file": getattr(module, "__file__", None), "path": path, "loader": loader}


class SentModules:
    """A finder of `sys.meta_path` for the modules that were sent along.

    Args:
        places: as `named_modules` gives them.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Where a module was in the process that sent it; None where the usual search finds the same."""
        place = self._places.get(name)
        if place is None:
            return None
        file, folders = place["file"], place["path"]
        if file is not None and file.endswith(".py"):
            if place["loader"] is None and _usual_file(name, path) == file:
                return None
            loader = _make_loader(place["loader"], name, file)
            return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)
        if file is None and (folders is not None or self._is_package(name)):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(folders or ())
            return spec
        return None

    def _is_package(self, name: str) -> bool:
        return any(other.startswith(f"{name}.") for other in self._places)


def _usual_file(name: str, path: Sequence[str] | None) -> str | None:
    usual = importlib.machinery.PathFinder.find_spec(name, path)
    return None if usual is None else usual.origin


def _make_loader(spelled: str | None, name: str, file: str) -> Any:
    if spelled is None:
        return None
    module, _, class_name = spelled.partition(":")
    return getattr(importlib.import_module(module), class_name)(name, file)

"""A rank finds the modules of a call where they were, also under names that the import path does not lead to."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specalign.ranks.modules import SentModules, named_modules


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[ModuleType]:
    """`far.test_it`, as the import mode `importlib` leaves it: `far` is a module of no file, and no path leads there."""
    file = tmp_path / "elsewhere" / "test_it.py"
    file.parent.mkdir()
    file.write_text("def seven():\n    return 7\n")
    spec = importlib.util.spec_from_file_location("far.test_it", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.update({"far": ModuleType("far"), "far.test_it": module})
    spec.loader.exec_module(module)
    yield module
    for name in ("far", "far.test_it"):
        sys.modules.pop(name, None)


def test_the_files_of_what_a_pickle_names(loaded: ModuleType) -> None:
    places = named_modules(pickle.dumps((loaded.seven, Path)), {})
    assert places["far.test_it"] == {"file": loaded.__file__, "path": None, "loader": None}
    assert places["far"] == {"file": None, "path": None, "loader": None}
    assert "json" not in places


def test_they_are_found_in_a_process_that_has_no_path_to_them(loaded: ModuleType) -> None:
    pickled = pickle.dumps(loaded.seven)
    places = named_modules(pickled, {})
    program = (
        f"import sys, pickle\nsys.path[:] = {sys.path!r}\nfrom specalign.ranks.modules import SentModules\n"
        f"sys.meta_path.insert(0, SentModules({places!r}))\nprint(pickle.loads({pickled!r})())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "7\n"


def test_the_usual_search_is_left_alone_where_it_finds_the_same_file() -> None:
    own = sys.modules[__name__]
    finder = SentModules(named_modules(pickle.dumps(test_they_are_found_in_a_process_that_has_no_path_to_them), {}))
    package = importlib.import_module(__name__.rpartition(".")[0])
    assert finder.find_spec(__name__, package.__path__) is None
    assert finder.find_spec("json", None) is None
    elsewhere = finder.find_spec(__name__, [])
    assert elsewhere is not None
    assert elsewhere.origin == own.__file__


def test_a_loader_of_its_own_is_used_in_any_case(loaded: ModuleType) -> None:
    spelled = "importlib.machinery:SourcelessFileLoader"
    spec = SentModules(named_modules(b"\x80\x05N.", {"far.test_it": spelled})).find_spec("far.test_it", [])
    assert spec is not None
    assert type(spec.loader).__name__ == "SourcelessFileLoader"

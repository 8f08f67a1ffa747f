"""Which goldens a run used, and which nobody uses any more: known only when every test has run.

Each process that runs tests makes one record: a worker of xdist, and a shard of a run that is split over machines. Records are
merged in one way, whoever made them. What a record calls a test is the folder of its goldens and the test within it:
`tests/__golden__::test_router.py::test_scores[4-8]`; a golden is its folder and the stem of its file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specalign.golden.errors import GoldenError
from specalign.layer_ids.files import InputError, quoted, read_json_object, shown
from specalign.layer_ids.rewrite import write_text_atomically

SCHEMA: Final = "specalign.golden-usage/1"
MAX_BYTES: Final = 256 * 1024 * 1024

_SHOWN: Final = 5
_LISTS: Final = ("restricted", "collected", "passed", "skipped", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Present:
    """A golden that is there.

    Attributes:
        golden: its folder and the stem of its file.
        test: whose it is.
        module_exists: whether the file of that test is there: tests that were not collected may still use the golden.
    """

    golden: str
    test: str
    module_exists: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What one process saw, or several together.

    Attributes:
        restricted: why tests may be missing from `collected`: paths on the command line, collection errors.
        collected: every test, also those that this process did not run.
        passed, skipped, failed: the tests that ran here, and those that were skipped or expected to fail.
        used: the goldens that were checked or written, each with the tests that did.
        present: the goldens that are there.
    """

    restricted: frozenset[str] = frozenset()
    collected: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    used: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    present: frozenset[Present] = frozenset()

    @property
    def missing(self) -> frozenset[str]:
        """Tests that were collected and that nobody ran."""
        return self.collected - self.passed - self.skipped - self.failed

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Why nobody can say which goldens are unused; empty if one can."""
        lines = sorted(self.restricted)
        lines += [] if self.collected else ["no test was collected"]
        lines += [f"{_some(self.missing)} did not run"] if self.missing else []
        lines += [f"{_some(self.failed)} failed, perhaps before reaching a golden"] if self.failed else []
        return tuple(lines)

    @property
    def unused(self) -> tuple[str, ...]:
        """Goldens that no test used, though all could; sorted. Says nothing unless `incomplete` is empty.

        Not counted: goldens of a test that was skipped, and of a file that is there and was not collected.
        """
        modules = {_module(test) for test in self.collected}
        skipped = self.skipped - self.passed
        return tuple(
            sorted(
                entry.golden
                for entry in self.present
                if entry.golden not in self.used
                and entry.test not in skipped
                and (not entry.module_exists or _module(entry.test) in modules)
            )
        )

    @property
    def shared(self) -> Mapping[str, tuple[str, ...]]:
        """Goldens that more than one test used, by case-folded name, with those tests."""
        by_name: dict[str, frozenset[str]] = {}
        for golden, tests in self.used.items():
            by_name[golden.casefold()] = by_name.get(golden.casefold(), frozenset()) | tests
        return {golden: tuple(sorted(tests)) for golden, tests in sorted(by_name.items()) if len(tests) > 1}

    def to_json(self) -> dict[str, Any]:
        """The record as plain objects, after the JSON Schema `schemas/golden-usage-1.json`; equal records are equal texts."""
        lists = {name: sorted(getattr(self, name)) for name in _LISTS}
        present = [dataclasses.asdict(entry) for entry in sorted(self.present, key=lambda entry: (entry.golden, entry.test))]
        used = {golden: sorted(tests) for golden, tests in sorted(self.used.items())}
        return {"schema": SCHEMA, **lists, "used": used, "present": present}

    @property
    def file_name(self) -> str:
        """A name of its own for each shard: it depends on which tests ran."""
        ran = json.dumps([sorted(self.passed | self.skipped | self.failed), sorted(self.collected), sorted(self.restricted)])
        return f"golden-usage-{hashlib.sha256(ran.encode('ascii')).hexdigest()[:16]}.json"


def merge(records: Iterable[Usage]) -> Usage:
    """What several processes saw together.

    A record whose collection was whole makes up for the others: it names every test there is. It does not if another has tests
    of a file that it has not, since it was started in a folder below rootdir, or with --ignore.
    """
    given = list(records)
    whole = [record for record in given if not record.restricted]
    used: dict[str, frozenset[str]] = {}
    for record in given:
        for golden, tests in record.used.items():
            used[golden] = used.get(golden, frozenset()) | tests
    together = {name: frozenset[str]().union(*(getattr(record, name) for record in given)) for name in _LISTS}
    named = {_module(test) for record in whole for test in record.collected}
    if whole and all(_module(test) in named for test in together["collected"]):
        together["restricted"] = frozenset()
    return Usage(**together, used=used, present=frozenset[Present]().union(*(record.present for record in given)))


def parse_usage(document: Mapping[str, Any], where: str) -> Usage:
    """A record out of its JSON object.

    Raises:
        GoldenError: it is none.
    """
    if document.get("schema") != SCHEMA:
        raise GoldenError(f"{where}: has the schema {quoted(document.get('schema'))}, and {SCHEMA} is read here")
    if document.keys() != {"schema", "used", "present", *_LISTS}:
        raise GoldenError(f"{where}: has the fields {quoted(sorted(document))}, which are not those of {SCHEMA}")
    used, present = document["used"], document["present"]
    if not all(_is_texts(document[name]) for name in _LISTS) or not _is_table(used) or not isinstance(present, list):
        raise GoldenError(f"{where}: is no record of {SCHEMA}: a field has the wrong kind; let the run write it again")
    return Usage(
        **{name: frozenset(document[name]) for name in _LISTS},
        used={golden: frozenset(tests) for golden, tests in used.items()},
        present=frozenset(_present(entry, where) for entry in present),
    )


def read_usage(path: Path) -> Usage:
    """A record out of its file. Raises `GoldenError`."""
    try:
        return parse_usage(read_json_object(path, limit=MAX_BYTES), shown(path))
    except GoldenError:
        raise
    except InputError as error:
        raise GoldenError(str(error)) from error


def write_usage(record: Usage, folder: Path) -> Path:
    """Write a record into a folder, in the place of one of the same shard. Raises `InputError`."""
    path = folder / record.file_name
    write_text_atomically(json.dumps(record.to_json(), indent=1) + "\n", path)
    return path


def _present(entry: object, where: str) -> Present:
    said: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    golden, test, exists = said.get("golden"), said.get("test"), said.get("module_exists")
    if len(said) != 3 or not isinstance(golden, str) or not isinstance(test, str) or not isinstance(exists, bool):
        raise GoldenError(f"{where}: has the present golden {quoted(entry)}, which is none; let the run write it again")
    return Present(golden, test, exists)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(_is_texts(item) for item in value.values())


def _module(test: str) -> str:
    return "::".join(test.split("::")[:2])


def _some(tests: Iterable[str]) -> str:
    named: Sequence[str] = sorted(tests)
    shown_tests = ", ".join(named[:_SHOWN]) + (", …" if len(named) > _SHOWN else "")
    return f"{len(named)} test{'s' if len(named) > 1 else ''} ({shown_tests})"

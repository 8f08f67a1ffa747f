"""The published heads in `examples/heads` against every engine of `expected.toml`, whose values do not come from this library."""

from __future__ import annotations

import dataclasses
import functools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.findings import CODES, Severity
from specalign.layer_ids.load import load_draft, load_target
from specalign.layer_ids.places import MISSING, look_up
from specalign.layer_ids.preflight import CheckReport, check

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADS = sorted(p.name for p in (EXAMPLES / "heads").iterdir() if p.is_dir())
TARGETS = sorted(p.name for p in (EXAMPLES / "targets").iterdir() if p.is_dir())
FACTS = {
    "heads": {"name", "target", "kind", "convention", "source", "uncertain", "note"},
    "targets": {"name", "source", "uncertain"},
}
REQUIRED_ENGINES = {"sglang==0.5.16", "sglang==0.5.23", "vllm==0.33.0"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """What one engine is expected to make of one head."""

    head: str
    engine: str
    states: tuple[int | str, ...]
    refused: str
    errors: frozenset[str]


def read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


@functools.cache
def expected() -> dict[str, dict[str, Any]]:
    return read_toml(EXAMPLES / "heads" / "expected.toml")


def cells() -> list[Any]:
    found = []
    for head, engines in expected().items():
        for engine, row in engines.items():
            cell = Cell(head, engine, tuple(row.get("states", ())), row.get("refused", ""), frozenset(row["errors"]))
            found.append(pytest.param(cell, id=f"{head}-{engine}"))
    return found


@functools.cache
def report_of(head: str) -> CheckReport:
    folder = EXAMPLES / "heads" / head
    facts = read_toml(folder / "facts.toml")
    return check(
        load_draft(str(folder), kind=facts["kind"]).spec,
        load_target(str(EXAMPLES / "targets" / facts["target"])),
        engines=list(expected()[head]),
        convention=None if facts["convention"] == "unknown" else Convention(facts["convention"]),
    )


@pytest.mark.parametrize("cell", cells())
def test_states_and_errors(cell: Cell) -> None:
    report = report_of(cell.head)
    view = next(view for view in report.views if view.label == cell.engine)
    states = tuple(state if isinstance(state, int) else str(state) for state in view.states)
    errors = frozenset(f.code for f in report.of(cell.engine) if f.severity is Severity.ERROR)
    assert (states, errors) == (cell.states, cell.errors)
    assert cell.refused in view.error
    assert bool(cell.refused) == bool(view.error)


@pytest.mark.parametrize("head", HEADS)
def test_no_head_contradicts_its_own_target(head: str) -> None:
    assert [f.format() for f in report_of(head).of(None) if f.severity is Severity.ERROR] == []


@pytest.mark.parametrize(("folder", "name"), [("heads", h) for h in HEADS] + [("targets", t) for t in TARGETS])
def test_facts_name_a_source_and_mark_what_is_uncertain(folder: str, name: str) -> None:
    facts = read_toml(EXAMPLES / folder / name / "facts.toml")
    config = json.loads((EXAMPLES / folder / name / "config.json").read_text("utf-8"))
    assert set(facts) == FACTS[folder]
    assert facts["source"]
    assert [place for place in facts["uncertain"] if look_up(config, place) is MISSING] == []
    assert len(set(facts["uncertain"])) == len(facts["uncertain"])


@pytest.mark.parametrize("head", HEADS)
def test_facts_name_a_target_and_a_convention(head: str) -> None:
    facts = read_toml(EXAMPLES / "heads" / head / "facts.toml")
    assert facts["target"] in TARGETS
    assert facts["convention"] in {"boundary", "output", "hf", "unknown"}


def test_there_are_at_least_thirty_heads_and_no_unused_target() -> None:
    used = {read_toml(EXAMPLES / "heads" / head / "facts.toml")["target"] for head in HEADS}
    assert len(HEADS) >= 30
    assert used == set(TARGETS)


def test_every_head_is_expected_on_the_engines_that_were_executed() -> None:
    assert set(expected()) == set(HEADS)
    assert {head for head, engines in expected().items() if not set(engines) >= REQUIRED_ENGINES} == set()
    assert {code for engines in expected().values() for row in engines.values() for code in row["errors"]} <= set(CODES)


def test_no_unknown_files() -> None:
    found = {
        p.relative_to(EXAMPLES).as_posix() for place in ("heads", "targets") for p in (EXAMPLES / place).rglob("*") if p.is_file()
    }
    pairs = [f"heads/{h}" for h in HEADS] + [f"targets/{t}" for t in TARGETS]
    known = {f"{pair}/{name}" for pair in pairs for name in ("config.json", "facts.toml")}
    assert found == known | {"heads/expected.toml"}


def test_the_v3_head_crashes_on_the_old_sglang_and_is_clean_on_the_new_one() -> None:
    report = report_of("nvidia--gpt-oss-120b-Eagle3-v3")
    widths = [f for f in report.of("sglang==0.5.16") if f.code == "width-mismatch"]
    assert [f.how_much for f in widths] == ["5760 against 8640"]
    assert "(tokens x 5760 and 8640 x 2880)" in widths[0].what
    assert [f for f in report.of("sglang==0.5.23") if f.severity is Severity.ERROR] == []

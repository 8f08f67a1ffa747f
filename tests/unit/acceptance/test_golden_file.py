"""What a golden keeps of a table, and each field that a file cannot have otherwise."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specalign.acceptance import AcceptanceError, PromptRounds, Round
from specalign.acceptance.golden_file import AcceptanceGolden, golden_of, read_golden, write_golden
from specalign.acceptance.table import LoopCheck
from tests.unit.acceptance.made_runs import PAIR, table

TABLE = table(40)
GOLDEN = golden_of(TABLE, PAIR)


def test_a_golden_keeps_every_row_as_it_was_measured() -> None:
    assert [(row.name, row.fault) for row in GOLDEN.rows] == [(row.name, row.fault) for row in TABLE.rows]
    assert [row.length for row in GOLDEN.rows] == [row.acceptance.length for row in TABLE.rows]
    assert [row.per_position for row in GOLDEN.rows] == [row.acceptance.per_position for row in TABLE.rows]
    assert (GOLDEN.depth, GOLDEN.new_tokens, GOLDEN.counts, GOLDEN.pair) == (4, 64, TABLE.counts, PAIR)
    assert GOLDEN.dead == GOLDEN.rows[-1]


def test_a_round_whose_last_draft_ends_the_text_is_kept_as_that(tmp_path: Path) -> None:
    counts = (PromptRounds("a", (Round(4, 4, 4),)), PromptRounds("b", ()), *GOLDEN.counts)
    ended = dataclasses.replace(GOLDEN, counts=counts)
    write_golden(ended, tmp_path / "g.json")
    assert read_golden(tmp_path / "g.json") == ended


def test_a_table_whose_loop_differs_makes_no_golden() -> None:
    with pytest.raises(AcceptanceError, match="proves too little: the real loop and the replay"):
        golden_of(dataclasses.replace(TABLE, loops=(LoopCheck("right", 2, ("a",)),)), PAIR)


def changed(golden: AcceptanceGolden, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    write_golden(golden, path)
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), "utf-8")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["rows"][0]["length"].update(low=9),
        lambda d: d["rows"][0]["length"].update(value=True),
        lambda d: d["rows"][0]["length"].update(value="2.4"),
        lambda d: d["rows"][1].update(fault="false"),
        lambda d: d["rows"][0].update(per_position=["0.5"]),
        lambda d: d["rows"][-1]["length"].update(high=9),
        lambda d: d.update(new_tokens=64.0),
        lambda d: d.update(depth=True),
        lambda d: d.update(counts=[1]),
        lambda d: d.update(pair=[]),
        lambda d: d.update(rows={}),
        lambda d: d.update(rows=d["rows"][:1]),
        lambda d: d["counts"].update(p0=[[4, 5, 6]]),
        lambda d: d["counts"].update(p0=[[4, True, 2]]),
        lambda d: d["counts"].update(p0=[[4, 1]]),
        lambda d: d["counts"].update(p0=7),
        lambda d: d["counts"].update(p0=[[10**30, 0, 1]]),  # the gate would walk its positions one by one
        lambda d: d["counts"].update(p0=[[5, 0, 1]]),
        lambda d: d["counts"].update(p0=[[4, 4, 5]] * 14),
        lambda d: d.update(depth=0),
        lambda d: d.update(new_tokens=0),
        lambda d: d["rows"][0]["length"].update(high=10**400),
        lambda d: d["rows"][0]["length"].update(high=math.inf),
        lambda d: d["rows"][-1]["length"].update(low=-1.0),
        lambda d: d["rows"][0].update(per_position=[math.nan]),
        lambda d: d["rows"][0].update(per_position=[7]),
        lambda d: d["rows"][0].update(name="ids +1"),
        lambda d: d["rows"][1].update(name=[]),
        lambda d: d["rows"].append(d["rows"][-1]),
    ],
)
def test_what_no_run_gives_is_one_error(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(AcceptanceError, match=r"g\.json is no golden that was written here"):
        read_golden(changed(GOLDEN, tmp_path / "g.json", change))


def test_a_dead_control_that_may_be_as_good_as_the_head_is_refused(tmp_path: Path) -> None:
    length = GOLDEN.rows[0].length.value

    def lift(document: dict[str, Any]) -> None:
        document["rows"][-1]["length"].update(value=1.0, low=1.0, high=length)

    with pytest.raises(AcceptanceError, match="its dead control is no worse"):
        read_golden(changed(GOLDEN, tmp_path / "g.json", lift))

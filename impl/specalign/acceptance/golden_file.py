"""The golden of a model pair: what its head reached on some prompts, prompt by prompt, and what each fault would have made of it.

One JSON file (`specalign.acceptance-golden/1`), made of a measured table. It keeps the rounds of every prompt, so that a later
run on the same prompts is compared pair by pair, and the figures of every other row, so that a drop can be named.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.metrics import Interval
from specalign.acceptance.rounds import PromptRounds, Round
from specalign.acceptance.table import DEAD, Table
from specalign.layer_ids.files import InputError, read_json_object, shown
from specalign.layer_ids.rewrite import write_text_atomically

SCHEMA: Final = "specalign.acceptance-golden/1"


@dataclasses.dataclass(frozen=True, slots=True)
class KnownRow:
    """A row of the table that the golden was made of.

    Attributes:
        name: of the row.
        fault: whether it is a fault; the others are the right way and the controls.
        length: acceptance length.
        per_position: share of the rounds that accepted so far, by position.
    """

    name: str
    fault: bool
    length: Interval
    per_position: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AcceptanceGolden:
    """What a pair reached.

    Attributes:
        pair: what it was measured on, such as target, draft, and the SHA-256 of weights and prompts; a run of another pair is
            refused by these.
        depth: drafts of a chain.
        new_tokens: wanted of each answer.
        counts: the right way, prompt by prompt.
        rows: of the table, "right" first.
    """

    pair: Mapping[str, str]
    depth: int
    new_tokens: int
    counts: tuple[PromptRounds, ...]
    rows: tuple[KnownRow, ...]

    @property
    def dead(self) -> KnownRow:
        """The dead control."""
        return next(row for row in self.rows if row.name == DEAD)


def golden_of(table: Table, pair: Mapping[str, str]) -> AcceptanceGolden:
    """The golden that a table gives.

    Raises:
        AcceptanceError: the table has no dead control, or proves nothing.
    """
    if not any(row.name == DEAD for row in table.rows):
        raise AcceptanceError("a golden needs the whole table, with its faults and its dead control: measure with --table")
    if table.problems:
        raise AcceptanceError(f"no golden is made of a table that proves too little: {'; '.join(table.problems)}")
    rows = tuple(KnownRow(row.name, row.fault, row.acceptance.length, row.acceptance.per_position) for row in table.rows)
    return AcceptanceGolden(dict(pair), table.depth, table.new_tokens, table.counts, rows)


def write_golden(golden: AcceptanceGolden, path: Path) -> None:
    """Write it: to a temporary name, flushed, renamed. Raises `InputError` if it cannot be written."""
    document = {
        "schema": SCHEMA,
        "pair": dict(golden.pair),
        "depth": golden.depth,
        "new_tokens": golden.new_tokens,
        "counts": {item.name: [[r.proposed, r.accepted, r.tokens] for r in item.rounds] for item in golden.counts},
        "rows": [dataclasses.asdict(row) for row in golden.rows],
    }
    lines = json.dumps(document, ensure_ascii=False, allow_nan=False)
    write_text_atomically(lines.replace('], "', '],\n "').replace('{"name"', '\n {"name"') + "\n", path)


def read_golden(path: Path) -> AcceptanceGolden:
    """Read it.

    Raises:
        AcceptanceError: not there, no JSON, another schema, or figures that no run gives.
    """
    where = shown(path)
    try:
        found = read_json_object(path)
    except InputError as error:
        raise AcceptanceError(str(error)) from error
    if found.get("schema") != SCHEMA:
        raise AcceptanceError(f"{where}: its schema is {found.get('schema')!r}, and a golden of acceptance has {SCHEMA!r}")
    try:
        return _golden(found)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        what = f"{type(error).__name__}: {error}"
        raise AcceptanceError(f"{where} is no golden that was written here ({what}): measure and write it again") from error


def _golden(found: Mapping[str, Any]) -> AcceptanceGolden:
    counts = tuple(
        PromptRounds(name, tuple(Round(*map(_whole, one)) for one in rounds)) for name, rounds in found["counts"].items()
    )
    rows = tuple(
        KnownRow(
            str(row["name"]), _flag(row["fault"]), _interval(row["length"]), tuple(_number(rate) for rate in row["per_position"])
        )
        for row in found["rows"]
    )
    pair = {str(key): str(value) for key, value in found["pair"].items()}
    golden = AcceptanceGolden(pair, _whole(found["depth"]), _whole(found["new_tokens"]), counts, rows)
    if not golden.dead.length.high < golden.rows[0].length.value:
        raise ValueError("its dead control is no worse than the right way")
    return golden


def _interval(found: Mapping[str, Any]) -> Interval:
    interval = Interval(*(_number(found[name]) for name in ("value", "low", "high")))
    if not interval.low <= interval.value <= interval.high:
        raise ValueError(f"{interval} is no interval")
    return interval


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)

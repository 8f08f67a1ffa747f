"""The golden of a model pair: what its head reached on some prompts, prompt by prompt, and what each fault would have made of it.

One JSON file (`specalign.acceptance-golden/1`), made of a measured table. It keeps the rounds of every prompt, so that a later
run on the same prompts is compared pair by pair, and the figures of every other row, so that a drop can be named.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.metrics import Interval
from specalign.acceptance.rounds import PromptRounds, Round
from specalign.acceptance.table import DEAD, RIGHT, Table
from specalign.layer_ids.files import InputError, quoted, read_json_object, shown
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
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise AcceptanceError(f"{where} is no golden that was written here ({what}): measure and write it again") from error


def _golden(found: Mapping[str, Any]) -> AcceptanceGolden:
    counts = tuple(
        PromptRounds(name, tuple(Round(*map(_whole, one)) for one in rounds)) for name, rounds in found["counts"].items()
    )
    rows = tuple(
        KnownRow(
            _text(row["name"]), _flag(row["fault"]), _interval(row["length"]), tuple(_share(rate) for rate in row["per_position"])
        )
        for row in found["rows"]
    )
    pair = {str(key): str(value) for key, value in found["pair"].items()}
    golden = AcceptanceGolden(pair, _whole(found["depth"]), _whole(found["new_tokens"]), counts, rows)
    _require_a_run(golden)
    return golden


def _require_a_run(golden: AcceptanceGolden) -> None:
    """Raises `ValueError` for what no run gives. A round deeper than the chain would also be walked position by position."""
    names = [row.name for row in golden.rows]
    if names[0] != RIGHT or len(set(names)) != len(names):
        raise ValueError(f"its rows are {', '.join(names)}: {RIGHT!r} comes first, and each once")
    if not golden.dead.length.high < golden.rows[0].length.value:
        raise ValueError("its dead control is no worse than the right way")
    if golden.depth < 1 or golden.new_tokens < 1:
        raise ValueError(f"a depth of {golden.depth} and {golden.new_tokens} new tokens: each is 1 at least")
    # A loop stops at so many tokens, and its last round may have begun one before that.
    most = golden.new_tokens + golden.depth
    for prompt in golden.counts:
        deepest = max((item.proposed for item in prompt.rounds), default=0)
        if deepest > golden.depth:
            raise ValueError(f"prompt {prompt.name!r} has a round of {deepest} drafts, and chains have {golden.depth}")
        if prompt.tokens >= most:
            raise ValueError(f"prompt {prompt.name!r} gained {prompt.tokens} tokens, and {golden.new_tokens} were wanted")


def _interval(found: Mapping[str, Any]) -> Interval:
    interval = Interval(*(_number(found[name]) for name in ("value", "low", "high")))
    if not 0 <= interval.low <= interval.value <= interval.high < math.inf:
        raise ValueError(f"{interval} is no interval")
    return interval


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{quoted(value)} is no whole number")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{quoted(value)} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{quoted(value)} is no text")
    return value


def _share(value: Any) -> float:
    share = _number(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is no share of rounds")
    return share


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{quoted(value)} is no number")
    return float(value)

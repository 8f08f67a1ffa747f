"""The table on a terminal."""

from __future__ import annotations

from specalign.acceptance.report.measured import Measured
from specalign.acceptance.table import LoopCheck, Row, Table


def format_measured(measured: Measured) -> str:
    """The table, what it was measured on, and what it does not prove."""
    lines = [
        f"target  {measured.target}",
        f"draft   {measured.draft}",
        f"prompts {measured.prompts}",
        "",
        format_table(measured.table),
    ]
    lines.append(f"{measured.seconds:.0f} s; " + ", ".join(f"{name} {value}" for name, value in measured.environment.items()))
    lines += [f"PROBLEM: {problem}" for problem in measured.table.problems]
    return "\n".join(lines)


def format_table(table: Table) -> str:
    """The rows, and how to read them."""
    head = ("", "fed", "length", "right - row", "per position", "teacher-forced", "")
    lines = [head, *(_cells(row) for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, "", how_to_read(table), *map(loop_line, table.loops)])


def how_to_read(table: Table) -> str:
    """What the figures mean."""
    prompts = table.rows[0].acceptance.prompts
    return (
        f"{prompts} prompts, {table.new_tokens} new tokens, greedy, chains of {table.depth} drafts: a length lies between"
        f" 1 and {table.depth + 1}. In brackets: 95% bootstrap intervals over the prompts, differences paired."
    )


def loop_line(loop: LoopCheck) -> str:
    """What the real loop said of a row."""
    said = "the same rounds as in the replay"
    if loop.differing:
        said = f"OTHER rounds on {len(loop.differing)}: {', '.join(loop.differing[:3])}"
    return f"real loop, {loop.row!r}: {loop.prompts} prompts, {said}"


def told(row: Row) -> str:
    """Whether a fault shows."""
    if not row.fault or row.difference is None:
        return ""
    return told_text(row.difference.told_apart, row.difference.prompts_needed)


def told_text(told_apart: bool, needed: int | None) -> str:
    """The same of its two figures: `not told apart (about 120 prompts would do)`."""
    if told_apart:
        return "told apart"
    return "not told apart" + ("" if needed is None else f" (about {needed} prompts would do)")


def rates(values: tuple[float, ...]) -> str:
    """Shares by position."""
    return " ".join(f"{value:.2f}" for value in values)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.states,
        str(row.acceptance.length),
        "" if row.difference is None else str(row.difference.difference),
        rates(row.acceptance.per_position),
        rates(tuple(share.value for share in row.teacher)),
        told(row),
    )

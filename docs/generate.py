"""Makes check.md, engines.md, compare.md and options.md out of the code's own tables, acceptance.md and the README's table out of
the recorded results: `python docs/generate.py` (or `--check`).

Every example of a finding is the output of the scenario that the tests run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "impl")]  # runs from a bare checkout too

from pytest_specalign.options import OPTIONS, Option  # noqa: E402  # after the path is set
from specalign.acceptance.report.text import told_text  # noqa: E402
from specalign.compare.explain import CAUSES  # noqa: E402
from specalign.compare.result import PROBLEMS  # noqa: E402
from specalign.layer_ids.engine_profiles import CaptureProfile  # noqa: E402
from specalign.layer_ids.engines import EngineTable, load_engines  # noqa: E402
from specalign.layer_ids.findings import CODES, CONCERNS  # noqa: E402
from specalign.layer_ids.rules import RULES  # noqa: E402
from tests.unit.checks.scenarios import GPT_OSS, Scenario  # noqa: E402
from tests.unit.checks.table import SCENARIOS  # noqa: E402

CONCERN_TITLES = {
    "ids": "Ids and states",
    "widths": "Widths",
    "norms": "Norms",
    "weights": "Weights",
    "settings": "Settings of the draft's layer",
    "pipeline": "Pipeline stages",
}


def check_page() -> str:
    """docs/check.md: the hand-written head, then one section for each finding code."""
    head = (ROOT / "docs" / "check.head.md").read_text("utf-8")
    by_code = {scenario.code: scenario for scenario in SCENARIOS}
    parts = [head.rstrip(), ""]
    for concern in CONCERNS:
        parts += [f"### {CONCERN_TITLES[concern]}", ""]
        for code, (of, text) in CODES.items():
            if of == concern:
                parts += [f"#### `{code}`", "", text[0].upper() + text[1:] + ".", "", *_example(by_code[code])]
    return "\n".join(parts).rstrip() + "\n"


def _example(scenario: Scenario) -> Iterator[str]:
    found = next(f for f in scenario.report().findings if f.code == scenario.code and f.engine == scenario.engine)
    changes = {key: None if value is ... else value for key, value in scenario.broken.items() if value is not None}
    gone = [key for key, value in scenario.broken.items() if value is None]
    facts = [f"engine `{scenario.engine}`" if scenario.engine else "any engine"]
    if changes:
        facts.append(f"the config says `{json.dumps(changes)}`")
    if gone:
        facts.append(f"it has no `{'`, `'.join(gone)}`")
    target = {k: v for k, v in scenario.target.items() if v != GPT_OSS.get(k)}
    if target:
        facts.append(f"the target `{json.dumps(target)}`")
    facts += [f"`--{key.replace('_', '-')} {value}`" for key, value in scenario.options.items()]
    if scenario.kind:
        facts.append(f"`--kind {scenario.kind}`")
    if scenario.d2t is not None:
        facts.append(f"d2t `{list(scenario.d2t)}`")
    yield from (f"Example: {'; '.join(facts)}.", "", "```text", found.format(), "```", "")


def engines_page(table: EngineTable) -> str:
    """docs/engines.md: the hand-written head, the rules, then one table an engine."""
    parts = [(ROOT / "docs" / "engines.head.md").read_text("utf-8").rstrip(), "", "## Rules", ""]
    parts += ["| rule | what it does | None |", "|---|---|---|"]
    for rule in RULES.values():
        default = "refused" if rule.default_offset is None else ["[2, n//2, n-3]", "[3, n//2+1, n-2]"][rule.default_offset]
        parts.append(f"| `{rule.name}` | {rule.summary} | {default} |")
    for engine in table.engines.values():
        parts += ["", f"## {engine.title}", "", *([engine.note, ""] if engine.note else [])]
        parts += ["| versions | kinds | families | rule | highest | beyond it | order | ids read from | grade, source |"]
        parts += ["|---" * 9 + "|"]
        parts += [_row(c) for c in table.captures if c.engine == engine.name and not c.inner]
    return "\n".join(parts) + "\n"


def _row(c: CaptureProfile) -> str:
    cells: list[Any] = [
        c.versions,
        ", ".join(c.kinds),
        ", ".join(c.families).replace("*", "all others"),
        f"`{c.rule}`" if c.supported else "unsupported",
        c.reach if c.supported else "-",
        c.unreachable if c.supported else "-",
        c.order,
        ", ".join(f"`{p.removeprefix('cli:')}`{' (flag)' if p.startswith('cli:') else ''}" for p in c.ids_from) or "-",
        f"{c.grade}: {c.source}",
    ]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def compare_page() -> str:
    """docs/compare.md: the hand-written text, with the tables of problems and causes in their places."""
    text = (ROOT / "docs" / "compare.head.md").read_text("utf-8")
    tables = {
        "problems": [f"| `{code}` | {meaning} |" for code, meaning in PROBLEMS.items()],
        "causes": [f"| `{code}` | {meaning} |" for code, (meaning, _) in CAUSES.items()],
    }
    for name, rows in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(rows))
    return text


def options_page() -> str:
    """docs/options.md: the hand-written text, with the table of options in its place."""
    text = (ROOT / "docs" / "options.head.md").read_text("utf-8")
    return text.replace("<!-- options -->", "\n".join(map(_option_row, OPTIONS)))


def _option_row(option: Option) -> str:
    meaning = option.help + (" May be given several times." if option.repeatable and "Repeatable" not in option.help else "")
    cells = [f"`{option.flag}={option.metavar}`", f"`{option.env}`", f"`{option.ini}`", option.default, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def acceptance_page() -> str:
    """docs/acceptance.md: the hand-written text, with the table of each head as it was recorded."""
    text = (ROOT / "docs" / "acceptance.head.md").read_text("utf-8")
    return text.replace("<!-- tables -->", "\n".join(line for name in "ABC" for line in _acceptance_table(name)).rstrip())


def _acceptance_table(name: str) -> Iterator[str]:
    found = json.loads((ROOT / "benchmarks" / "results" / f"acceptance-{name}.json").read_text("utf-8"))
    where = found["environment"]
    yield from (
        f"### Head {name}",
        "",
        "| row | fed | length | right - row | accepted at each position | first choice right, step 1 | |",
    )
    yield "|---|---|---|---|---|---|---|"
    for row in found["rows"]:
        told = told_text(row["told_apart"], row["prompts_needed"]) if row["fault"] else ""
        first = f"{row['teacher'][0]['value']:.3f}" if row["teacher"] else ""
        cells = [row["name"], row["states"], _interval(row["length"]), _interval(row["right_minus_row"]),
                 " ".join(f"{rate:.2f}" for rate in row["per_position"]), first, told]  # fmt: skip
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield (
        f"{found['rows'][0]['prompts']} prompts, {found['rows'][0]['rounds']} rounds, {found['seconds'] / 60:.0f} min on"
        f" {where['device']} ({where['threads']} threads), {where['dtype']}, torch {where['torch']}, transformers"
        f" {where['transformers']}. The real loop gave the replay's rounds for "
        + " and ".join(
            f"{loop['row']} ({loop['prompts'] - len(loop['differing'])} of {loop['prompts']} prompts)" for loop in found["loops"]
        )
        + "."
    )
    yield ""


def _interval(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def readme() -> str:
    """README.md with the lengths of every head between its two marks."""
    text = (ROOT / "README.md").read_text("utf-8")
    begin, end = "<!-- acceptance: made by docs/generate.py -->\n", "<!-- /acceptance -->"
    rows = ["| head | row | acceptance length | right - row |", "|---|---|---|---|"]
    for name in "ABC":
        found = json.loads((ROOT / "benchmarks" / "results" / f"acceptance-{name}.json").read_text("utf-8"))
        rows += [
            f"| {name} | {row['name']} | {_interval(row['length'])} | {_interval(row['right_minus_row'])} |"
            for row in found["rows"]
            if row["name"] not in ("order reversed", "no drafting")
        ]
    before, rest = text.split(begin)
    return before + begin + "\n".join(rows) + "\n" + end + rest.split(end, 1)[1]


def pages() -> dict[Path, str]:
    """File → what must stand in it."""
    docs = ROOT / "docs"
    return {
        docs / "check.md": check_page(),
        docs / "engines.md": engines_page(load_engines()),
        docs / "compare.md": compare_page(),
        docs / "options.md": options_page(),
        docs / "acceptance.md": acceptance_page(),
        ROOT / "README.md": readme(),
    }


def main() -> int:
    """Write the pages, or with --check say which are out of date."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is out of date: run python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

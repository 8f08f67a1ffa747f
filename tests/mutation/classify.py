"""What a surviving mutant changed: the wording of a message only, or something that a test should have noticed."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

KILLED = frozenset({1, 3, 24, 36, 152, 255, -24, -11, -9})
"""Exit codes of mutmut's workers that mean a failed test, a crash or a run without end."""

PROSE_ARGUMENTS = {"finding": 2, "Finding": 2, "found": 2, "capture_remedy": 0, "draft_remedy": 1}
"""Calls in which one positional argument is prose; code, severity, place and engine of a finding are data."""

PROSE_KEYWORDS = frozenset({"what", "next", "how_much", "why"})
"""Keyword arguments that hold prose wherever they occur in this library."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mutant and what became of it.

    Attributes:
        name: mutmut's name, for `mutmut show`; its number changes whenever the function does.
        module, function: `layer_ids.rules` and `Rule.states`.
        killed: a test noticed it.
        text: only the wording of a message differs.
        removed, added: the changed lines of the source, stripped and joined.
    """

    name: str
    module: str
    function: str
    killed: bool
    text: bool = False
    removed: str = ""
    added: str = ""

    @property
    def where(self) -> str:
        """`layer_ids.rules.Rule.states`."""
        return f"{self.module}.{self.function}"

    def format(self) -> str:
        """The diff, under the name."""
        old, new = (
            ("\n".join(f"  {sign} {line}" for line in side.splitlines()))
            for sign, side in (("-", self.removed), ("+", self.added))
        )
        return f"{self.name}\n{old}\n{new}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """One entry of `explained.toml`: `where` as in `Mutant`, the lines that the mutants have, and why no test can or need tell."""

    where: str
    becomes: frozenset[str]
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        """This entry is about that mutant."""
        return self.where == mutant.where and mutant.added in self.becomes


def read_explained(path: Path) -> list[Explanation]:
    """The entries of `explained.toml`; an entry without a reason is refused."""
    entries = tomllib.loads(path.read_text("utf-8")).get("explained", [])
    for entry in entries:
        if set(entry) != {"where", "becomes", "reason"} or not entry["reason"].strip() or not entry["becomes"]:
            raise ValueError(f"{path.name}: an entry needs where, becomes and a reason: {entry}")
    return [Explanation(e["where"], frozenset(e["becomes"]), e["reason"]) for e in entries]


def read_mutants(source: Path, exit_codes: Mapping[str, int | None]) -> Iterator[Mutant]:
    """The mutants of one file that mutmut wrote, which holds every function as it was and once more for each mutant."""
    text = source.read_text("utf-8")
    source_lines = text.split("\n")  # once: files of a thousand mutants are long
    functions = {
        node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    for name, code in exit_codes.items():
        path, own = name.rsplit(".", 1)
        mangled, _, _ = own.rpartition("__mutmut_")
        module, function = path.removeprefix("specalign."), readable(mangled)
        if code in KILLED:
            yield Mutant(name, module, function, killed=True)
            continue
        before, after = functions[f"{mangled}__mutmut_orig"], functions[own]
        lines = [lines_of(source_lines, node, function) for node in (before, after)]
        yield Mutant(name, module, function, False, only_text_differs(before, after), *changed_lines(*lines))


def read_run(folder: Path) -> list[Mutant]:
    """Every mutant that was run under `folder`, the working directory of mutmut."""
    found: list[Mutant] = []
    for meta in sorted((folder / "mutants").rglob("*.py.meta")):
        codes = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
        found += read_mutants(meta.with_suffix(""), {name: code for name, code in codes.items() if code is not None})
    return found


def readable(mangled: str) -> str:
    """`Rule.states` out of `xǁRuleǁstates`, `to_states` out of `x_to_states`."""
    return mangled.removeprefix("xǁ").replace("ǁ", ".") if mangled.startswith("xǁ") else mangled.removeprefix("x_")


def lines_of(source: Sequence[str], node: Function, function: str) -> list[str]:
    """The stripped source lines of a function, with its own name in place of the mangled one."""
    own = source[node.lineno - 1 : node.end_lineno]
    return [line.strip().replace(node.name, function.rpartition(".")[2]) for line in own]


def changed_lines(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """The lines that went and the lines that came, each joined to one text."""
    removed: list[str] = []
    added: list[str] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += before[i:j]
            added += after[k:m]
    return "\n".join(removed), "\n".join(added)


def only_text_differs(before: ast.AST, after: ast.AST) -> bool:
    """The two functions differ in string constants alone, each of them prose that a person reads (see `_prose`).

    Everything doubtful counts as a difference: a string outside of such a place, a string that became None, another node.
    """
    same_but_names = {"name"}
    return all(_same(before, after, field, prose=False) for field in before._fields if field not in same_but_names)


def _same(before: ast.AST, after: ast.AST, field: str, *, prose: bool) -> bool:
    old, new = getattr(before, field, None), getattr(after, field, None)
    olds, news = (value if isinstance(value, list) else [value] for value in (old, new))
    if len(olds) != len(news):
        return False
    for place, (a, b) in enumerate(zip(olds, news, strict=True)):
        here = _prose(before, field, place, prose) and _prose(after, field, place, prose)
        if not _equal(a, b, prose=here):
            return False
    return True


def _equal(a: object, b: object, *, prose: bool) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, ast.Constant) and isinstance(b, ast.Constant):
        both_text = isinstance(a.value, str) and isinstance(b.value, str)
        return (prose and both_text) or (type(a.value) is type(b.value) and a.value == b.value)
    if isinstance(a, ast.AST) and isinstance(b, ast.AST):
        return all(_same(a, b, field, prose=prose) for field in a._fields)
    return a == b


def _prose(node: ast.AST, field: str, place: int, prose: bool) -> bool:
    """Whether the child of `node` in `field` is prose: the message of an exception or finding, `why`, or a part of such a text."""
    match node:
        case ast.JoinedStr() | ast.BinOp(op=ast.Add()) | ast.BoolOp():
            return prose
        case ast.FormattedValue():
            return prose and field == "value"
        case ast.IfExp():
            return prose and field in ("body", "orelse")
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return field == "args" and (name.endswith("Error") or PROSE_ARGUMENTS.get(name) == place)
        case ast.keyword(arg=str(arg)):
            return field == "value" and arg in PROSE_KEYWORDS
        case ast.Assign(targets=[ast.Name(id="why")]):
            return field == "value"
        case _:
            return False

"""The mutation runner judges survivors: wording is told from behaviour, and doubt counts as behaviour."""

from __future__ import annotations

import ast
import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.classify import Explanation, Mutant, only_text_differs, read_explained, read_run, readable
from tests.mutation.run import EXPLAINED, campaigns, fate_of, mutmut_table, run_mutmut, stale, table

TEXT = [
    ('raise LayerIdError("a bad id")', 'raise LayerIdError("XXa bad idXX")'),
    ('raise LayerIdError(f"id {k}" " is bad")', 'raise LayerIdError(f"id {k}" " IS BAD")'),
    ('raise InputError("a" if k else "b")', 'raise InputError("a" if k else "B")'),
    ('why = "it says so"', 'why = "IT SAYS SO"'),
    ('f = finding("code", s, "what", where="w", next="n")', 'f = finding("code", s, "WHAT", where="w", next="n")'),
    ('f = finding("code", s, "what", where="w", next="n")', 'f = finding("code", s, "what", where="w", next="N")'),
    (
        'f = case.found("code", s, "what", where="w", next=a or "n")',
        'f = case.found("code", s, "what", where="w", next=a or "N")',
    ),
]
BEHAVIOUR = [
    ('raise LayerIdError("a bad id")', "raise LayerIdError(None)"),
    ('raise LayerIdError("a bad id")', 'raise ValueError("a bad id")'),
    ('raise LayerIdError("a bad id")', 'return LayerIdError("a bad id")'),
    ('raise LayerIdError(f"{table["a"]}")', 'raise LayerIdError(f"{table["A"]}")'),
    ('raise LayerIdError("a" if k == "x" else "b")', 'raise LayerIdError("a" if k == "X" else "b")'),
    ('raise LayerIdError(", ".join(names))', 'raise LayerIdError("XX, XX".join(names))'),
    ('f = finding("code", s, "what", where="w", next="n")', 'f = finding("CODE", s, "what", where="w", next="n")'),
    ('f = finding("code", s, "what", where="w", next="n")', 'f = finding("code", s, "what", where="W", next="n")'),
    ('f = finding("code", s, "what", where="w", next="n")', 'f = finding("code", s, "what", where="w", next=None)'),
    ('return "output"', 'return "OUTPUT"'),
    ('name = f"layers" ".0"', 'name = f"layers" ".O"'),
    ('why = "it says so"', "why = None"),
    ('if k == "a": pass', 'if k == "A": pass'),
    ("return 1", "return 2"),
    ("return 1", "return True"),
    ("return a or b", "return a and b"),
]


def function(body: str, name: str = "f") -> ast.AST:
    return ast.parse(f"def {name}(k):\n    {body}").body[0]


@pytest.mark.parametrize(("before", "after"), TEXT)
def test_only_the_wording_of_a_message_is_text(before: str, after: str) -> None:
    assert only_text_differs(function(before), function(after, "f_mutant"))


@pytest.mark.parametrize(("before", "after"), BEHAVIOUR)
def test_everything_else_is_behaviour(before: str, after: str) -> None:
    before, after = (side.replace('["a"]', "['a']").replace('["A"]', "['A']") for side in (before, after))
    assert not only_text_differs(function(before), function(after, "f_mutant"))


def test_a_changed_default_of_an_argument_is_behaviour() -> None:
    before, after = (ast.parse(f"def f(k={word!r}): pass").body[0] for word in ("refuse", "REFUSE"))
    assert not only_text_differs(before, after)


@pytest.mark.parametrize(
    ("mangled", "name"), [("xǁRuleǁstates", "Rule.states"), ("x_to_states", "to_states"), ("x__arrive", "_arrive")]
)
def test_names_are_read_back(mangled: str, name: str) -> None:
    assert readable(mangled) == name


@pytest.fixture
def mutants(tmp_path: Path) -> dict[str, Mutant]:
    """A run over one function: a killed mutant, a text, one that no test ran, one that was not asked for."""
    source = tmp_path / "mutants" / "src" / "specalign" / "layer_ids" / "rules.py"
    source.parent.mkdir(parents=True)
    bodies = {"orig": ("1", "bad"), "1": ("2", "bad"), "2": ("1", "BAD"), "3": ("3", "bad"), "4": ("4", "bad")}
    source.write_text(
        "".join(
            textwrap.dedent(
                f"""
                def x_top__mutmut_{number}(k):
                    if k:
                        raise LayerIdError("{word}")
                    return {value}
                """
            )
            for number, (value, word) in bodies.items()
        ),
        "utf-8",
    )
    codes = {
        f"specalign.layer_ids.rules.x_top__mutmut_{number}": code for number, code in zip("1234", (1, 0, 33, None), strict=True)
    }
    source.with_name("rules.py.meta").write_text(json.dumps({"exit_code_by_key": codes}), "utf-8")
    return {mutant.name[-1]: mutant for mutant in read_run(tmp_path)}


def test_a_run_is_read_back(mutants: dict[str, Mutant]) -> None:
    assert set(mutants) == {"1", "2", "3"}
    assert mutants["1"].killed
    assert mutants["2"].text
    assert (mutants["3"].where, mutants["3"].removed, mutants["3"].added) == ("layer_ids.rules.top", "return 1", "return 3")
    assert mutants["3"].format().splitlines()[1:] == ["  - return 1", "  + return 3"]


def test_a_survivor_needs_an_explanation_of_that_very_change(mutants: dict[str, Mutant]) -> None:
    right = Explanation("layer_ids.rules.top", frozenset({"return 3"}), "the same")
    other = Explanation("layer_ids.rules.top", frozenset({"return 5"}), "another change")
    assert [fate_of(m, [other]) for m in mutants.values()] == ["killed", "text", "unexplained"]
    assert [fate_of(m, [right]) for m in mutants.values()] == ["killed", "text", "explained"]
    assert stale(list(mutants.values()), [right, other]) == ["layer_ids.rules.top: return 5"]


def test_the_table_counts_each_fate_and_hands_on_what_nothing_explains(mutants: dict[str, Mutant]) -> None:
    text, unexplained = table(list(mutants.values()), [])
    assert text.splitlines()[0].split() == ["room", "mutants", "killed", "text", "explained", "unexplained"]
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["layer_ids.rules", "3", "1", "1", "0", "1"],
        ["total", "3", "1", "1", "0", "1"],
    ]
    assert unexplained == [mutants["3"]]


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "explained.toml"
    path.write_text('[[explained]]\nwhere = "a.b"\nbecomes = ["x"]\nreason = " "\n', "utf-8")
    with pytest.raises(ValueError, match="reason"):
        read_explained(path)


def test_every_entry_of_ours_is_read() -> None:
    assert all(entry.reason for entry in read_explained(EXPLAINED))


def test_layer_ids_are_run_in_full_and_the_other_rooms_by_sample() -> None:
    assert [(c.name, c.places, c.sample) for c in campaigns((), 200)] == [
        ("layer_ids", ("layer_ids",), None),
        ("sample", ("capture", "draft"), 200),
        ("compared", ("dump", "compare"), 200),
    ]
    assert [c.places for c in campaigns(["layer_ids/rules"], 5)] == [("layer_ids/rules",)]
    assert '"src/specalign/layer_ids/rules.py"' in mutmut_table(campaigns(["layer_ids/rules"], 5)[0])
    with pytest.raises(SystemExit, match="cli"):
        campaigns(["cli"], 5)


def test_workers_have_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch waits forever for its threads after a fork, and a run without end counts as a test that failed."""
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: started.append((command[1:], options)))
    run_mutmut(campaigns(["draft"], 5)[0], ["a", "b"])
    ((command, options),) = started
    assert command == ["-m", "mutmut", "run", "a", "b"]
    assert (options["env"]["OMP_NUM_THREADS"], options["env"]["MKL_NUM_THREADS"]) == ("1", "1")
    assert options["env"]["PATH"]

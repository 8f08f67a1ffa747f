"""A prompt file is read by what it holds, and what is no prompt file is refused with the line that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specalign.acceptance import AcceptanceError
from specalign.acceptance import prompts as module
from specalign.acceptance.prompts import Prompt, read_prompts

MT_BENCH = [
    {
        "question_id": 81,
        "category": "writing",
        "turns": ["Compose a travel blog post about Hawaii.", "Rewrite it. Start every sentence with the letter A."],
    },
    {
        "question_id": 101,
        "category": "reasoning",
        "turns": ["You overtake the second.", "And the last?"],
        "reference": ["second", "?"],
    },
]
HUMAN_EVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n    '''x'''\n",
        "entry_point": "f",
        "canonical_solution": "",
        "test": "def check",
    },
    {"task_id": "HumanEval/1", "prompt": "def g():\n", "entry_point": "g", "canonical_solution": "", "test": ""},
]


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def refusal(file: Path, data: bytes) -> str:
    file.write_bytes(data)
    with pytest.raises(AcceptanceError) as caught:
        read_prompts(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert message.isprintable()
    return message.removeprefix(str(file))


def test_both_turns_of_mt_bench_are_kept(file: Path) -> None:
    file.write_bytes(lines(*MT_BENCH))
    assert read_prompts(file) == (
        Prompt(
            "81", ("Compose a travel blog post about Hawaii.", "Rewrite it. Start every sentence with the letter A."), "mt-bench"
        ),
        Prompt("101", ("You overtake the second.", "And the last?"), "mt-bench"),
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip, whatever the name ends in"])
def test_human_eval(file: Path, pack: type[bytes]) -> None:
    file.write_bytes(pack(lines(*HUMAN_EVAL)))
    assert read_prompts(str(file)) == (
        Prompt("HumanEval/0", ("def f():\n    '''x'''\n",), "humaneval"),
        Prompt("HumanEval/1", ("def g():\n",), "humaneval"),
    )


def test_plain_lines_are_named_by_their_id_or_their_line(file: Path) -> None:
    chat = [{"role": "user", "content": "c"}, {"role": "user", "content": "d"}]
    file.write_bytes(b"\n" + lines({"prompt": "a\u2028b", "id": 7}, {"text": " b "}, {"messages": chat, "id": "x", "topic": 1}))
    assert read_prompts(file) == (
        Prompt("7", ("a\u2028b",), "jsonl"),
        Prompt("line-3", (" b ",), "jsonl"),
        Prompt("x", ("c", "d"), "jsonl"),
    )


def test_lines_end_at_newlines_only_and_windows_ends_are_taken(file: Path) -> None:
    file.write_bytes('{"prompt": "é\u2028\x85b"}\r\n{"prompt": "c"}\r\n'.encode())
    assert [item.turns for item in read_prompts(file)] == [("é\u2028\x85b",), ("c",)]
    file.write_bytes(b'{"prompt":\r"a"}\r\n\r\n{"prompt": "b"}')
    assert [item.name for item in read_prompts(file)] == ["line-1", "line-3"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", ": no prompt in it; accepted are MT-Bench", id="an empty file"),
        pytest.param(b"\n \n", ": no prompt in it; accepted are MT-Bench", id="blank lines"),
        pytest.param(b"hello\n", ", line 1: not JSON (Expecting value at column 1): 'hello'", id="text"),
        pytest.param(b'{"prompt": "a"}\n{"prompt": "b"', ", line 2: not JSON", id="cut short"),
        pytest.param(lines({"prompt": "a"}) + b'{"prompt": "\xe9"}\n', ", line 2: not UTF-8 (byte 0xe9 at 12)", id="Latin-1"),
        pytest.param("﻿".encode() + lines({"prompt": "a"}), ", line 1: not JSON (Unexpected UTF-8 BOM", id="a byte order mark"),
        pytest.param(b'{"prompt": "a", "prompt": "b"}', ", line 1: key 'prompt' comes twice", id="a key twice"),
        pytest.param(b"[" * 200_000, ", line 1: JSON nested too deep", id="nested too deep"),
        pytest.param(b'{"prompt": ' + b"9" * 5000 + b"}", ", line 1: JSON holds a number too long", id="a number too long"),
        pytest.param(lines(MT_BENCH), ", line 1: found a list of 2; accepted are", id="a list of questions"),
        pytest.param(lines("a"), ", line 1: found the text 'a'; accepted are", id="a text"),
        pytest.param(lines(None), ", line 1: found null; accepted are", id="null"),
        pytest.param(lines({}), ", line 1: found an empty object", id="an empty object"),
        pytest.param(lines({"question": "a"}), ", line 1: found an object with keys 'question'; accepted", id="another shape"),
        pytest.param(
            lines({"prompt": "a", "text": "b"}), ", line 1: found an object with keys 'prompt', 'text'", id="two prompts"
        ),
        pytest.param(
            lines({"task_id": 2, "text": "b"}), ", line 1: found an object with keys 'task_id', 'text'", id="half of HumanEval"
        ),
        pytest.param(lines({"question_id": 2, "prompt": "b"}), ", line 1: found an object with keys", id="half of MT-Bench"),
        pytest.param(lines({"turns": ["a"]}), ", line 1: found an object with keys 'turns'", id="turns without a question"),
        pytest.param(
            lines(MT_BENCH[0], HUMAN_EVAL[0]), ", line 2: a line of humaneval, and line 1 is one of mt-bench", id="two formats"
        ),
        pytest.param(
            b"\n" + lines({"prompt": "a"}, MT_BENCH[0]), ", line 3: a line of mt-bench, and line 2 is one of jsonl", id="mixed"
        ),
        pytest.param(
            lines({"prompt": "a"}, {"prompt": "b"}, MT_BENCH[0]), ", line 3: a line of mt-bench, and line 1 is", id="mixed late"
        ),
        pytest.param(lines({"prompt": ""}), ", line 1: prompt is a text without characters, and", id="an empty prompt"),
        pytest.param(lines({"prompt": " \n"}), ", line 1: prompt is a text without characters, and", id="a blank prompt"),
        pytest.param(lines({"text": None}), ", line 1: text is null, and a text that is not blank", id="no prompt"),
        pytest.param(lines({"text": 3.5}), ", line 1: text is 3.5, and", id="a number as prompt"),
        pytest.param(lines({"text": "\ud800"}), ", line 1: text holds half a surrogate pair", id="half a surrogate pair"),
        pytest.param(lines({"text": "a", "id": True}), ", line 1: id is true, and a text or a whole number", id="true as id"),
        pytest.param(lines({"text": "a", "id": ""}), ", line 1: id is a text without characters", id="an empty id"),
        pytest.param(lines({"text": "a", "id": None}), ", line 1: id is null", id="null as id"),
        pytest.param(lines({"question_id": 1, "turns": []}), ", line 1: turns is a list of 0", id="no turn"),
        pytest.param(lines({"question_id": 1, "turns": "a"}), ", line 1: turns is the text 'a'", id="a text for turns"),
        pytest.param(
            lines({"question_id": 1, "turns": ["a", ""]}), ", line 1: turn 2 is a text without", id="an empty second turn"
        ),
        pytest.param(lines({"messages": []}), ", line 1: messages is a list of 0", id="no message"),
        pytest.param(lines({"messages": ["a"]}), ", line 1: message 1 is the text 'a'", id="a message without a role"),
        pytest.param(
            lines({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            ", line 1: message 2 has the role the text 'assistant', and only the user's turns are taken",
            id="a stored answer",
        ),
        pytest.param(
            lines({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            ", line 1: content of message 1 is a list of 1",
            id="content in parts",
        ),
        pytest.param(
            lines({"prompt": "a", "id": 1}, {"prompt": "b"}, {"prompt": "c", "id": "1"}),
            ", line 3: the name '1' is that of line 1 already",
            id="a name twice",
        ),
        pytest.param(
            lines({"prompt": "a", "id": "line-2"}, {"prompt": "b"}), ", line 2: the name 'line-2' is", id="a line's name"
        ),
        pytest.param(gzip.compress(b"x" * 999)[:-9], ": packed with gzip, and damaged or cut short", id="half a gzip file"),
        pytest.param(b"\x1f\x8b" + b"\xff" * 40, ": packed with gzip, and damaged or cut short", id="no gzip file"),
        pytest.param(
            gzip.compress(b"x" * 999)[:10] + b"\xff" * 20, ": packed with gzip, and damaged or cut short", id="damaged inside"
        ),
        pytest.param(gzip.compress(b""), ": no prompt in it", id="nothing, packed"),
    ],
)
def test_what_is_no_prompt_file_is_refused_with_its_line(file: Path, data: bytes, expected: str) -> None:
    assert refusal(file, data).startswith(expected)


def test_a_refusal_says_what_is_accepted(file: Path) -> None:
    for data in (lines({}), lines({"prompt": ""}), b""):
        assert "MT-Bench (question_id, turns), HumanEval (task_id, prompt) and plain lines" in refusal(file, data)


def test_what_unpacks_to_too_much_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    assert "unpacks to more than the 1000 bytes" in refusal(file, gzip.compress(b" " * 1001))
    assert ": 1001 bytes, more than the 1000" in refusal(file, b" " * 1001)


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "nul\0"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AcceptanceError):
        read_prompts(str(tmp_path / name))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["question_id", "turns", "task_id", "prompt", "text", "messages", "id", "role", "content"])
            | st.text(),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary() | st.lists(JSON, min_size=1, max_size=4).map(lambda records: lines(*records)), pack=st.booleans())
def test_anything_is_read_or_refused_and_nothing_else_happens(file: Path, data: bytes, pack: bool) -> None:
    file.write_bytes(gzip.compress(data) if pack else data)
    try:
        found = read_prompts(file)
    except AcceptanceError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert found
    assert len({item.name for item in found}) == len(found)
    assert all(item.turns and all(turn.strip() for turn in item.turns) for item in found)

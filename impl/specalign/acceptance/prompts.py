"""Prompts from the files that benchmarks of draft heads use. Which format a file has is told from its content.

| format | a line | name | turns |
| --- | --- | --- | --- |
| MT-Bench `question.jsonl` | `question_id`, `turns` | the question's id | all, in order |
| HumanEval `.jsonl`, `.jsonl.gz` | `task_id`, `prompt` | the task's id | 1 |
| plain JSONL | one of `prompt`, `text`, `messages`; `id` if wanted | its `id`, or `line-N` | 1, or those of `messages` |

Of `messages` the user's turns are read. A stored answer in between ("assistant") is refused, as is "system": the target answers
each turn itself, so a stored answer would either be ignored, or make the prompt another one than that measured elsewhere. Further
keys of a line (category, reference, test, …) are not looked at. A file has one format. Blank lines are skipped, but counted.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.strict_json import kind, numbered_lines, parse
from specalign.layer_ids.files import InputError, is_unicode, quoted, read_bounded, shown

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a file, and of what a packed one unpacks to. MT-Bench is 50 KB, HumanEval 214 KB."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        name: unique within its file.
        turns: what the user says, in order; at least one, none of them blank.
        source: the format it was read from: a key of `FORMATS`.
    """

    name: str
    turns: tuple[str, ...]
    source: str


class _ShapeError(ValueError):
    """What a line holds in place of what its format wants; never leaves this module."""


def _mt_bench(record: Mapping[str, object], line: int) -> tuple[str, tuple[str, ...]]:
    turns = record["turns"]
    if not isinstance(turns, list) or not turns:
        raise _ShapeError(f"turns is {kind(turns)}, and a list of at least one text is wanted")
    return _name(record, "question_id"), tuple(_text(turn, f"turn {place}") for place, turn in enumerate(turns, 1))


def _human_eval(record: Mapping[str, object], line: int) -> tuple[str, tuple[str, ...]]:
    return _name(record, "task_id"), (_text(record["prompt"], "prompt"),)


def _plain(record: Mapping[str, object], line: int) -> tuple[str, tuple[str, ...]]:
    name = _name(record, "id") if "id" in record else f"line-{line}"
    key = next(key for key in ("prompt", "text", "messages") if key in record)
    if key != "messages":
        return name, (_text(record[key], key),)
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise _ShapeError(f"messages is {kind(messages)}, and a list of at least one message is wanted")
    return name, tuple(_user_turn(message, place) for place, message in enumerate(messages, 1))


_Reader: TypeAlias = Callable[[Mapping[str, object], int], tuple[str, tuple[str, ...]]]
_CONTENT: Final = ("turns", "prompt", "text", "messages")
_NAMES: Final = ("question_id", "task_id")

FORMATS: Final[Mapping[str, _Reader]] = {"mt-bench": _mt_bench, "humaneval": _human_eval, "jsonl": _plain}

_SHAPES: Final[Mapping[frozenset[str], str]] = {
    frozenset({"question_id", "turns"}): "mt-bench",
    frozenset({"task_id", "prompt"}): "humaneval",
    frozenset({"prompt"}): "jsonl",
    frozenset({"text"}): "jsonl",
    frozenset({"messages"}): "jsonl",
}
"""Which of the keys in `_CONTENT` and `_NAMES` a line has -> its format."""

_ACCEPTED: Final = (
    "accepted are MT-Bench (question_id, turns), HumanEval (task_id, prompt) and plain lines with one of prompt, text, messages"
    " (id if wanted), one JSON object a line"
)


def read_prompts(path: Path | str) -> tuple[Prompt, ...]:
    """The prompts of a file, in its order.

    Args:
        path: a regular file of at most `MAX_BYTES`, UTF-8, or packed with gzip.

    Raises:
        AcceptanceError: the file cannot be read or is empty; a line is no JSON or has another shape than those above, or another
            than the first line has; a prompt is blank or no text; a name came before.
    """
    where = shown(path)
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    first = 0
    for number, text in numbered_lines(_bytes(path, where), where):
        place = f"{where}, line {number}"
        record = parse(text, place)
        source = _format(record, place)
        if prompts and source != prompts[0].source:
            raise AcceptanceError(
                f"{place}: a line of {source}, and line {first} is one of {prompts[0].source}; a file has one format: split it"
            )
        assert isinstance(record, dict)  # noqa: S101  (_format takes nothing else)
        try:
            name, turns = FORMATS[source](record, number)
        except _ShapeError as error:
            raise AcceptanceError(f"{place}: {error}; {_ACCEPTED}") from error
        if name in lines:
            raise AcceptanceError(
                f"{place}: the name {quoted(name)} is that of line {lines[name]} already; figures over prompts need each of them"
                " once, under its own name"
            )
        first = first or number
        lines[name] = number
        prompts.append(Prompt(name, turns, source))
    if not prompts:
        raise AcceptanceError(f"{where}: no prompt in it; {_ACCEPTED}")
    return tuple(prompts)


def _format(record: object, place: str) -> str:
    keys = frozenset(record) & {*_CONTENT, *_NAMES} if isinstance(record, dict) else frozenset()
    source = _SHAPES.get(keys)
    if source is None:
        raise AcceptanceError(f"{place}: found {kind(record)}; {_ACCEPTED}")
    return source


def _name(record: Mapping[str, object], key: str) -> str:
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise _ShapeError(f"{key} is {kind(value)}, and a text or a whole number is wanted")
    return _unicode(str(value), key)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _ShapeError(f"{what} is {kind(value)}, and a text that is not blank is wanted")
    return _unicode(value, what)


def _unicode(text: str, what: str) -> str:
    """The text, which a tokenizer can take: half of a surrogate pair is no character."""
    if not is_unicode(text):
        raise _ShapeError(f"{what} holds half a surrogate pair, which is no character: {quoted(text)}")
    return text


def _user_turn(message: object, place: int) -> str:
    if not isinstance(message, dict) or not {"role", "content"} <= set(message):
        raise _ShapeError(f"message {place} is {kind(message)}, and an object with role and content is wanted")
    if message["role"] != "user":
        raise _ShapeError(
            f"message {place} has the role {kind(message['role'])}, and only the user's turns are taken: the target answers each"
            " turn itself; leave the others out"
        )
    return _text(message["content"], f"content of message {place}")


def _bytes(path: Path | str, where: str) -> bytes:
    try:
        data = read_bounded(Path(path), MAX_BYTES)
    except InputError as error:
        raise AcceptanceError(str(error)) from error
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            data = packed.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise AcceptanceError(f"{where}: packed with gzip, and damaged or cut short ({error}); fetch it again") from error
    if len(data) > MAX_BYTES:
        raise AcceptanceError(f"{where}: unpacks to more than the {MAX_BYTES} bytes that are read here; is this the right file?")
    return data

"""Prompts as tokens: the model's own chat template, and the target's own answer between two turns."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from specalign.acceptance.prompts import Prompt
from specalign.draft import DraftError
from specalign.speculate import decode_plain
from specalign.speculate.conversation import prompt_tokens

from .pairs import make_target

TEMPLATE = (
    "{% for m in messages %}{{ 'w10 ' if m.role == 'user' else 'w11 ' }}{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w11{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(13)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    made.chat_template = TEMPLATE
    return made


def said(target: Any, prompt: list[int]) -> list[int]:
    """The answer as text again: special tokens (w0 here) are left out."""
    return [token for token in decode_plain(target, [prompt], 4)[0].tokens if token]


def test_a_single_turn_is_the_template_up_to_where_the_answer_begins(tokenizer: Any) -> None:
    found = prompt_tokens(make_target(), tokenizer, [Prompt("a", ("w1 w2",), "jsonl")], new_tokens=4)
    assert found == {"a": [10, 1, 2, 11]}


def test_a_second_turn_follows_the_targets_own_answer(tokenizer: Any) -> None:
    target = make_target()
    prompts = [Prompt("long", ("w1 w2", "w3", "w4 w5"), "mt-bench"), Prompt("short", ("w6",), "jsonl")]
    found = prompt_tokens(target, tokenizer, prompts, new_tokens=4)
    assert list(found) == ["long/1", "short", "long/2", "long/3"]
    first = said(target, [10, 1, 2, 11])
    assert found["long/2"] == [10, 1, 2, 11, *first, 10, 3, 11]
    second = said(target, found["long/2"])
    assert first
    assert second
    assert found["long/3"] == [10, 1, 2, 11, *first, 10, 3, 11, *second, 10, 4, 5, 11]
    assert found["short"] == [10, 6, 11]


def test_without_a_template_a_prompt_is_text_and_has_one_turn(tokenizer: Any) -> None:
    import copy

    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    assert prompt_tokens(make_target(), plain, [Prompt("a", ("w1 w2",), "jsonl")], new_tokens=4) == {"a": [1, 2]}
    with pytest.raises(DraftError, match="b has 2 turns, and the target's tokenizer has no chat template"):
        prompt_tokens(make_target(), plain, [Prompt("b", ("w1", "w2"), "mt-bench")], new_tokens=4)

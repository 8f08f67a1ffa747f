"""Greedy draft–verify decoding says token for token what transformers' own generate says, whatever is drafted."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from specalign.acceptance import replay_rounds
from specalign.draft import DraftError
from specalign.speculate import TreeShape, decode_plain, decode_speculative, draft_rows
from specalign.speculate.decode import Decoded

from .pairs import FAMILIES, STATES, VOCABULARY, make_head, make_target, prompts

NEW = 12
LONG = 80  # a random head is right often enough in so many rounds that another draft shows
SHAPES = {
    "a chain of 1": TreeShape(1),
    "a chain of 4": TreeShape(4),
    "width 3": TreeShape(3, 3),
    "width 3, the 7 best": TreeShape(3, 3, 7),
    "as wide as the vocabulary": TreeShape(2, VOCABULARY),
}


def generated(target: Any, prompt: list[int], end: int | None = None, new: int = NEW) -> tuple[int, ...]:
    """transformers' own greedy answer."""
    return _generated(target, tuple(prompt), end, new)


@functools.cache
def _generated(target: Any, prompt: tuple[int, ...], end: int | None, new: int) -> tuple[int, ...]:
    said = target.model.generate(
        torch.tensor([prompt]), max_new_tokens=new, do_sample=False, eos_token_id=end, attention_mask=torch.ones(1, len(prompt))
    )
    return tuple(said[0, len(prompt) :].tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_is_that_of_transformers(family: str) -> None:
    target, given = make_target(family), prompts(9, 3, 1, 14)
    expected = [generated(target, prompt) for prompt in given]
    assert [item.tokens for item in decode_plain(target, given, NEW)] == expected


@pytest.mark.parametrize(
    ("family", "shape"),
    [pytest.param(family, shape, id=f"{family}, {name}") for family in FAMILIES for name, shape in SHAPES.items()
     if family == "llama" or name in ("a chain of 4", "width 3, the 7 best")],
)  # fmt: skip
def test_greedy_answers_are_those_of_transformers(family: str, shape: TreeShape) -> None:
    target, given = make_target(family), prompts(9, 3, 1, 14)
    expected = [generated(target, prompt) for prompt in given]
    together = decode_speculative(target, make_head(), STATES, given, NEW, shape=shape)
    assert [item.tokens for item in together] == expected
    alone = [decode_speculative(target, make_head(), STATES, [prompt], NEW, shape=shape)[0] for prompt in given]
    assert alone == together  # rounds too: a batch drafts what each sequence drafts by itself
    if shape.width == VOCABULARY:
        assert sum(item.accepted for answer in together for item in answer.rounds) > 0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("small", [False, True], ids=["the target's vocabulary", "its own vocabulary"])
def test_other_attention_and_vocabulary(attention: str, small: bool) -> None:
    target, given = make_target(attention=attention), prompts(6, 8)
    found = decode_speculative(target, make_head(small=small), STATES, given, NEW, shape=TreeShape(3, 2))
    assert [item.tokens for item in found] == [generated(target, prompt) for prompt in given]


def test_a_tree_that_holds_every_token_accepts_all() -> None:
    """A width of the whole vocabulary leaves nothing to guess at the first depth."""
    target = make_target()
    (found,) = decode_speculative(target, make_head(), STATES, prompts(5), NEW, shape=TreeShape(1, VOCABULARY))
    assert [item.accepted for item in found.rounds] == [1] * len(found.rounds)


@pytest.mark.parametrize("new", [1, 2, 3, 7])
def test_as_many_tokens_as_wanted(new: int) -> None:
    target, given = make_target(), prompts(4, 7)
    found = decode_speculative(target, make_head(), STATES, given, new, shape=TreeShape(4, 2))
    assert [item.tokens for item in found] == [generated(target, prompt, new=new) for prompt in given]


@pytest.mark.parametrize("end", range(0, VOCABULARY, 3))
def test_nothing_follows_an_end_token(end: int) -> None:
    target, given = make_target(end_tokens=(end,)), prompts(4, 7, 2)
    expected = [generated(target, prompt, end) for prompt in given]
    assert [item.tokens for item in decode_plain(target, given, NEW)] == expected
    found = decode_speculative(target, make_head(), STATES, given, NEW, shape=TreeShape(3, 3))
    assert [item.tokens for item in found] == expected
    for item in found:
        assert sum(r.tokens for r in item.rounds) + 1 >= len(item.tokens)


def replayed(target: Any, head: Any, prompt: list[int], depth: int) -> tuple[Any, ...]:
    """The rounds of a stored run: `draft_rows` over the states of one pass over the whole text."""
    from specalign.capture import capture_states

    said = generated(target, prompt, new=LONG + depth)
    text = torch.tensor([prompt + list(said)])
    with capture_states(target.model, STATES) as capture, torch.no_grad():
        target.model(text)
    hidden = head.combine_states([state[:, :-1] for state in capture.states])
    rows = [head.vocab.to_target(head.logits(step.normed[0]).argmax(-1)).tolist()
            for step in draft_rows(head, text[:, 1:], hidden, depth, first=len(prompt) - 1)]  # fmt: skip
    return replay_rounds(said, lambda at: [row[at] for row in rows], new_tokens=LONG, end_tokens=frozenset())


@pytest.mark.parametrize("kind", [{}, {"num_hidden_layers": 2}, {"norm_output": True}, {"norm_before_fc": True},
                                  {"layer_types": ("sliding_attention",), "sliding_window": 6}], ids=str)  # fmt: skip
def test_the_loop_counts_what_a_replay_of_stored_states_counts(kind: dict[str, Any]) -> None:
    target, head, given = make_target(), make_head(**kind), prompts(9, 5, 4, 7)
    found = decode_speculative(target, head, STATES, given, LONG, shape=TreeShape(4))
    assert [item.rounds for item in found] == [replayed(target, head, prompt, 4) for prompt in given]


def test_a_head_that_was_told_other_states_is_another_drafter_and_answers_stay() -> None:
    target, head, given = make_target(), make_head(), prompts(9, 5, 8, 3)
    right = decode_speculative(target, head, STATES, given, 40)
    wrong = decode_speculative(target, head, [0, 1, 3], given, 40)
    assert [item.tokens for item in right] == [item.tokens for item in wrong]
    assert [item.rounds for item in right] != [item.rounds for item in wrong]


def test_decoded_names_its_counts() -> None:
    assert Decoded((1, 2), ()).named("a").name == "a"


@pytest.mark.parametrize(
    ("given", "new", "message"),
    [
        ([], 3, "0 prompts and 3 new tokens"),
        ([[1]], 0, "1 prompts and 0 new tokens"),
        ([[1], []], 3, "prompt 1 has no token"),
        ([[1, 13]], 3, r"prompt 0 holds token 13, and the target has 0\.\.12"),
        ([[1, -1]], 3, "prompt 0 holds token -1"),
        ([[1] * 510], 3, "prompt 0 has 510 tokens, with 3 new ones more than the target's 512"),
    ],
)
def test_prompts_that_cannot_be_decoded(given: list[list[int]], new: int, message: str) -> None:
    target = make_target()
    with pytest.raises(DraftError, match=message):
        decode_plain(target, given, new)
    with pytest.raises(DraftError, match=message):
        decode_speculative(target, make_head(), STATES, given, new)


def test_a_head_of_another_target_is_refused() -> None:
    target = make_target()
    with pytest.raises(DraftError, match="hidden size: the head has 20, the target 16"):
        decode_speculative(target, _other(target_hidden_size=20), STATES, prompts(3), 2)
    with pytest.raises(DraftError, match="vocabulary: the head has 14, the target 13"):
        decode_speculative(target, _other(vocab_size=14), STATES, prompts(3), 2)
    with pytest.raises(DraftError, match="states: the head takes 3, and \\[0, 3\\] are 2"):
        decode_speculative(target, make_head(), [0, 3], prompts(3), 2)


def _other(**changes: Any) -> Any:
    import dataclasses

    from specalign.draft import Eagle3Head

    return Eagle3Head(dataclasses.replace(make_head().config, **changes), dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(0, 1, None), (1, 0, None), (2, 2, 7), (3, 1, 0)])
def test_shapes_that_are_no_tree(sizes: tuple[int, int, int | None]) -> None:
    with pytest.raises(DraftError, match="no tree has depth"):
        TreeShape(*sizes)

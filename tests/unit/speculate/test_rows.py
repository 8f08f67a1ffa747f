"""All chains of a text at once are the chains that a real loop drafts one after the other, with its cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from specalign.draft.cache import KVCache
from specalign.draft.config import Eagle3Config
from specalign.draft.eagle3 import DraftStep, Eagle3Head
from specalign.draft.errors import DraftError
from specalign.draft.vocab import make_vocab
from specalign.speculate.rows import draft_rows

BASE = Eagle3Config(
    hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=4, vocab_size=40,
    target_hidden_size=12,
)  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "three layers": {"num_hidden_layers": 3},
    "a sliding window of 3": {"layer_types": ("sliding_attention",), "sliding_window": 3},
    "a sliding window of 1": {"layer_types": ("sliding_attention",), "sliding_window": 1},
    "norm_output": {"norm_output": True},
    "norm_before_residual": {"norm_before_residual": True},
    "its own vocabulary": {"draft_vocab_size": 7},
}
STEPS, LENGTH = 5, 9


def make(kind: str) -> Eagle3Head:
    config = dataclasses.replace(BASE, **KINDS[kind])
    d2t = torch.tensor([3, 5, 8, 9, 20, 31, 38]) - torch.arange(7) if config.draft_vocab_size else None
    torch.manual_seed(0)
    head = Eagle3Head(config, make_vocab(size=config.draft_vocab, target_size=40, d2t=d2t), dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 0.5)
    return head.eval().requires_grad_(False)


def loop(head: Eagle3Head, tokens: torch.Tensor, hidden: torch.Tensor, row: int, teacher: bool) -> list[DraftStep]:
    """The chain of one row of one text, as an engine drafts it: a cache, one token a step."""
    cache = KVCache()
    step = head(tokens[: row + 1], hidden[: row + 1], torch.arange(row + 1), cache)
    steps = [DraftStep(step.normed[-1], step.recycled[-1])]
    for count in range(1, STEPS):
        if teacher and row + count >= len(tokens):
            break
        token = tokens[row + count] if teacher else head.vocab.to_target(head.logits(steps[-1].normed).argmax(-1))
        step = head(token.reshape(1), steps[-1].recycled.reshape(1, -1), torch.tensor([row + count]), cache)
        steps.append(DraftStep(step.normed[-1], step.recycled[-1]))
    return steps


@pytest.mark.parametrize("teacher", [False, True], ids=["own tokens", "the text's tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_chain_is_that_of_a_loop(kind: str, teacher: bool) -> None:
    head = make(kind)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 40, (2, LENGTH), generator=generator)
    hidden = torch.randn(2, LENGTH, 16, generator=generator, dtype=torch.float64)
    found = list(draft_rows(head, tokens, hidden, STEPS, teacher=teacher))
    assert len(found) == STEPS
    compared = 0
    for text in range(2):
        for row in range(LENGTH):
            for step, one in enumerate(loop(head, tokens[text], hidden[text], row, teacher)):
                torch.testing.assert_close(found[step].normed[text, row], one.normed, rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(found[step].recycled[text, row], one.recycled, rtol=1e-10, atol=1e-10)
                compared += 1
    assert compared == 2 * (LENGTH * STEPS if not teacher else sum(min(STEPS, LENGTH - row) for row in range(LENGTH)))


def test_gradients_reach_every_parameter_through_the_last_step() -> None:
    head = make("three layers").requires_grad_(True)
    hidden = torch.randn(1, 4, 12 * 3, dtype=torch.float64)
    *_, last = draft_rows(head, torch.tensor([[1, 2, 3, 4]]), head.combine_states(hidden), 3, teacher=True)
    head.logits(last.normed[:, :1]).sum().backward()
    lacking = [name for name, parameter in head.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert lacking == []


@pytest.mark.parametrize(("tokens", "hidden", "steps"), [((4,), (4, 16), 1), ((1, 4), (1, 4, 15), 1), ((1, 4), (1, 4, 16), 0)])
def test_shapes_that_do_not_fit_are_refused(tokens: Any, hidden: Any, steps: int) -> None:
    with pytest.raises(DraftError, match="give \\[batch, T\\]"):
        next(draft_rows(make("one layer"), torch.zeros(tokens, dtype=torch.int64), torch.zeros(hidden), steps))


@pytest.mark.parametrize("teacher", [False, True], ids=["own tokens", "the text's tokens"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [1, LENGTH - 1])
def test_rows_before_the_first_wanted_are_only_seen(kind: str, teacher: bool, first: int) -> None:
    head = make(kind)
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 40, (2, LENGTH), generator=generator)
    hidden = torch.randn(2, LENGTH, 16, generator=generator, dtype=torch.float64)
    whole = list(draft_rows(head, tokens, hidden, STEPS, teacher=teacher))
    part = list(draft_rows(head, tokens, hidden, STEPS, first=first, teacher=teacher))
    for step, (all_rows, some) in enumerate(zip(whole, part, strict=True)):
        rows = slice(first, LENGTH - step if teacher else LENGTH)  # what lies beyond the text means nothing
        count = rows.stop - rows.start
        if count <= 0:
            continue
        torch.testing.assert_close(some.normed[:, :count], all_rows.normed[:, rows], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(some.recycled[:, :count], all_rows.recycled[:, rows], rtol=1e-9, atol=1e-9)

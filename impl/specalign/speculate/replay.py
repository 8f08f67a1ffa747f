"""Replaying drafts on stored runs: one pass of the target a prompt, and then as many heads and faults as one likes.

Greedy answers do not depend on the drafts. So a run is stored once (its tokens, and the states at all positions) and each variant
drafts on it. The counts are those of the real loop: `decode_speculative` with a chain gives the same rounds, but for ties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from specalign.acceptance import PromptRounds, replay_rounds
from specalign.draft import Eagle3Head
from specalign.layer_ids import State
from specalign.speculate.rows import draft_rows
from specalign.speculate.slots import causal
from specalign.speculate.target import Target


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """A greedy run of the target.

    Attributes:
        name: of the prompt.
        tokens: prompt and answer, int64 [T].
        begin: where the answer begins.
        states: by state, [T - 1, hidden]: of every position but the last one's.
    """

    name: str
    tokens: torch.Tensor
    begin: int
    states: Mapping[State, torch.Tensor]

    @property
    def answer(self) -> list[int]:
        """What the target said."""
        said: list[int] = self.tokens[self.begin :].tolist()
        return said


@dataclasses.dataclass(frozen=True, slots=True)
class Teacher:
    """The second witness: how often the head's first choice is right where every token before it is the text's own.

    Attributes:
        right, asked: of each step of a chain.
    """

    right: tuple[int, ...]
    asked: tuple[int, ...]


@torch.no_grad()
def store_run(target: Target, name: str, prompt: Sequence[int], answer: Sequence[int], states: Sequence[State]) -> StoredRun:
    """One pass over prompt and answer."""
    tokens = torch.tensor([[*prompt, *answer]], device=target.device)
    fed = tokens[:, :-1]
    with target.session(states) as session:
        positions = torch.arange(fed.shape[1], device=target.device)[None]
        step = session.run(fed, positions, causal(torch.ones_like(fed, dtype=torch.bool)))
    return StoredRun(name, tokens[0], len(prompt), dict(zip(states, (state[0] for state in step.states), strict=True)))


@torch.no_grad()
def replay(
    head: Eagle3Head | None,
    states: Sequence[State],
    run: StoredRun,
    *,
    depth: int,
    new_tokens: int,
    end_tokens: frozenset[int],
) -> PromptRounds:
    """The rounds that chains of a head give on a stored run.

    Args:
        head: None drafts nothing: every token is a round of its own.
        states: what it is fed.
        run: with at least `depth` tokens more than `new_tokens`, unless it ends before.
        depth: drafts of a chain.
        new_tokens: of the answer.
        end_tokens: each ends the answer.
    """
    if head is None:
        return PromptRounds(run.name, replay_rounds(run.answer, lambda at: (), new_tokens=new_tokens, end_tokens=end_tokens))
    rows = _choices(head, states, run, depth, teacher=False)
    rounds = replay_rounds(run.answer, lambda at: [row[at] for row in rows], new_tokens=new_tokens, end_tokens=end_tokens)
    return PromptRounds(run.name, rounds)


@torch.no_grad()
def teacher_forced(
    head: Eagle3Head, states: Sequence[State], run: StoredRun, *, depth: int, new_tokens: int, end_tokens: frozenset[int]
) -> Teacher:
    """First choices of every step against the text, over the first `new_tokens` of the answer."""
    answer = run.answer
    end = next((place for place, token in enumerate(answer) if token in end_tokens), len(answer) - 1)
    last = min(end, new_tokens - 1)
    rows = _choices(head, states, run, depth, teacher=True)
    right, asked = [], []
    for step, row in enumerate(rows):
        places = range(last - step)  # the chain after answer[at] guesses answer[at + 1 + step]
        right.append(sum(row[at] == answer[at + 1 + step] for at in places))
        asked.append(len(places))
    return Teacher(tuple(right), tuple(asked))


def _choices(head: Eagle3Head, states: Sequence[State], run: StoredRun, depth: int, *, teacher: bool) -> list[list[int]]:
    """Of each step the target token that each row of the answer proposes."""
    dtype = head.norm.weight.dtype
    hidden = head.combine_states([run.states[state][None].to(dtype) for state in states])
    steps = draft_rows(head, run.tokens[None, 1:], hidden, depth, first=run.begin - 1, teacher=teacher)
    return [head.vocab.to_target(head.logits(step.normed[0]).argmax(-1)).tolist() for step in steps]

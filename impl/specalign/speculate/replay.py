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
from specalign.speculate.rows import draft_rows, most_likely
from specalign.speculate.target import Target, read_text


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


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """How far a replay goes.

    Attributes:
        depth: drafts of a chain.
        new_tokens: of the answer.
        end_tokens: each ends the answer.
    """

    depth: int
    new_tokens: int
    end_tokens: frozenset[int]


def store_run(target: Target, name: str, prompt: Sequence[int], answer: Sequence[int], states: Sequence[State]) -> StoredRun:
    """One pass over prompt and answer."""
    tokens = torch.tensor([*prompt, *answer], device=target.device)
    step = read_text(target, tokens[:-1], states)
    return StoredRun(name, tokens, len(prompt), dict(zip(states, (state[0] for state in step.states), strict=True)))


@torch.no_grad()
def replay(head: Eagle3Head, states: Sequence[State], run: StoredRun, extent: Extent) -> tuple[PromptRounds, Teacher]:
    """The rounds that chains of a head give on a stored run, and the teacher-forced count.

    Args:
        head: the draft head.
        states: what it is fed.
        run: with at least `depth` tokens more than `new_tokens`, unless it ends before.
        extent: see there.
    """
    hidden = head.combine_states([run.states[state][None].to(head.norm.weight.dtype) for state in states])
    drafted = _drafted(head, hidden, run, extent.depth)
    rounds = replay_rounds(
        run.answer, lambda at: [row[at] for row in drafted], new_tokens=extent.new_tokens, end_tokens=extent.end_tokens
    )
    return PromptRounds(run.name, rounds), _teacher(head, hidden, run, extent, drafted[0])


def replay_nothing(run: StoredRun, extent: Extent) -> PromptRounds:
    """No drafting: every token is a round of its own."""
    rounds = replay_rounds(run.answer, lambda at: (), new_tokens=extent.new_tokens, end_tokens=extent.end_tokens)
    return PromptRounds(run.name, rounds)


def _drafted(head: Eagle3Head, hidden: torch.Tensor, run: StoredRun, depth: int) -> list[list[int]]:
    """Of each step the token that each row of the answer drafts; -1 behind a wrong draft, since no round gets there.

    The lm_head takes most of the time, so it is asked for the rows alone whose drafts were right so far.
    """
    answer = run.tokens[run.begin :]
    rows = len(answer)  # the chain of row `at` begins once answer[at] is known
    alive = torch.ones(rows, dtype=torch.bool, device=answer.device)
    picked = torch.zeros(1, rows, dtype=torch.int64, device=answer.device)
    found: list[list[int]] = []
    steps = draft_rows(head, run.tokens[None, 1:], hidden, depth, first=run.begin - 1, choose=lambda step: picked.clamp(min=0))
    for count, step in enumerate(steps, start=1):
        picked = torch.full_like(picked, -1)
        if bool(alive.any()):
            picked[0, alive] = most_likely(head, step.normed[0, alive])
        found.append(picked[0].tolist())
        truth = torch.cat((answer[count:], torch.full((count,), -2, device=answer.device)))[:rows]
        alive &= picked[0] == truth
    return found


def _teacher(head: Eagle3Head, hidden: torch.Tensor, run: StoredRun, extent: Extent, first: Sequence[int]) -> Teacher:
    """First choices of every step against the text, over the first `new_tokens` of the answer; those of step 0 are known."""
    answer = run.answer
    end = next((place for place, token in enumerate(answer) if token in extent.end_tokens), len(answer) - 1)
    last = min(end, extent.new_tokens - 1)
    right, asked = [], []
    steps = draft_rows(head, run.tokens[None, 1:], hidden, extent.depth, first=run.begin - 1, teacher=True)
    for count, step in enumerate(steps):
        places = max(last - count, 0)  # the chain after answer[at] guesses answer[at + 1 + count]
        row = first if count == 0 else most_likely(head, step.normed[0, :places]).tolist()
        right.append(sum(row[at] == answer[at + 1 + count] for at in range(places)))
        asked.append(places)
    return Teacher(tuple(right), tuple(asked))

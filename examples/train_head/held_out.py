"""The held-out prompts: greedy runs of the target with all of its boundaries, and how many drafts of a head it would take."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from pair import as_chat
from texts import sample
from torch import nn

from specalign.capture import capture_states
from specalign.draft import Eagle3Head
from specalign.speculate import draft_rows

DRAFTS = 4
"""Of a chain: an acceptance length lies between 1 and 5."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One prompt and its greedy answer: tokens int64 [T], where the answer begins, and boundaries 0..n [n + 1, T, hidden]."""

    tokens: torch.Tensor
    begin: int
    states: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Replay:
    """All runs."""

    runs: list[Run]


@torch.no_grad()
def replay_texts(model: nn.Module, tokenizer: Any, prompts: list[str], new: int) -> Replay:
    """Greedy runs in float32, all prompts at once; then a pass of its own over each for its states."""
    layers: int = model.config.num_hidden_layers  # type: ignore[assignment, union-attr]
    device, runs = next(model.parameters()).device, []
    rows: list[list[int]] = [tokenizer(as_chat(prompt), add_special_tokens=False)["input_ids"] for prompt in prompts]
    for row, said in zip(rows, sample(model, rows, new, 0.0), strict=True):
        tokens = torch.tensor(row + said, device=device)
        with capture_states(model, list(range(layers + 1))) as capture:
            model(input_ids=tokens[None], use_cache=False, logits_to_keep=1)
        runs.append(Run(tokens, len(row), torch.stack([state[0] for state in capture.states])))
    return Replay(runs)


@torch.no_grad()
def measure(head: Eagle3Head, replay: Replay, boundaries: list[int]) -> float:
    """Acceptance length over all runs: tokens a verification gives, the target's own token counted."""
    tokens = passes = 0
    for run in replay.runs:
        hidden = head.combine_states([run.states[b][None, :-1] for b in boundaries])
        steps = draft_rows(head, run.tokens[None, 1:], hidden, DRAFTS)
        drafts = torch.stack([head.vocab.to_target(head.logits(step.normed[0]).argmax(-1)) for step in steps])
        said = run.tokens.tolist()
        guesses = drafts.tolist()
        at = run.begin  # the first token of the answer is the target's own; the state before it begins the first chain
        while at + 1 < len(said):
            taken = 0
            while taken < DRAFTS and at + 1 + taken < len(said) and guesses[taken][at - 1] == said[at + 1 + taken]:
                taken += 1
            at, tokens, passes = at + taken + 1, tokens + taken + 1, passes + 1
    return tokens / passes

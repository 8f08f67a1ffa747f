"""Plain decoding and draft–verify decoding of a batch of prompts, with the same target, cache and masks.

Greedy draft–verify gives the tokens of plain decoding, whatever the head proposes; sampling gives tokens of one distribution.
The target looks at the last known token and all drafts in one pass, keeps the columns of what it accepted and forgets the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specalign.acceptance import PromptRounds, Round
from specalign.draft import DraftError, Eagle3Head
from specalign.layer_ids import State, format_states
from specalign.speculate.drafter import Drafter, TreeShape
from specalign.speculate.slots import Slots, causal
from specalign.speculate.target import Session, Target, TargetStep
from specalign.speculate.tree import Tree, among_columns
from specalign.speculate.verify import Verdict, verify_greedy, verify_sampling

BATCH: Final = 8
"""Prompts that are decoded at a time where there are many."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """One answer.

    Attributes:
        tokens: of the answer, the end token included, at most as many as were wanted.
        rounds: what draft–verify decoding counted; empty for plain decoding.
    """

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...] = ()

    def named(self, name: str) -> PromptRounds:
        """The counts under the name of the prompt."""
        return PromptRounds(name, self.rounds)


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 is greedy.
        seed: of all that is drawn.
    """

    temperature: float = 0.0
    seed: int = 0

    def generator(self, device: torch.device) -> torch.Generator:
        """A generator of a device, as the seed says."""
        return torch.Generator(device).manual_seed(self.seed)


class _Batch:
    """Sequences with the target's session: which columns hold what, and how far each has come."""

    def __init__(self, session: Session, prompts: Sequence[Sequence[int]], device: torch.device) -> None:
        self.session, self.device = session, device
        self.slots = Slots(len(prompts), device)
        self.lengths = [len(prompt) for prompt in prompts]
        longest = max(self.lengths)
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        self.tokens = torch.tensor(padded, device=device)
        self.real = torch.arange(longest, device=device) < torch.tensor(self.lengths, device=device)[:, None]

    def prefill(self) -> TargetStep:
        """The pass over the prompts."""
        positions = torch.arange(self.tokens.shape[1], device=self.device).expand_as(self.tokens)
        return self.run(self.tokens, positions, causal(self.real), self.real)

    def run(self, tokens: torch.Tensor, positions: torch.Tensor, among: torch.Tensor, real: torch.Tensor) -> TargetStep:
        """A pass over new columns."""
        step = self.session.run(tokens, positions, self.slots.see(among))
        self.slots.add(real)
        return step

    def last(self, of: torch.Tensor) -> torch.Tensor:
        """What belongs to the last token of each prompt: [batch, T, *] → [batch, *]."""
        rows = torch.arange(len(self.lengths), device=self.device)
        return of[rows, torch.tensor(self.lengths, device=self.device) - 1]

    def keep_of_newest(self, kept: torch.Tensor) -> None:
        """Of the newest columns keep these, bool [batch, T]."""
        dropped = torch.zeros_like(self.slots.held)
        dropped[:, len(self.slots) - kept.shape[1] :] = ~kept
        columns = self.slots.drop(dropped)
        if columns is not None:
            self.session.keep(columns)


@torch.no_grad()
def decode_plain(
    target: Target, prompts: Sequence[Sequence[int]], new_tokens: int, sampling: Sampling | None = None
) -> list[Decoded]:
    """One token a pass: what draft–verify decoding must give.

    Args:
        target: the model.
        prompts: token ids, each at least one.
        new_tokens: most tokens of an answer, at least 1.
        sampling: greedy by default.

    Raises:
        DraftError: prompts that cannot be decoded.
    """
    check_prompts(target, prompts, new_tokens)
    sampling = sampling or Sampling()
    generator = sampling.generator(target.device)
    with target.session(()) as session:
        batch = _Batch(session, prompts, target.device)
        picked = _pick(batch.last(batch.prefill().logits), sampling, generator)
        said = [picked]
        ended = _is_end(picked, target)
        for count in range(1, new_tokens):
            if bool(ended.all()):
                break
            places = torch.tensor(batch.lengths, device=target.device)[:, None] + count - 1
            real = ~ended[:, None]
            step = batch.run(picked[:, None], places, causal(real), real)
            picked = _pick(step.logits[:, 0], sampling, generator)
            said.append(picked)
            ended = ended | _is_end(picked, target)
    return [Decoded(_until_end(line, target)) for line in torch.stack(said, dim=1).tolist()]


def answer_all(target: Target, prompts: Mapping[str, Sequence[int]], new_tokens: int) -> dict[str, tuple[int, ...]]:
    """Greedy answers by name; `BATCH` prompts are decoded at a time, the shorter ones first."""
    names = sorted(prompts, key=lambda name: len(prompts[name]))
    answers: dict[str, tuple[int, ...]] = {}
    for at in range(0, len(names), BATCH):
        part = names[at : at + BATCH]
        decoded = decode_plain(target, [prompts[name] for name in part], new_tokens)
        answers |= {name: item.tokens for name, item in zip(part, decoded, strict=True)}
    return answers


@torch.no_grad()
def decode_speculative(
    target: Target,
    head: Eagle3Head,
    states: Sequence[State],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    shape: TreeShape | None = None,
    sampling: Sampling | None = None,
) -> list[Decoded]:
    """Draft–verify decoding.

    Args:
        target: the model.
        head: its draft head.
        states: the states that the head takes, in its order.
        prompts, new_tokens, sampling: as in `decode_plain`.
        shape: of the drafts; by default a chain of 4.

    Raises:
        DraftError: prompts that cannot be decoded, a head of another target.
    """
    check_prompts(target, prompts, new_tokens)
    check_pair(target, head, states)
    shape, sampling = shape or TreeShape(), sampling or Sampling()
    generator = sampling.generator(target.device)
    drawn = sampling.temperature if shape.width == 1 else 0.0
    with target.session(states) as session:
        batch = _Batch(session, prompts, target.device)
        drafter = Drafter(head, len(prompts))
        step = batch.prefill()
        first = _pick(batch.last(step.logits), sampling, generator)
        after = torch.cat((batch.tokens[:, 1:], torch.zeros_like(batch.tokens[:, :1])), dim=1)
        after[torch.arange(len(prompts)), torch.tensor(batch.lengths) - 1] = first
        places = torch.arange(after.shape[1], device=target.device).expand_as(after)
        drafter.follow(after, step.states, places, batch.real)
        answers = [_Answer([token], target.end_tokens, new_tokens) for token in first.tolist()]
        while not all(answer.over for answer in answers):
            drafter.tidy()
            tree = drafter.propose(shape, temperature=drawn, generator=generator)
            over = torch.tensor([answer.over for answer in answers], device=target.device)
            step, root = _look_at(batch, tree, answers, over)
            verdicts = verify_sampling(tree, step.logits, sampling.temperature, generator) if sampling.temperature else (
                verify_greedy(tree, step.logits)
            )  # fmt: skip
            for answer, verdict, tokens in zip(answers, verdicts, tree.tokens.tolist(), strict=True):
                answer.take(verdict, tokens)
            _settle(batch, drafter, tree, step, verdicts, root, over)
    return [answer.decoded() for answer in answers]


def _look_at(batch: _Batch, tree: Tree, answers: Sequence[_Answer], over: torch.Tensor) -> tuple[TargetStep, torch.Tensor]:
    """The target's pass over the last known tokens and the drafts; and the positions of those tokens, int64 [batch]."""
    root = torch.tensor(
        [length + len(answer.tokens) - 1 for length, answer in zip(batch.lengths, answers, strict=True)], device=batch.device
    )
    last = torch.tensor([answer.tokens[-1] for answer in answers], device=batch.device)
    tokens = torch.cat((last[:, None], tree.tokens), dim=1)
    positions = torch.cat((root[:, None], root[:, None] + tree.depths), dim=1)
    real = (~over)[:, None].expand_as(tokens)
    return batch.run(tokens, positions, among_columns(tree.parents), real), root


def _settle(
    batch: _Batch,
    drafter: Drafter,
    tree: Tree,
    step: TargetStep,
    verdicts: Sequence[Verdict],
    root: torch.Tensor,
    over: torch.Tensor,
) -> None:
    """Keep what was accepted in the target's cache, and let the head follow it. `over`: sequences that were over before."""
    device, width = batch.device, tree.tokens.shape[1] + 1
    columns = [[0, *(node + 1 for node in verdict.path)] for verdict in verdicts]
    kept = torch.zeros(len(verdicts), width, dtype=torch.bool, device=device)
    longest = max(map(len, columns))
    where = torch.zeros(len(verdicts), longest, dtype=torch.int64)
    after = torch.zeros(len(verdicts), longest, dtype=torch.int64)
    real = torch.zeros(len(verdicts), longest, dtype=torch.bool)
    drafts = tree.tokens.tolist()
    for row, (path, verdict) in enumerate(zip(columns, verdicts, strict=True)):
        where[row, : len(path)] = torch.tensor(path)
        after[row, : len(path)] = torch.tensor([*(drafts[row][node] for node in verdict.path), verdict.token])
        real[row, : len(path)] = True
    where, after, real = where.to(device), after.to(device), real.to(device) & ~over[:, None]
    kept.scatter_(1, where, real)  # padding points at column 0, the root, as the first entry does
    kept[:, 0] = ~over
    states = [state.gather(1, where[:, :, None].expand(-1, -1, state.shape[2])) for state in step.states]
    places = root[:, None] + torch.arange(longest, device=device)
    drafter.follow(after, states, places, real)
    batch.keep_of_newest(kept)


class _Answer:
    """An answer as it grows."""

    def __init__(self, tokens: list[int], end_tokens: frozenset[int], wanted: int) -> None:
        self.tokens, self._end, self._wanted = tokens, end_tokens, wanted
        self._rounds: list[Round] = []

    @property
    def over(self) -> bool:
        """Whether no further round begins."""
        return len(self.tokens) >= self._wanted or self.tokens[-1] in self._end

    def take(self, verdict: Verdict, drafts: Sequence[int]) -> None:
        """A round's tokens, up to the end token; nothing if the answer is over."""
        if self.over:
            return
        accepted = [drafts[node] for node in verdict.path]
        end = next((place for place, token in enumerate(accepted) if token in self._end), None)
        gained = [*accepted, verdict.token] if end is None else accepted[: end + 1]
        count = len(accepted) if end is None else end + 1
        self._rounds.append(Round(verdict.proposed, count, len(gained)))
        self.tokens += gained

    def decoded(self) -> Decoded:
        """The answer, cut to what was wanted."""
        return Decoded(tuple(self.tokens[: self._wanted]), tuple(self._rounds))


def check_pair(target: Target, head: Eagle3Head, states: Sequence[State]) -> None:
    """Raises `DraftError` if the head cannot belong to the target."""
    config = head.config
    wrong = [
        f"{what}: the head has {mine}, the target {theirs}"
        for what, mine, theirs in (
            ("hidden size", config.target_hidden_size, target.hidden_size),
            ("vocabulary", config.vocab_size, target.vocab_size),
        )
        if mine != theirs
    ]
    if len(states) != config.chunks:
        wrong.append(f"states: the head takes {config.chunks}, and {format_states(states)} are {len(states)}")
    if wrong:
        raise DraftError(f"this head was not made for this target: {'; '.join(wrong)}")


def check_prompts(target: Target, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
    """Raises `DraftError` for prompts that cannot be decoded."""
    if not prompts or new_tokens < 1:
        raise DraftError(f"{len(prompts)} prompts and {new_tokens} new tokens: give at least one of each")
    for place, prompt in enumerate(prompts):
        if not prompt:
            raise DraftError(f"prompt {place} has no token: nothing comes before the first one to be guessed")
        outside = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
        if outside is not None:
            raise DraftError(f"prompt {place} holds token {outside}, and the target has 0..{target.vocab_size - 1}")
        if target.max_tokens is not None and len(prompt) + new_tokens > target.max_tokens:
            raise DraftError(
                f"prompt {place} has {len(prompt)} tokens, with {new_tokens} new ones more than the target's {target.max_tokens}"
            )


def _pick(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> torch.Tensor:
    """A token of each sequence, int64 [batch]."""
    if not sampling.temperature:
        return logits.argmax(-1)
    return torch.multinomial((logits.double() / sampling.temperature).softmax(-1), 1, generator=generator)[:, 0]


def _is_end(tokens: torch.Tensor, target: Target) -> torch.Tensor:
    return torch.isin(tokens, torch.tensor(sorted(target.end_tokens), dtype=tokens.dtype, device=tokens.device))


def _until_end(line: Sequence[int], target: Target) -> tuple[int, ...]:
    end = next((place for place, token in enumerate(line) if token in target.end_tokens), len(line))
    return tuple(line[: end + 1])

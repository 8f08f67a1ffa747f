"""Which convention fits? Ids alone cannot tell boundaries from block outputs; the head can, since it was trained on one of them.

Each candidate feeds the head other states, in one pass over texts whose every token is known, and is asked for its first choice
at every position. What counts is how often that is the target's own first choice. Candidates answer the same questions, so they
are compared text by text (paired bootstrap). A verdict needs two things: the best candidate beats every other one, and it knows
more than whoever always says the most frequent token.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch

from specalign.acceptance.metrics import Interval, paired_share, share
from specalign.draft import Eagle3Head
from specalign.layer_ids import Convention, LayerIdError, State, default_ids, format_states, from_boundaries, to_states
from specalign.speculate.decode import check_pair, check_prompts
from specalign.speculate.rows import draft_rows
from specalign.speculate.target import Target, read_text
from specalign.speculate.variants import variants_of

FEWEST_QUESTIONS: Final = 50

PART: Final = 16
"""Texts between two looks at who is behind."""

LEVEL: Final = 0.99
"""Of the intervals of differences: several candidates are looked at, and several times."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One reading of a head.

    Attributes:
        names: of the readings that come to this, such as "ids as block outputs".
        states: what the head is fed.
        share: of its first choices that are the target's.
        behind: the best candidate's share minus this one's, paired; None for the best itself.
    """

    names: tuple[str, ...]
    states: tuple[State, ...]
    share: Interval
    behind: Interval | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """What was measured.

    Attributes:
        candidates: the best first.
        questions, prompts: how many were asked.
        frequent: the share that whoever always says the most frequent token has.
        num_layers: of the target.
    """

    candidates: tuple[Candidate, ...]
    questions: int
    prompts: int
    frequent: float
    num_layers: int

    @property
    def undecided(self) -> str:
        """Why there is no verdict; "" if there is one."""
        best = self.candidates[0]
        if self.questions < FEWEST_QUESTIONS:
            return f"{self.questions} questions are too few: give more or longer prompts"
        if best.share.low <= self.frequent:
            return (
                f"the best candidate is right in {best.share} of the questions, no more often than always saying the most"
                f" frequent token ({self.frequent:.3f}): this head does not know this target, whatever it is fed"
            )
        close = [item for item in self.candidates[1:] if item.behind is not None and item.behind.low <= 0]
        if close:
            return (
                f"{_named(best)} leads {_named(close[0])} by {close[0].behind}, which is within noise: give more prompts"
                f" ({self.prompts} so far)"
            )
        return ""

    @property
    def verdict(self) -> Candidate | None:
        """The reading that fits; None if undecided."""
        return None if self.undecided else self.candidates[0]


def readings(ids: Sequence[int] | None, num_layers: int) -> dict[str, tuple[State, ...]]:
    """The states that ids may mean: by each convention, and one boundary beside them. Impossible readings are left out.

    Args:
        ids: of the head's config; None for the default.
        num_layers: n of the target.
    """
    stated = tuple(default_ids(num_layers, convention=Convention.BOUNDARY) if ids is None else ids)
    found: dict[str, tuple[State, ...]] = {}
    for name, convention in (
        ("ids are boundaries", Convention.BOUNDARY),
        ("ids are block outputs", Convention.OUTPUT),
        ("ids index output_hidden_states", Convention.HF),
    ):
        try:
            found[name] = to_states(stated, num_layers=num_layers, convention=convention)
        except LayerIdError:
            continue
    for by in (-1, 2):
        moved = tuple(item + by for item in stated)
        if all(0 <= item <= num_layers for item in moved):
            found[f"ids {by:+d} are boundaries"] = moved
    return found


@torch.no_grad()
def probe_head(
    target: Target,
    head: Eagle3Head,
    ids: Sequence[int] | None,
    prompts: Mapping[str, Sequence[int]],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probe:
    """Ask every candidate, the texts in parts: whoever is clearly behind after a part is asked no more.

    Args:
        target: the model.
        head: its draft head.
        ids: those of its config; None for the default.
        prompts: token ids by name: texts that the target knows. Questions are asked from the third token on.
        progress: called with texts done and texts at most.

    Raises:
        DraftError: a head of another target, or prompts that cannot be read.
    """
    texts = [row for row in prompts.values() if len(row) >= 3]
    check_prompts(target, texts, 1)
    names: dict[tuple[State, ...], list[str]] = {}
    for name, made in readings(ids, target.num_layers).items():
        check_pair(target, head, made)
        names.setdefault(made, []).append(name)
    wanted = tuple(dict.fromkeys(state for made in names for state in made))
    race, runs = _Race(names), list[_Run]()
    for at in range(0, len(texts), PART):
        for row in texts[at : at + PART]:
            runs.append(_ask(target, row, wanted))
            race.ask(runs[-1], head)
            progress(len(runs), len(texts))
        if race.narrowed():
            break
    others = [item for item in variants_of(head, race.best, target.num_layers) if item.states == race.best]
    for variant in others:
        if variant.head is not None and variant.fault:
            race.join((*names[race.best], variant.name), race.best, [run.right(variant.head, race.best) for run in runs])
    said = collections.Counter(token for run in runs for token in run.choices[1:].tolist())
    questions = sum(race.asked)
    return Probe(race.ranked(), questions, len(runs), max(said.values()) / questions, target.num_layers)


class _Race:
    """Who was right how often, text by text."""

    def __init__(self, names: Mapping[tuple[State, ...], Sequence[str]]) -> None:
        self.asked: list[int] = []
        self._names = names
        self._right: dict[tuple[State, ...], list[int]] = {made: [] for made in names}
        self._out: list[Candidate] = []
        self._joined: list[tuple[tuple[str, ...], tuple[State, ...], list[int]]] = []

    @property
    def best(self) -> tuple[State, ...]:
        """What feeds the head best so far."""
        return max(self._right, key=lambda made: sum(self._right[made]))

    def ask(self, run: _Run, head: Eagle3Head) -> None:
        """Everyone who is still in answers the questions of a text."""
        self.asked.append(len(run.choices) - 1)
        for made, right in self._right.items():
            right.append(run.right(head, made))

    def narrowed(self) -> bool:
        """Send out who is clearly behind; whether one alone is left."""
        if sum(self.asked) < FEWEST_QUESTIONS:
            return False
        best = self.best
        for made in [made for made in self._right if made != best]:
            candidate = self._candidate(tuple(self._names[made]), made, self._right[made], self._right[best])
            if candidate.behind is not None and candidate.behind.low > 0:
                self._out.append(candidate)
                del self._right[made]
        return len(self._right) == 1

    def join(self, names: tuple[str, ...], states: tuple[State, ...], right: list[int]) -> None:
        """One more way to read what the best is fed."""
        self._joined.append((names, states, right))

    def ranked(self) -> tuple[Candidate, ...]:
        """The best first; who was sent out is held against who was best then."""
        found = [(tuple(self._names[made]), made, right) for made, right in self._right.items()] + self._joined
        found.sort(key=lambda item: -sum(item[2]))
        first, *rest = found
        made = [self._candidate(*first, None), *(self._candidate(*item, first[2]) for item in rest), *self._out]
        return (made[0], *sorted(made[1:], key=lambda item: -item.share.value))

    def _candidate(
        self, names: tuple[str, ...], states: tuple[State, ...], right: Sequence[int], best: Sequence[int] | None
    ) -> Candidate:
        mine, asked = np.array(right), np.array(self.asked)
        behind = None if best is None else paired_share(np.array(best), mine, asked, level=LEVEL)
        return Candidate(names, states, share(mine, asked), behind)


def _ask(target: Target, row: Sequence[int], states: Sequence[State]) -> _Run:
    """One pass of the target over a text."""
    tokens = torch.tensor(list(row), device=target.device)
    step = read_text(target, tokens[:-1], states)
    return _Run(tokens, step.logits[0].argmax(-1), dict(zip(states, (state[0] for state in step.states), strict=True)))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One text: its tokens [T], the target's first choices [T - 1], and states [T - 1, hidden]."""

    tokens: torch.Tensor
    choices: torch.Tensor
    states: Mapping[State, torch.Tensor]

    def right(self, head: Eagle3Head, states: Sequence[State]) -> int:
        """How many first choices are the target's: row t is asked for what the target says at position t + 1."""
        hidden = head.combine_states([self.states[state][None, :-1].to(head.norm.weight.dtype) for state in states])
        (step,) = draft_rows(head, self.tokens[None, 1:-1], hidden, 1)
        mine = head.vocab.to_target(head.logits(step.normed[0]).argmax(-1))
        return int((mine == self.choices[1:]).sum())


def config_lines(states: Sequence[State], num_layers: int) -> dict[str, str]:
    """What to write into config.json for these states, by the meaning that the engine gives to ids."""
    lines: dict[str, str] = {}
    for name, convention in (("engines that read boundaries", Convention.BOUNDARY), ("block outputs", Convention.OUTPUT)):
        try:
            ids = from_boundaries(states, num_layers=num_layers, convention=convention)
        except LayerIdError:
            continue
        lines[name] = f'"eagle_aux_hidden_state_layer_ids": {list(ids)}'
    return lines


def format_probe(probe: Probe) -> str:
    """The ranking, and the verdict or why there is none."""
    lines = [f"{'right':>22}  {'behind the best':>24}  fed"]
    for item in probe.candidates:
        behind = "" if item.behind is None else str(item.behind)
        lines.append(f"{item.share!s:>22}  {behind:>24}  {format_states(item.states)}: {_named(item)}")
    lines += ["", f"{probe.questions} questions in {probe.prompts} texts; always the most frequent token: {probe.frequent:.3f}"]
    if probe.undecided:
        return "\n".join([*lines, f"undecided: {probe.undecided}"])
    best = probe.candidates[0]
    lines.append(f"it takes {format_states(best.states)}: {_named(best)}")
    lines += [f"  for {name}: {line}" for name, line in config_lines(best.states, probe.num_layers).items()]
    return "\n".join(lines)


def _named(item: Candidate) -> str:
    return ", ".join(item.names)

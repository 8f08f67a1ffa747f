"""Which convention fits? Ids alone cannot tell boundaries from block outputs; the head can, since it was trained on one of them.

Each candidate feeds the head other states, in one pass over texts whose every token is known, and is asked for its first choice
at every position. What counts is how often that is the target's own first choice. Candidates answer the same questions, so the best
two are compared question by question, with prompts drawn anew (paired bootstrap). A verdict needs two things: the best candidate
beats every other one that feeds other states, and it knows more than whoever always says the most frequent token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from specalign.acceptance.metrics import Interval, paired_share, share
from specalign.draft import Eagle3Head
from specalign.layer_ids import Convention, LayerIdError, State, default_ids, format_states, from_boundaries, to_states
from specalign.speculate.decode import check_pair, check_prompts
from specalign.speculate.rows import draft_rows
from specalign.speculate.slots import causal
from specalign.speculate.target import Target
from specalign.speculate.variants import DEAD, NONE, Variant, variants_of

FEWEST_QUESTIONS: Final = 50


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
    states: Sequence[State] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Probe:
    """Ask every candidate.

    Args:
        target: the model.
        head: its draft head.
        ids: those of its config; None for the default.
        prompts: token ids by name: texts that the target knows, questions are asked from the second token on.
        states: one reading alone, whose norms are then tried as well; by default all readings of the ids, and for the best of
            them other norms.
        progress: called with passes done and to be done.

    Raises:
        DraftError: a head of another target, or prompts that cannot be read.
    """
    check_prompts(target, list(prompts.values()), 1)
    fed = {"as given": tuple(states)} if states is not None else readings(ids, target.num_layers)
    names: dict[tuple[State, ...], list[str]] = {}
    for name, made in fed.items():
        names.setdefault(made, []).append(name)
    for made in names:
        check_pair(target, head, made)
    asked = _Questions(target, prompts)
    total = len(names) * len(prompts)
    done = 0
    found: list[tuple[tuple[str, ...], tuple[State, ...], NDArray[Any]]] = []
    wanted = tuple(dict.fromkeys(state for made in names for state in made))
    right: dict[tuple[State, ...], list[int]] = {made: [] for made in names}
    for run in asked.runs(wanted):
        for made in names:
            right[made].append(run.right(head, made))
            done += 1
            progress(done, total)
    found = [(tuple(names[made]), made, np.array(counts)) for made, counts in right.items()]
    best = max(found, key=lambda item: int(item[2].sum()))
    found += [((*best[0], variant.name), best[1], counts) for variant, counts in asked.norms(head, best[1])]
    return _ranked(found, asked, target.num_layers)


def _ranked(
    found: Sequence[tuple[tuple[str, ...], tuple[State, ...], NDArray[Any]]], asked: _Questions, num_layers: int
) -> Probe:
    counts = np.array(asked.counts)
    order = sorted(found, key=lambda item: -int(item[2].sum()))
    best = order[0][2]
    candidates = [
        Candidate(names, states, share(right, counts), None if place == 0 else paired_share(best, right, counts))
        for place, (names, states, right) in enumerate(order)
    ]
    frequent = max(asked.said.values()) / counts.sum()
    return Probe(tuple(candidates), int(counts.sum()), len(counts), float(frequent), num_layers)


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


class _Questions:
    """Texts and what the target says at each of their positions."""

    def __init__(self, target: Target, prompts: Mapping[str, Sequence[int]]) -> None:
        self._target, self._prompts = target, {name: row for name, row in prompts.items() if len(row) >= 3}
        self.counts: list[int] = []
        self.said: dict[int, int] = {}
        self._kept: list[_Run] = []

    def runs(self, states: Sequence[State]) -> Sequence[_Run]:
        """One pass of the target for each text; texts of less than three tokens ask nothing."""
        for row in self._prompts.values():
            tokens = torch.tensor([list(row)], device=self._target.device)
            fed = tokens[:, :-1]
            with self._target.session(states) as session:
                places = torch.arange(fed.shape[1], device=self._target.device)[None]
                step = session.run(fed, places, causal(torch.ones_like(fed, dtype=torch.bool)))
            choices = step.logits[0].argmax(-1)
            self.counts.append(len(choices) - 1)
            for token in choices[1:].tolist():
                self.said[token] = self.said.get(token, 0) + 1
            self._kept.append(_Run(tokens[0], choices, dict(zip(states, (state[0] for state in step.states), strict=True))))
        return self._kept

    def norms(self, head: Eagle3Head, states: tuple[State, ...]) -> list[tuple[Variant, NDArray[Any]]]:
        """The other ways to read the same states."""
        others = [
            variant
            for variant in variants_of(head, states, self._target.num_layers)
            if variant.head is not None
            and variant.head is not head
            and variant.states == states
            and variant.name not in (DEAD, NONE)
        ]
        return [
            (variant, np.array([run.right(variant.head, states) for run in self._kept]))
            for variant in others
            if variant.head is not None
        ]


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

"""Measuring the before/after table: one greedy run a prompt, and every variant of the head replayed on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from specalign.acceptance import AcceptanceError, PromptRounds, difference, measure
from specalign.acceptance.metrics import Interval, paired_share, share
from specalign.acceptance.table import LoopCheck, Row, Table
from specalign.draft import Eagle3Head
from specalign.layer_ids import State
from specalign.speculate.decode import BATCH, answer_all, check_pair, check_prompts, decode_speculative
from specalign.speculate.drafter import TreeShape
from specalign.speculate.replay import Extent, StoredRun, Teacher, replay, replay_nothing, store_run
from specalign.speculate.target import Target
from specalign.speculate.variants import Variant, described, variants_of


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How the table is measured.

    Attributes:
        depth: drafts of a chain.
        new_tokens: of each answer.
        loop_prompts: the first so many prompts also run through the real loop, for two rows.
        only_right: measure the right way alone.
    """

    depth: int = 4
    new_tokens: int = 64
    loop_prompts: int = 8
    only_right: bool = False


def measure_table(
    target: Target,
    head: Eagle3Head,
    states: Sequence[State],
    prompts: Mapping[str, Sequence[int]],
    settings: Settings | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """All rows of a head.

    Args:
        target: the model.
        head: its draft head.
        states: those that the head was trained on, in its order.
        prompts: token ids by name.
        settings: see there.
        progress: called with prompts done and to be done.

    Raises:
        DraftError: a head of another target, prompts that cannot be decoded.
        AcceptanceError: no answer has a second token.
    """
    settings = settings or Settings()
    check_pair(target, head, states)
    check_prompts(target, list(prompts.values()), settings.new_tokens + settings.depth)
    variants = variants_of(head, states, target.num_layers)[: 1 if settings.only_right else None]
    counts: dict[str, list[PromptRounds]] = {variant.name: [] for variant in variants}
    teachers: dict[str, list[Teacher]] = {variant.name: [] for variant in variants}
    wanted = tuple(dict.fromkeys(state for variant in variants for state in variant.states))
    extent = Extent(settings.depth, settings.new_tokens, target.end_tokens)
    for done, run in enumerate(stored_runs(target, prompts, wanted, settings), start=1):
        for variant in variants:
            if variant.head is None:
                counts[variant.name].append(replay_nothing(run, extent))
                continue
            rounds, teacher = replay(variant.head, variant.states, run, extent)
            counts[variant.name].append(rounds)
            teachers[variant.name].append(teacher)
        progress(done, len(prompts))
    rows = tuple(_row(variant, counts, teachers, variants[0].name) for variant in variants)
    loops = tuple(_loop(target, variant, prompts, counts[variant.name], settings) for variant in variants[:2])
    return Table(rows, loops, settings.depth, settings.new_tokens, tuple(counts[variants[0].name]))


def stored_runs(
    target: Target, prompts: Mapping[str, Sequence[int]], states: Sequence[State], settings: Settings
) -> Iterator[StoredRun]:
    """Greedy runs of all prompts, in their order."""
    answers = answer_all(target, prompts, settings.new_tokens + settings.depth)
    for name, prompt in prompts.items():
        yield store_run(target, name, prompt, answers[name], states)


def _row(variant: Variant, counts: Mapping[str, list[PromptRounds]], teachers: Mapping[str, list[Teacher]], right: str) -> Row:
    mine, first = teachers[variant.name], teachers[right]
    is_right = variant.name == right
    return Row(
        name=variant.name,
        states=described(variant),
        fault=variant.fault,
        acceptance=measure(counts[variant.name]),
        difference=None if is_right else difference(counts[right], counts[variant.name]),
        teacher=tuple(_shares(mine)),
        teacher_difference=None if is_right or not mine else _first_step(first, mine),
    )


def _shares(mine: Sequence[Teacher]) -> Iterator[Interval]:
    for step in range(len(mine[0].asked) if mine else 0):
        right, asked = (np.array([getattr(item, name)[step] for item in mine]) for name in ("right", "asked"))
        if not asked.sum():
            return  # no answer is that long
        yield share(right, asked)


def _first_step(first: Sequence[Teacher], mine: Sequence[Teacher]) -> Interval:
    right, other = (np.array([item.right[0] for item in some]) for some in (first, mine))
    return paired_share(right, other, np.array([item.asked[0] for item in mine]))


def _loop(
    target: Target, variant: Variant, prompts: Mapping[str, Sequence[int]], counted: Sequence[PromptRounds], settings: Settings
) -> LoopCheck:
    """The real loop for one row, beside what was counted by replay."""
    names = list(prompts)[: settings.loop_prompts]
    if variant.head is None:
        raise AcceptanceError("no drafting has no loop")
    differing = []
    for at in range(0, len(names), BATCH):
        part = names[at : at + BATCH]
        decoded = decode_speculative(
            target, variant.head, variant.states, [prompts[name] for name in part], settings.new_tokens,
            shape=TreeShape(settings.depth),
        )  # fmt: skip
        replayed = {item.name: item.rounds for item in counted}
        differing += [name for name, item in zip(part, decoded, strict=True) if item.rounds != replayed[name]]
    return LoopCheck(variant.name, len(names), tuple(differing))

"""Runs and tables whose true rates are known, made without a model."""

from __future__ import annotations

import numpy as np

from specalign.acceptance import PromptRounds, Round, difference, measure
from specalign.acceptance.table import Row, Table

RIGHT, SHIFTED, UNNORMED, DEAD = (0.61, 0.61, 0.66, 0.64), (0.55, 0.58, 0.6, 0.6), (0.16, 0.1, 0.1, 0.1), (0.001, 0.0, 0.0, 0.0)
"""The chance that a draft is right if those before it are, by position; like head A's in docs/acceptance.md."""

PAIR = {"target": "t", "draft": "d", "weights": "abc", "prompts": "def"}


def drawn(seed: int, chances: tuple[float, ...], prompts: int = 80, tokens: int = 64, *, of: int = 99) -> list[PromptRounds]:
    """Answers of so many tokens; a prompt's chances are shifted alike for every run on the same prompts, those numbered `of`."""
    hardness = np.random.default_rng(of).normal(0, 0.08, prompts)
    rng = np.random.default_rng(seed)
    found = []
    for place in range(prompts):
        own = [chance + float(hardness[place]) * (chances[0] > 0.1) for chance in chances]
        rounds, known = [], 1
        while known < tokens:
            accepted = 0
            while accepted < 4 and rng.random() < own[accepted]:
                accepted += 1
            rounds.append(Round(4, accepted, accepted + 1))
            known += accepted + 1
        found.append(PromptRounds(f"p{place}", tuple(rounds)))
    return found


def table(prompts: int = 80) -> Table:
    """The right way, two faults and the dead control."""
    right = drawn(0, RIGHT, prompts)

    def row(name: str, seed: int, chances: tuple[float, ...], *, fault: bool = True) -> Row:
        counts = drawn(seed, chances, prompts)
        return Row(name, "", fault, measure(counts), difference(right, counts))

    rows = (Row("right", "", False, measure(right)), row("ids +1", 1, SHIFTED), row("norm before fc ignored", 2, UNNORMED),
            row("random head", 3, DEAD, fault=False))  # fmt: skip
    return Table(rows, (), 4, 64, tuple(right))

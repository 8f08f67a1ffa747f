"""Drafts as a tree: what is proposed after the last known token, who follows whom, who sees whom. A chain has one branch.

Nodes stand in an order in which parents come first. Column 0 of the target's pass is the last known token, the root; node i is
column i + 1.
"""

from __future__ import annotations

import dataclasses

import torch

ROOT = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Drafts of a batch, D for each sequence.

    Attributes:
        tokens: target tokens, int64 [batch, D].
        parents: the node that each follows, `ROOT` for the root, int64 [batch, D].
        depths: 1 for those that follow the root, int64 [batch, D].
        scores: the head's log probability of the path to each node, float [batch, D].
        chances: the distributions that drew the tokens, over target tokens, float [batch, D, vocabulary]; None if they were
            chosen and not drawn.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    chances: torch.Tensor | None = None

    @property
    def depth(self) -> list[int]:
        """Of each sequence's deepest node."""
        deepest: list[int] = self.depths.amax(dim=1).tolist()
        return deepest


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """Which nodes lie on each node's path, itself included: parents int64 [batch, D] → bool [batch, D, D]."""
    batch, count = parents.shape
    found = torch.eye(count, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    for node in range(1, count):
        parent = parents[:, node]
        path = found[torch.arange(batch, device=parents.device), parent.clamp(min=0)] & (parent >= 0)[:, None]
        found[:, node] |= path
    return found


def among_columns(parents: torch.Tensor) -> torch.Tensor:
    """Who sees whom in the target's pass over the root and the nodes: bool [batch, D + 1, D + 1]."""
    batch, count = parents.shape
    seen = torch.zeros(batch, count + 1, count + 1, dtype=torch.bool, device=parents.device)
    seen[:, :, 0] = True
    seen[:, 1:, 1:] = ancestors(parents)
    return seen


def children(parents: list[int], node: int) -> list[int]:
    """The nodes that follow a node of one sequence, in order."""
    return [place for place, parent in enumerate(parents) if parent == node]

"""What the draft–verify loop asks of a target: one pass with its states and logits, and a cache that can forget.

`specalign.integrations.transformers_target` is one for any causal transformers model. Another engine's model needs these two
classes and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch

from specalign.layer_ids import State
from specalign.speculate.slots import causal


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TargetStep:
    """What one pass over T new tokens gives.

    Attributes:
        logits: [batch, T, vocabulary].
        states: those that the session was opened for, each [batch, T, hidden], in that order.
    """

    logits: torch.Tensor
    states: tuple[torch.Tensor, ...]


class Session(Protocol):
    """A batch of sequences with the target's cache of S columns."""

    def run(self, tokens: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor) -> TargetStep:
        """One pass; the new tokens are added to the cache.

        Args:
            tokens: int64 [batch, T].
            positions: int64 [batch, T].
            seen: which cached and new tokens each new one attends to, bool [batch, T, S + T].
        """
        ...

    def keep(self, columns: torch.Tensor) -> None:
        """Keep these columns of the cache, int64 [batch, K], in this order."""
        ...


class Target(Protocol):
    """A target model.

    Attributes:
        num_layers: n; boundaries are 0..n.
        vocab_size: rows of its lm_head.
        hidden_size: width of a state.
        device: where tokens go.
        end_tokens: each ends a text.
        max_tokens: most positions, if it says so.
    """

    num_layers: int
    vocab_size: int
    hidden_size: int
    device: torch.device
    end_tokens: frozenset[int]
    max_tokens: int | None

    def session(self, states: Sequence[State]) -> contextlib.AbstractContextManager[Session]:
        """A fresh cache; each pass gives these states (none: only logits)."""
        ...


@torch.no_grad()
def read_text(target: Target, tokens: torch.Tensor, states: Sequence[State]) -> TargetStep:
    """One pass over a text with a cache of its own.

    Args:
        target: the model.
        tokens: int64 [T], on its device.
        states: those wanted.

    Returns:
        logits [1, T, vocabulary] and states [1, T, hidden].
    """
    places = torch.arange(len(tokens), device=tokens.device)[None]
    with target.session(states) as session:
        return session.run(tokens[None], places, causal(torch.ones_like(places, dtype=torch.bool)))

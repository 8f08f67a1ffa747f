"""What a cache of keys and values holds for each sequence of a batch, and who may see it.

All sequences of a batch hold the same number of columns; a column that a sequence has no token in is a hole, which nobody sees.
So ragged batches and trees of drafts need no other mechanism than a mask: a new token sees the kept columns before it, and of the
new ones those on its own path. After a verification the refused drafts are dropped, and holes close again.
"""

from __future__ import annotations

import torch


class Slots:
    """The columns of a batch.

    Attributes:
        held: which columns hold a token, bool [batch, S].
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.held = torch.zeros(batch, 0, dtype=torch.bool, device=device)

    def __len__(self) -> int:
        return self.held.shape[1]

    def see(self, among: torch.Tensor) -> torch.Tensor:
        """The mask of a pass over T new columns: bool [batch, T, S + T].

        Args:
            among: who of the new columns sees whom, bool [batch, T, T]; `causal` for tokens in a row.
        """
        past = self.held[:, None, :].expand(-1, among.shape[1], -1)
        return torch.cat((past, among), dim=-1)

    def add(self, real: torch.Tensor) -> None:
        """The pass is over: these new columns hold tokens, bool [batch, T]."""
        self.held = torch.cat((self.held, real), dim=1)

    def drop(self, columns: torch.Tensor) -> torch.Tensor | None:
        """Forget tokens, and close the holes that this leaves.

        Args:
            columns: which tokens are dropped, bool [batch, S].

        Returns:
            The columns that the caches must keep, int [batch, K], in order: each sequence's own, filled up with holes at the end.
            None if all are kept.
        """
        kept = self.held & ~columns
        count = int(kept.sum(dim=1).max()) if kept.numel() else 0
        if count == len(self):
            self.held = kept
            return None
        order = torch.argsort((~kept).to(torch.int8), dim=1, stable=True)[:, :count]
        self.held = kept.gather(1, order)
        return order


def causal(real: torch.Tensor) -> torch.Tensor:
    """Who sees whom among T tokens in a row: bool [batch, T] (which are no holes) → bool [batch, T, T].

    A hole sees itself, so that its softmax is not over nothing; nobody else sees it.
    """
    length = real.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=real.device)
    return (before & real[:, None, :]) | itself

"""Keys and values of the tokens that a draft head has seen, with rollback."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from specalign.draft.errors import DraftError


@dataclasses.dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys (turned by their positions) and values of one layer, each [..., key-value heads, S, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor

    def extended(self, more: LayerKV) -> LayerKV:
        """These and then `more`, along S, in new tensors."""
        return LayerKV(torch.cat((self.keys, more.keys), dim=-2), torch.cat((self.values, more.values), dim=-2))


class KVCache:
    """What a head remembers of one batch: S tokens, with the position of each.

    A pass that fails leaves the cache as it was: a head commits all layers at once, at its end. Not for ragged batches: all
    rows of a batch hold the same number of tokens.
    """

    def __init__(self) -> None:
        self._layers: tuple[LayerKV, ...] = ()
        self._positions: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._positions is None else self._positions.shape[-1]

    @property
    def positions(self) -> torch.Tensor | None:
        """Positions of the cached tokens, [..., S]; None while empty."""
        return self._positions

    def layer(self, index: int) -> LayerKV | None:
        """What layer `index` remembers; None while empty."""
        return self._layers[index] if self._layers else None

    def commit(self, positions: torch.Tensor, layers: Sequence[LayerKV]) -> None:
        """Takes over positions [..., S] and all layers of a finished pass, old tokens included."""
        self._positions, self._layers = positions, tuple(layers)

    def crop(self, length: int) -> None:
        """Forgets every token after the first `length`, as after a verification that refused them.

        Raises:
            DraftError: a length that is negative or beyond what is there.
        """
        if not 0 <= length <= len(self):
            raise DraftError(f"a cache of {len(self)} tokens cannot be cropped to {length}; give 0..{len(self)}")
        if length == 0 or self._positions is None:
            self._positions, self._layers = None, ()
            return
        self._positions = self._positions[..., :length]
        self._layers = tuple(LayerKV(kv.keys[..., :length, :], kv.values[..., :length, :]) for kv in self._layers)

    def keep(self, columns: torch.Tensor) -> None:
        """Keeps some tokens of each sequence of a batch, in this order.

        Args:
            columns: which of the S tokens, int [batch, K], 0 <= column < S.

        Raises:
            DraftError: there is no batch axis, or columns are not there.
        """
        if self._positions is None or self._positions.dim() != 2 or columns.shape[:-1] != self._positions.shape[:-1]:
            held = None if self._positions is None else list(self._positions.shape)
            raise DraftError(f"columns {list(columns.shape)} of a cache of {held} tokens: give [batch, K] of [batch, S]")
        if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < len(self):
            raise DraftError(f"columns {int(columns.min())}..{int(columns.max())} of a cache of {len(self)} tokens")
        self._positions = self._positions.gather(-1, columns)
        self._layers = tuple(LayerKV(gathered(kv.keys, columns), gathered(kv.values, columns)) for kv in self._layers)


def gathered(part: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Some tokens of keys or values [batch, heads, S, head_dim]: columns int [batch, K] → [batch, heads, K, head_dim]."""
    where = columns[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3])
    return part.gather(2, where)

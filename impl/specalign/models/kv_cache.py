"""A key-value cache with rollback: what speculative decoding needs of one.

A pass appends its rows to every layer; `crop` takes rows back. A sliding layer hands out no more than its window, and may let
go of rows that neither the window nor the promised rollback can reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specalign.models.errors import CacheError


class KVCache:
    """The keys and values of all layers, for one batch of sequences of equal length.

    Not guaranteed: safety across threads, and gradients (appending refuses tensors that require them).
    """

    def __init__(self, windows: Sequence[int | None], *, rollback: int | None = None) -> None:
        """An empty cache.

        Args:
            windows: for each layer the rows that a query sees, its own included; None for all.
            rollback: how far back from the longest length so far `crop` may go, in rows, over any number of passes. None keeps
                every row of every layer; a number lets older rows of sliding layers go, which makes their memory constant.

        Raises:
            CacheError: no layers, a window below 1 or a negative rollback.
        """
        if not windows or any(window is not None and window < 1 for window in windows):
            raise CacheError(f"a cache needs one window of at least 1 (or None) for each layer, not {list(windows)}")
        if rollback is not None and rollback < 0:
            raise CacheError(f"rollback must be at least 0 rows or None, not {rollback}")
        self.windows = tuple(windows)
        self.rollback = rollback
        self._layers = tuple(_Layer(window, rollback) for window in windows)

    @property
    def length(self) -> int:
        """Rows that every layer has seen: the position of the next token.

        Raises:
            CacheError: the layers differ, because a pass was broken off; `crop` to the shortest one mends that.
        """
        lengths = {layer.end for layer in self._layers}
        if len(lengths) > 1:
            raise CacheError(
                f"the layers hold from {min(lengths)} to {max(lengths)} rows: a pass was broken off;"
                f" crop({min(lengths)}) goes back to before it"
            )
        return lengths.pop()

    @property
    def batch(self) -> int | None:
        """The number of sequences, or None before the first pass."""
        keys = self._layers[0].keys
        return None if keys is None else keys.shape[0]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the rows of one pass to one layer.

        Args:
            layer: 0-based number of the layer.
            keys, values: `[batch, tokens, heads, head_dim]`, already rotated.

        Returns:
            The keys and values that these tokens may see, `[batch, rows, heads, head_dim]`, the last `tokens` rows being theirs:
            all rows, or in a sliding layer the window - 1 rows before them and theirs. Views, good until the next call.

        Raises:
            CacheError: another batch size, dtype, device or head shape than before, or tensors that require gradients.
        """
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise CacheError("a cache takes no tensors that require gradients: decode under torch.no_grad()")
        return self._layers[layer].append(keys, values)

    def crop(self, length: int) -> None:
        """Takes back every row from position `length` on, as if those tokens had never been passed in.

        Raises:
            CacheError: more rows than there are, or rows that a sliding layer let go of; nothing has changed then.
        """
        shortest = min(layer.end for layer in self._layers)
        if not 0 <= length <= shortest:
            raise CacheError(f"cannot crop to {length} rows: the cache holds {shortest}")
        for number, layer in enumerate(self._layers):
            if layer.first_needed(length) < layer.start:
                raise CacheError(
                    f"cannot crop to {length} rows: layer {number} needs the rows from {layer.first_needed(length)} on and let go"
                    f" of those before {layer.start}; it was made with rollback={self.rollback}, wanted {layer.end - length}"
                )
        for layer in self._layers:
            layer.end = length


class _Layer:
    """One layer's rows: row p of the sequence lies at `keys[:, p - start]`, for start <= p < end."""

    def __init__(self, window: int | None, rollback: int | None) -> None:
        self.window, self.rollback = window, rollback
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.start = self.end = 0

    def first_needed(self, position: int) -> int:
        """The first row that a query at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._check(keys, values)
        end = self.end + keys.shape[1]
        if self.keys is None or self.values is None or end - self.start > self.keys.shape[1]:
            self._move(keys, end)
        stored_keys, stored_values = self._stored()
        rows = slice(self.end - self.start, end - self.start)
        stored_keys[:, rows], stored_values[:, rows] = keys, values
        seen = slice(self.first_needed(self.end) - self.start, end - self.start)
        self.end = end
        return stored_keys[:, seen], stored_values[:, seen]

    def _stored(self) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None:
            raise CacheError("nothing was appended to this layer yet")
        return self.keys, self.values

    def _check(self, keys: Tensor, values: Tensor) -> None:
        if keys.shape != values.shape or keys.dim() != 4:
            raise CacheError(
                f"keys {list(keys.shape)} and values {list(values.shape)} must both be [batch, tokens, heads, head_dim]"
            )
        if self.keys is None:
            return
        for what, new, old in (
            ("batch", keys.shape[0], self.keys.shape[0]),
            ("[heads, head_dim]", list(keys.shape[2:]), list(self.keys.shape[2:])),
            ("dtype", keys.dtype, self.keys.dtype),
            ("device", keys.device, self.keys.device),
        ):
            if new != old:
                raise CacheError(f"the cache holds rows of {what} {old}, these are of {new}; make a new cache")

    def _move(self, like: Tensor, end: int) -> None:
        """Room for twice the rows needed up to `end`, so that copies cost a constant share; rows out of reach stay behind."""
        start = self.start
        if self.rollback is not None:
            start = max(start, self.first_needed(max(0, self.end - self.rollback)))
        shape = (like.shape[0], 2 * (end - start), *like.shape[2:])
        keys, values = like.new_empty(shape), like.new_empty(shape)
        if self.keys is not None and self.values is not None:
            kept = slice(start - self.start, self.end - self.start)
            keys[:, : self.end - start] = self.keys[:, kept]
            values[:, : self.end - start] = self.values[:, kept]
        self.keys, self.values, self.start = keys, values, start

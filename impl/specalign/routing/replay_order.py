"""From the positions of requests to the rows that a router sees: packed sequences, padded batches, and the slices of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.replay_rollout import RolloutRoutes


@dataclass(frozen=True, slots=True, eq=False)
class TokenOrder:
    """Which token each row of a microbatch is.

    Rows without routes are each sample's last token (the rollout never read it) and padding. They are numbered from 0 as they
    come, and get the experts that `routes_in` says.

    Attributes:
        lengths: tokens of each sample.
        source: `[rows]` int64: a row of the samples' routes, laid end to end (lengths[i] - 1 each), or -1 - n for the n-th row
            without routes.
        spans: how many rows, one after another, belong to each sequence; context parallelism splits each of them. None are left
            once sequence parallelism has cut through them.
        together: rows of one position, which no split parts: the samples of a padded batch.
    """

    lengths: tuple[int, ...]
    source: Tensor
    spans: tuple[int, ...]
    together: int = 1

    @classmethod
    def packed(cls, lengths: Sequence[int], *, multiple: int = 1) -> TokenOrder:
        """Samples one after another (`thd`), each padded to a multiple. Raises `RoutingError` for no sample or an empty one."""
        _check_lengths(lengths)
        _check_multiple(multiple)
        spans = tuple(-(-length // multiple) * multiple for length in lengths)
        return cls(tuple(lengths), _numbered(torch.cat(_rows(lengths, spans))), spans)

    @classmethod
    def sequence_first(cls, lengths: Sequence[int], width: int) -> TokenOrder:
        """A padded batch as Megatron flattens it, `[width, samples]`: row = position * samples + sample.

        Raises:
            RoutingError: no sample, an empty one, or one longer than `width`.
        """
        _check_lengths(lengths)
        if max(lengths) > width:
            raise RoutingError(f"a sample of {max(lengths)} tokens in a batch that is {width} wide")
        batch = torch.stack(_rows(lengths, [width] * len(lengths)))
        return cls(tuple(lengths), _numbered(batch.T.flatten()), (width * len(lengths),), len(lengths))

    def zigzag(self, rank: int, size: int) -> TokenOrder:
        """The rows of one context-parallel rank: of each sequence, cut into 2 * size chunks, chunk `rank` and its mirror image.

        Raises:
            RoutingError: no such rank, or a sequence that cannot be cut so: pad it to a multiple of 2 * size before.
        """
        _check_rank(rank, size)
        self._need_whole()
        kept, spans, at = [], [], 0
        for number, span in enumerate(self.spans):
            if span % (2 * size * self.together):
                raise RoutingError(
                    f"sequence {number} has {span} rows, not a multiple of {2 * size * self.together}: pack with multiple=, or"
                    f" widen a padded batch to a multiple of {2 * size}"
                )
            chunks = self.source[at : at + span].chunk(2 * size)
            kept += [chunks[rank], chunks[2 * size - 1 - rank]]
            spans.append(span // size)
            at += span
        return replace(self, source=torch.cat(kept), spans=tuple(spans))

    def filled(self, multiple: int) -> TokenOrder:
        """Padding at the end, up to a multiple of rows. Raises `RoutingError` after `sliced`."""
        _check_multiple(multiple)
        self._need_whole()
        extra = -len(self.source) % multiple
        first = int((-1 - self.source).max()) + 1 if bool((self.source < 0).any()) else 0
        padding = -1 - torch.arange(first, first + extra)
        return replace(self, source=torch.cat([self.source, padding]), spans=(*self.spans, extra) if extra else self.spans)

    def sliced(self, rank: int, size: int) -> TokenOrder:
        """The rows of one rank of sequence parallelism: the `rank`-th of `size` equal pieces. Last of all: it cuts sequences.

        Raises:
            RoutingError: no such rank, or rows that do not split evenly: call `filled` before.
        """
        _check_rank(rank, size)
        self._need_whole()
        if len(self.source) % (size * self.together):
            a_position = f", {self.together} for each position," if self.together > 1 else ""
            how = "fill them to a multiple first" if self.together == 1 else f"widen the batch to a multiple of {size}"
            raise RoutingError(f"{len(self.source)} rows{a_position} do not split into {size}: {how}")
        piece = len(self.source) // size
        return replace(self, source=self.source[rank * piece : (rank + 1) * piece], spans=())

    def _need_whole(self) -> None:
        if not self.spans:
            raise RoutingError("these rows are a slice of sequence parallelism, which is cut last of all")

    def routes_in(self, samples: Sequence[RolloutRoutes], layer: int) -> Tensor:
        """The ids of one layer in the order of these rows, `[rows, k]` int32: what a replay takes for one microbatch.

        The n-th row without routes gets the experts (n * k + slot) mod E: distinct in a row and spread evenly. No token attends
        to these rows and no loss is taken from them, so the choice moves no value; it does count in the load of experts.

        Args:
            samples: one request for each of `lengths`, in that order.
            layer: from 0, over all layers: Megatron's `layer_number` - 1.

        Raises:
            RoutingError: another number of samples, of different models, or as `RolloutRoutes.layer`.
        """
        if len(samples) != len(self.lengths):
            raise RoutingError(f"routes of {len(samples)} requests for {len(self.lengths)} samples")
        shapes = {(sample.num_layers, sample.num_experts, sample.topk) for sample in samples}
        if len(shapes) > 1:
            raise RoutingError(f"requests of different models (layers, experts, k): {sorted(shapes)}")
        ((_, num_experts, topk),) = shapes
        table = torch.cat([sample.layer(layer, tokens=length) for sample, length in zip(samples, self.lengths, strict=True)])
        without = self.source < 0
        out = ((-1 - self.source)[:, None] * topk + torch.arange(topk)) % num_experts
        out[~without] = table[self.source[~without]].to(torch.int64)
        return out.to(torch.int32)


def _rows(lengths: Sequence[int], spans: Sequence[int]) -> list[Tensor]:
    """One tensor a sample: rows of the table, and -1 for what has no routes."""
    rows, first = [], 0
    for length, span in zip(lengths, spans, strict=True):
        rows.append(torch.cat([torch.arange(first, first + length - 1), torch.full((span - length + 1,), -1)]))
        first += length - 1
    return rows


def _numbered(source: Tensor) -> Tensor:
    without = source < 0
    source[without] = -1 - torch.arange(int(without.sum()))
    return source


def _check_lengths(lengths: Sequence[int]) -> None:
    if not lengths or min(lengths) < 1:
        raise RoutingError(f"samples of {list(lengths)} tokens: there is at least one, and each has a token")


def _check_multiple(multiple: int) -> None:
    if multiple < 1:
        raise RoutingError(f"multiple = {multiple}: at least 1")


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise RoutingError(f"rank {rank} is not in [0, {size})")

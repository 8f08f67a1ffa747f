"""The probe split up: over pipeline stages, and over tensor-parallel ranks."""

from __future__ import annotations

import pytest_specalign.contracts.needs_torch  # noqa: F401  # isort: skip  # fails in one line without torch

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from pytest_specalign.contracts.probe import ProbeLayout, ProbeModel, ResidualBlock, ScalingNorm, Value, mlp_table

RankKind: TypeAlias = Literal["partial", "scattered"]
Stream: TypeAlias = Tensor | tuple[Tensor, Tensor | None]
Result = TypeVar("Result")

PARTIAL_SHARE: Final = 5
"""What every rank but the first contributes to what a block adds; the first contributes the rest."""


class StageProbe(nn.Module):
    """Blocks `start..end-1` of a probe.

    `forward` takes the tokens on the first stage, and what the stage before returned on the others. It returns the stream, which
    is hidden or, of residual blocks, (hidden, residual), and on the last stage `POST_NORM`.

    Attributes:
        start, end: global numbers of the blocks; `layers[0]` is block `start`.
        embed_tokens: on the first stage, else None.
        norm: on the last stage, else None.
        num_layers: n of the whole target.
        tokens: the input of the first stage, int64 `[rows]`; every stage has it at hand.
    """

    def __init__(self, probe: ProbeModel, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end
        self.layout = probe.layout
        self.num_layers, self.hidden_size = probe.num_layers, probe.hidden_size
        self.is_first, self.is_last = start == 0, end == probe.num_layers
        self.embed_tokens = probe.embed_tokens if self.is_first else None
        self.layers = nn.ModuleList(list(probe.layers)[start:end])
        self.norm = probe.norm if self.is_last else None
        self.tokens = probe.tokens

    def forward(self, stream: Stream) -> Stream:
        if self.embed_tokens is not None:
            stream = self.embed_tokens(stream)
        for layer in self.layers:
            stream = layer(*stream) if isinstance(stream, tuple) else layer(stream)
        if self.norm is None:
            return stream
        normed: Tensor = self.norm(*stream) if isinstance(stream, tuple) else self.norm(stream)
        return normed


def split_stages(probe: ProbeModel, cuts: Sequence[int]) -> list[StageProbe]:
    """One stage more than `cuts`, which are the global numbers of the blocks that start a stage, ascending."""
    edges = [0, *cuts, probe.num_layers]
    return [StageProbe(probe, start, end) for start, end in itertools.pairwise(edges)]


class RankError(RuntimeError):
    """A collective that not every rank joined, or joined with different calls."""


class Collective:
    """Collectives between threads: each rank's k-th call meets the others' k-th calls. A rank that is done lets nobody wait."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._turns = [0] * size
        self._boxes: dict[int, dict[int, tuple[str, Tensor]]] = {}
        self._done: set[int] = set()

    def exchange(self, rank: int, name: str, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, in their order.

        Raises:
            RankError: another rank has returned without this call, or made another call.
        """
        with self._changed:
            turn = self._turns[rank]
            self._turns[rank] += 1
            box = self._boxes.setdefault(turn, {})
            box[rank] = (name, tensor.clone())
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(box) == self.size or bool(self._done - set(box)))
        if len(box) < self.size:
            missing = sorted(self._done - set(box))
            raise RankError(f"rank {rank} waits in {name} number {turn}, which rank {missing[0]} never calls")
        if len({made for made, _ in box.values()}) > 1:
            raise RankError(f"call {turn}: " + ", ".join(f"rank {r} calls {box[r][0]}" for r in range(self.size)))
        return [box[r][1] for r in range(self.size)]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._done.add(rank)
            self._changed.notify_all()


class RankProbe(ProbeModel):
    """One rank's part of a probe of residual blocks.

    "partial": hidden, as a block returns it, is this rank's partial sum; an all-reduce is owed, which the next block or the final
    norm makes. "scattered": hidden and residual hold this rank's rows only, and the next block gathers them. The embedding is
    complete on every rank. A block says so itself: `output_is_partial`, `output_is_scattered`.
    """

    def __init__(self, layout: ProbeLayout, kind: RankKind, rank: int, collective: Collective) -> None:
        super().__init__(dataclasses.replace(layout, style="residual", in_place="never"))
        self.kind, self.rank, self.size = kind, rank, collective.size
        self._collective = collective
        self.layers = nn.ModuleList(_RankBlock(layer, self.layout, self) for layer in range(layout.num_layers))
        self.norm = _RankNorm(self.layout, self)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks. Every rank must call it."""
        return functools.reduce(torch.add, self._collective.exchange(self.rank, "all_reduce", tensor))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, one below the other. Every rank must call it."""
        return torch.cat(self._collective.exchange(self.rank, "all_gather", tensor))

    def values(self) -> Mapping[Value, Tensor]:
        whole = dict(super().values())
        boundaries = range(1, self.num_layers + 1)
        if self.kind == "scattered":
            rows = {Value("rows", b, r): self.own_rows(whole[Value("boundary", b)], r) for b in boundaries for r in self._ranks}
            return whole | rows
        shares = {
            Value("partial", b, r): self._partial(b, r, whole[Value("residual", b)]) for b in boundaries for r in self._ranks
        }
        return whole | shares

    @property
    def _ranks(self) -> range:
        return range(self.size)

    def own_rows(self, tensor: Tensor, rank: int) -> Tensor:
        rows, size = len(tensor), self.size
        return tensor[rows * rank // size : rows * (rank + 1) // size]

    def share(self, added: Tensor, rank: int) -> Tensor:
        """What one rank contributes to `added`: the shares of all ranks add up to it."""
        return added - PARTIAL_SHARE * (self.size - 1) if rank == 0 else torch.full_like(added, PARTIAL_SHARE)

    def _partial(self, boundary: int, rank: int, residual: Tensor) -> Tensor:
        added = mlp_table(self.num_layers, self.hidden_size)[boundary - 1].to(residual)
        return residual + self.share(added, rank)


class _RankBlock(ResidualBlock):
    def __init__(self, layer: int, layout: ProbeLayout, rank: RankProbe) -> None:
        super().__init__(layer, layout)
        self.output_is_partial = rank.kind == "partial"
        self.output_is_scattered = rank.kind == "scattered"
        self._share = functools.partial(rank.share, rank=rank.rank)
        self._own_rows = functools.partial(rank.own_rows, rank=rank.rank)
        self._gather, self._reduce = rank.all_gather, rank.all_reduce

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        stream = hidden_states if residual is None else self._completed(hidden_states, residual)
        hidden, residual = super().forward(stream)
        if self.output_is_scattered:
            return self._own_rows(hidden), self._own_rows(residual)
        return self._share(hidden), residual

    def _completed(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self._gather(hidden + residual) if self.output_is_scattered else self._reduce(hidden) + residual


class _RankNorm(ScalingNorm):
    def __init__(self, layout: ProbeLayout, rank: RankProbe) -> None:
        super().__init__(layout)
        self._scattered = rank.kind == "scattered"
        self._gather, self._reduce = rank.all_gather, rank.all_reduce

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return super().forward(hidden_states)
        if self._scattered:
            return super().forward(self._gather(hidden_states + residual))
        return super().forward(self._reduce(hidden_states) + residual)


class RankSet:
    """The ranks of one probe, to be run side by side."""

    def __init__(self, layout: ProbeLayout, kind: RankKind, size: int = 2) -> None:
        self.layout, self.kind, self.size = layout, kind, size
        self._collective = Collective(size)
        self.probes = [RankProbe(layout, kind, rank, self._collective) for rank in range(size)]

    def run(self, function: Callable[[RankProbe], Result]) -> list[Result]:
        """`function(rank)` on every rank at once, each in a thread of its own; the results in rank order. Call it once.

        Raises:
            Exception: what the first rank that failed raised; a `RankError` only if no rank failed by itself.
        """
        results: dict[int, Result] = {}
        errors: list[Exception] = []

        def work(probe: RankProbe) -> None:
            try:
                results[probe.rank] = function(probe)
            except Exception as error:  # it is raised again below, on the caller's thread
                errors.append(error)
            finally:
                self._collective.leave(probe.rank)

        threads = [threading.Thread(target=work, args=(probe,)) for probe in self.probes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise min(errors, key=_is_rank_error)
        return [results[rank] for rank in range(self.size)]


def _is_rank_error(error: Any) -> bool:
    return isinstance(error, RankError)

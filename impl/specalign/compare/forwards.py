"""Forwards of a dump: the passes of the ranks that worked on the same rows, put together again."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.compare.result import Problem, Side
from specalign.dump.errors import DumpError
from specalign.dump.passes import Dump, PassInfo, RawTensor
from specalign.dump.rows import Rows


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """One forward at one data-parallel and context-parallel place.

    Attributes:
        number: the pass.
        infos: what its ranks wrote: tensor-parallel shards and copies, pipeline stages.
        keys: what they hold together; shared between forwards that hold the same.
    """

    number: int
    infos: tuple[PassInfo, ...]
    keys: frozenset[str]

    @property
    def rows(self) -> int:
        """Token rows, padding included."""
        return self.infos[0].rows

    @property
    def scope(self) -> int:
        """The data-parallel place: a request id means one request within it."""
        return dict(self.infos[0].coords).get("dp", 0)

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.infos[0].where


def forwards_of(dump: Dump) -> list[Forward]:
    """All forwards, by number, then place.

    Ranks that differ in `dp` or `cp` have rows of their own; ranks without coordinates are taken for places of their own too,
    so that what they say twice is compared as a repeated observation.
    """
    found: dict[tuple[int, int, int, int], list[PassInfo]] = collections.defaultdict(list)
    for info in dump.infos():
        coords = dict(info.coords)
        alone = -1 if coords else info.rank
        found[info.number, coords.get("dp", 0), coords.get("cp", 0), alone].append(info)
    shared: dict[frozenset[str], frozenset[str]] = {}
    forwards = []
    for (number, *_), infos in sorted(found.items(), key=lambda item: item[0]):
        keys = frozenset(key for info in infos for key in info.tensors)
        forwards.append(Forward(number, tuple(infos), shared.setdefault(keys, keys)))
    return forwards


def read_rows(dump: Dump, forward: Forward) -> Rows:
    """The rows of a forward; every rank must say the same.

    Raises:
        DumpError: two ranks that ought to have worked on the same rows did not.
    """
    first, *others = forward.infos
    rows = dump.rows(first)
    for info in others:
        other = dump.rows(info)
        for name in ("tokens", "positions", "kinds"):
            if not np.array_equal(getattr(rows, name), getattr(other, name)):
                raise DumpError(
                    f"{info.where}: its {name} differ from those of {first.where}, and both say that they are forward"
                    f" {forward.number} of the same data-parallel place; were the passes of the ranks counted differently?"
                )
    return rows


@dataclasses.dataclass(slots=True, eq=False)
class Loaded:
    """The tensors of a forward, put together key by key.

    Attributes:
        side, forward: whose.
        parts: what each rank holds.
        problems: what was found wrong while putting together.
    """

    side: Side
    forward: Forward
    parts: list[Mapping[str, RawTensor]]
    layout: Mapping[str, int]
    problems: list[Problem] = dataclasses.field(default_factory=list)
    _whole: dict[str, RawTensor | None] = dataclasses.field(default_factory=dict)

    def whole(self, key: str) -> RawTensor | None:
        """The tensor of a key, `[rows, width]`; None if it cannot be put together, and `problems` says why."""
        if key not in self._whole:
            self._whole[key] = self._join(key)
        return self._whole[key]

    def _join(self, key: str) -> RawTensor | None:
        alone = self.parts[0].get(key) if len(self.parts) == 1 else None
        if alone is not None and not alone.spec.axis:  # the whole of it, from the only rank there is
            return self._checked_rows(key, _flat(alone))
        held = [(info, part[key]) for info, part in zip(self.forward.infos, self.parts, strict=True) if key in part]
        axes = {tensor.spec.axis for _, tensor in held}
        if len(axes) != 1:
            raise DumpError(f"{self.forward.where}: the ranks disagree on how they share {key}: {sorted(axes)}")
        axis = axes.pop()
        self._check_ranks(key, [info for info, _ in held])
        if axis.startswith("partial"):
            self._report("shard-missing", key, "holds addends", "each rank holds an addend of it, and the order of the sum is"
                         " not recorded; record it behind the all-reduce")  # fmt: skip
            return None
        if axis.endswith(("@tp", "@sp")):
            return self._join_shards(key, axis, held)
        self._check_copies(key, held)
        return self._checked_rows(key, _flat(held[0][1]))

    def _checked_rows(self, key: str, tensor: RawTensor) -> RawTensor:
        """Raises `DumpError` unless a tensor that was put together has one row for each of the forward."""
        if len(tensor.data) != self.forward.rows:
            raise DumpError(
                f"{self.forward.where}: {key} has {len(tensor.data)} rows over all ranks, and the forward has"
                f" {self.forward.rows}: which rows they are cannot be told; record every rank, with the right layout"
            )
        return tensor

    def _check_ranks(self, key: str, holders: Sequence[PassInfo]) -> None:
        """Ranks that differ in tp alone ran the same modules, so all of them hold a key or none."""
        stages = {_but_tp(info) for info in holders}
        lacking = [info.where for info in self.forward.infos if _but_tp(info) in stages and key not in info.tensors]
        if lacking:
            self._report("shard-missing", key, f"{len(lacking)} ranks lack it ({lacking[0]})", "record it on every"
                         " tensor-parallel rank, or none of the others can be checked against it")  # fmt: skip

    def _join_shards(self, key: str, axis: str, held: Sequence[tuple[PassInfo, RawTensor]]) -> RawTensor | None:
        by_rank: dict[int, list[tuple[PassInfo, RawTensor]]] = collections.defaultdict(list)
        for info, tensor in held:
            by_rank[dict(info.coords).get("tp", 0)].append((info, tensor))
        size = self.layout.get("tp")
        if size is None:
            raise DumpError(
                f"{self.forward.where}: {key} is shared over tp ranks ({axis}), and the manifest's layout does not say how many"
                " there are; record with layout={'tp': N}"
            )
        count = size - sum(rank < size for rank in by_rank)
        if count:
            missing = list(itertools.islice((rank for rank in range(size) if rank not in by_rank), 8))
            self._report("shard-missing", key, f"{count} of {size} parts", f"tp ranks {missing} wrote no {key}: record"
                         " every tensor-parallel rank, or add the missing folders")  # fmt: skip
            return None
        for copies in by_rank.values():
            self._check_copies(key, copies)
        parts = [_flat(by_rank[rank][0][1]) for rank in range(size)]
        dtypes = {part.spec.dtype for part in parts}
        if len(dtypes) != 1:
            raise DumpError(f"{self.forward.where}: the parts of {key} have different element types: {sorted(dtypes)}")
        if len({part.spec.fingerprint for part in parts}) != 1:
            raise DumpError(
                f"{self.forward.where}: some parts of {key} are values and some fingerprints; record all of them alike"
            )
        whole = _sum_up(parts) if parts[0].spec.fingerprint and axis.startswith("hidden") else _concatenate(parts, axis)
        return self._checked_rows(key, whole)

    def _check_copies(self, key: str, held: Sequence[tuple[PassInfo, RawTensor]]) -> None:
        (first, one), *others = held
        for info, other in others:
            if one.spec.dtype != other.spec.dtype or not np.array_equal(one.data, other.data) or not _same_counts(one, other):
                self._report("replica-differs", key, f"{first.where} and {info.where}", "the ranks hold copies of one tensor and"
                             " differ: find the rank that is wrong first, or record the axis they share")  # fmt: skip

    def _report(self, code: str, key: str, how_much: str, next: str) -> None:
        what = (
            f"side {self.side}: {key} cannot be trusted"
            if code == "replica-differs"
            else f"side {self.side}: {key} is incomplete"
        )
        self.problems.append(Problem(code, what, f"{self.forward.where}, {key}", how_much, next))


def load_forward(dump: Dump, side: Side, forward: Forward, keys: Collection[str]) -> Loaded:
    """The tensors of a forward that a comparison needs."""
    return Loaded(side, forward, [dump.load(info, keys) for info in forward.infos], dump.manifest.layout)


def _but_tp(info: PassInfo) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(item for item in info.coords if item[0] != "tp"))


def _flat(tensor: RawTensor) -> RawTensor:
    """As `[rows, width]`."""
    data = tensor.data
    return tensor if data.ndim == 2 else RawTensor(tensor.spec, data.reshape(data.shape[0], math.prod(data.shape[1:])))


def _same_counts(one: RawTensor, other: RawTensor) -> bool:
    """Whether two copies agree on their non-finite elements, as far as both were counted."""
    return one.nonfinite is None or other.nonfinite is None or np.array_equal(one.nonfinite, other.nonfinite)


def _concatenate(parts: Sequence[RawTensor], axis: str) -> RawTensor:
    along = 1 if axis.startswith("hidden") else 0
    counts = _all_counts(parts)
    return _like(
        parts[0],
        np.concatenate([part.data for part in parts], axis=along),
        None if counts is None else np.concatenate(counts),
    )


def _all_counts(parts: Sequence[RawTensor]) -> list[NDArray[np.uint32]] | None:
    """The non-finite elements of each part; None unless all were counted: those of the rest are not known."""
    counts = [part.nonfinite for part in parts if part.nonfinite is not None]
    return counts if len(counts) == len(parts) else None


def _sum_up(parts: Sequence[RawTensor]) -> RawTensor:
    """Fingerprints of shards add up, and so do counts: each counted its words from where it begins in the full row."""
    total = parts[0].data.copy()
    for part in parts[1:]:
        total += part.data
    width = sum(part.spec.shape[-1] for part in parts)
    counts = _all_counts(parts)
    spec = dataclasses.replace(parts[0].spec, shape=(*parts[0].spec.shape[:-1], width), counted=counts is not None)
    return RawTensor(spec, total, None if counts is None else np.sum(counts, axis=0, dtype=np.uint32))


def _like(tensor: RawTensor, data: NDArray[Any], counts: NDArray[np.uint32] | None) -> RawTensor:
    shape = tensor.spec.shape if tensor.spec.fingerprint else tuple(data.shape)
    return RawTensor(dataclasses.replace(tensor.spec, shape=shape, counted=counts is not None), data, counts)


def key_sets(forwards: Iterable[Forward]) -> list[frozenset[str]]:
    """The different sets of keys among forwards."""
    return list({forward.keys: None for forward in forwards})

"""What a dump holds, in one screen."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.keys import RowKind, in_order
from specalign.dump.manifest import Manifest
from specalign.dump.nonfinite import COUNTED
from specalign.dump.passes import Dump, PassInfo, TensorSpec
from specalign.layer_ids.files import shown
from specalign.layer_ids.tables import format_table

SCHEMA: Final = "specalign.dump.inspect/1"

_MANY_PLACES: Final = 8

_Counts: TypeAlias = Mapping[str, Sequence[int]]
"""The non-finite elements of one pass by key, in the order of `COUNTED`, of the keys that were counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank: its passes, their rows, its place, the layers it ran ("" if that is not known), and bytes of tensor data."""

    rank: int
    passes: int
    rows: int
    coords: Mapping[str, int]
    layers: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class KeySummary:
    """One key in one form: in how many passes it is stored, and its bytes; `width` counts elements of a row.

    `nonfinite` are the elements that are NaN or +inf, and -inf, over all passes, of fingerprints that were counted; else None.
    """

    key: str
    dtype: str
    width: int
    site: str
    axis: str
    fingerprint: bool
    passes: int
    size: int
    nonfinite: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DumpSummary:
    """What `summarize` found.

    Attributes:
        path, manifest: of the dump.
        ranks: by rank.
        keys: in the order in which a forward makes them.
        kinds: number of rows of each kind, over all ranks.
        requests: tokens of each request: its highest position and one.
        notes: what a foreign format could not tell.
    """

    path: Path
    manifest: Manifest
    ranks: tuple[RankSummary, ...]
    keys: tuple[KeySummary, ...]
    kinds: Mapping[str, int]
    requests: Mapping[str, int]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain objects."""
        plain = dataclasses.asdict(self)
        return {"schema": SCHEMA, **plain, "path": str(self.path)}

    def format(self) -> str:
        """The screen."""
        made = self.manifest
        facts = [
            f"device: {made.device or '-'} ({made.arch or '-'})",
            *_table("versions", made.versions),
            *_table("model", made.model),
        ]
        facts += [*_table("layout", made.layout), f"world: {made.world or 'not known'}"]
        ranks = [("rank", "place", "layers", "passes", "rows", "bytes")]
        ranks += [
            (str(r.rank), _words(r.coords), r.layers or "-", str(r.passes), str(r.rows), f"{r.size:,}")
            for r in self.ranks[:_MANY_PLACES]
        ]
        more = [f"… and {len(self.ranks) - _MANY_PLACES} more ranks"] if len(self.ranks) > _MANY_PLACES else []
        keys = [("key", "type", "width", "site", "shared", "stored as", "passes", "bytes")]
        keys += [
            (k.key, k.dtype, str(k.width), k.site or "-", k.axis or "-", _form(k), str(k.passes), f"{k.size:,}")
            for k in self.keys
        ]
        rows = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items() if count) or "none"
        return "\n".join(
            [
                f"{shown(self.path)}: {made.producer}",
                *(f"  {fact}" for fact in facts),
                "",
                format_table(ranks),
                *more,
                "",
                format_table(keys),
                "",
                f"rows: {rows}",
                f"requests: {_lengths(list(self.requests.values()))}",
                *(f"note: {note}" for note in self.notes),
            ]
        )


def summarize(dump: Dump, *, progress: Callable[[int, int], None] = lambda done, total: None) -> DumpSummary:
    """Read the headers and rows of every pass, and the counts of non-finite elements where there are any, but no values.

    Raises:
        DumpError: a pass that cannot be read.
    """
    infos = dump.infos()
    kinds = np.zeros(max(RowKind) + 1, np.int64)
    requests: dict[str, int] = {}
    counts: list[_Counts] = []
    for done, info in enumerate(infos, 1):
        counts.append(_counts(dump, info))
        rows = dump.rows(info)
        kinds += np.bincount(rows.kinds, minlength=len(kinds))
        lengths = np.zeros(len(rows.request_ids), np.int64)
        np.maximum.at(lengths, rows.requests[rows.counted], rows.positions[rows.counted] + 1)
        for name, length in zip(rows.request_ids, lengths.tolist(), strict=True):
            if length:
                requests[name] = max(requests.get(name, 0), length)
        progress(done, len(infos))
    named = {kind.name.lower().replace("_", " "): int(kinds[kind]) for kind in RowKind}
    notes = tuple(str(note) for note in getattr(dump, "notes", ()))
    return DumpSummary(dump.path, dump.manifest, _ranks(infos, counts), _keys(infos, counts), named, requests, notes)


def stored_bytes(spec: TensorSpec) -> int:
    """Bytes of the data that are stored of a tensor."""
    return spec.shape[0] * 16 if spec.fingerprint else math.prod(spec.shape) * DTYPES[spec.dtype].size


def _counts(dump: Dump, info: PassInfo) -> _Counts:
    """The non-finite elements of each key of a pass that was counted."""
    counted = {key for key, spec in info.tensors.items() if spec.counted}
    if not counted:
        return {}
    loaded = dump.load(info, counted).items()
    return {key: t.nonfinite.sum(axis=0, dtype=np.int64).tolist() for key, t in loaded if t.nonfinite is not None}


def _size(spec: TensorSpec, counts: _Counts) -> int:
    """Bytes that are stored of a tensor, counts of non-finite elements included: there are none unless one is over 0."""
    return stored_bytes(spec) + (spec.shape[0] * 4 * len(COUNTED) if any(counts.get(spec.key, ())) else 0)


def _ranks(infos: Sequence[PassInfo], counts: Sequence[_Counts]) -> tuple[RankSummary, ...]:
    ranks: dict[int, list[PassInfo]] = collections.defaultdict(list)
    sizes: collections.Counter[int] = collections.Counter()
    for info, counted in zip(infos, counts, strict=True):
        ranks[info.rank].append(info)
        sizes[info.rank] += sum(_size(spec, counted) for spec in info.tensors.values())
    return tuple(
        RankSummary(
            rank,
            len(passes),
            sum(info.rows for info in passes),
            dict(passes[0].coords),
            ", ".join(dict.fromkeys(f"{info.stage[0]} to {info.stage[1] - 1}" for info in passes if info.stage)),
            sizes[rank],
        )
        for rank, passes in sorted(ranks.items())
    )


def _keys(infos: Sequence[PassInfo], counts: Sequence[_Counts]) -> tuple[KeySummary, ...]:
    found: dict[tuple[Any, ...], NDArray[np.int64]] = collections.defaultdict(lambda: np.zeros(4, np.int64))
    for info, counted in zip(infos, counts, strict=True):
        for spec in info.tensors.values():
            form: tuple[Any, ...] = (spec.key, spec.dtype, spec.width, spec.site, spec.axis, spec.fingerprint, spec.counted)
            found[form] += (1, _size(spec, counted), *counted.get(spec.key, (0, 0)))
    order = {key: at for at, key in enumerate(in_order({key for key, *_ in found}))}
    summaries = []
    for form, tally in sorted(found.items(), key=lambda item: (order[item[0][0]], item[0])):
        *figures, never, negative = tally.tolist()
        summaries.append(KeySummary(*form[:-1], *figures, *([(never, negative)] if form[-1] else [])))
    return tuple(summaries)


def _form(key: KeySummary) -> str:
    if not key.fingerprint:
        return "tensor"
    if key.nonfinite is None:
        return "fingerprints"
    said = [f"{count:,} {name}" for count, name in zip(key.nonfinite, COUNTED, strict=True) if count]
    return f"fingerprints, {' and '.join(said) or 'all finite'}"


def _table(name: str, values: Mapping[str, str | int]) -> list[str]:
    return [f"{name}: {_words(values)}"] if values else []


def _words(values: Mapping[str, str | int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "-"


def _lengths(lengths: Sequence[int]) -> str:
    if not lengths:
        return "none"
    return f"{len(lengths)}, of {min(lengths)} to {max(lengths)} tokens (median {statistics.median(lengths):g})"

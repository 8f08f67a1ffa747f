"""What a dump holds, in one screen."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from specalign.dump.dtypes import DTYPES
from specalign.dump.keys import RowKind, in_order
from specalign.dump.manifest import Manifest
from specalign.dump.passes import Dump, PassInfo, TensorSpec
from specalign.layer_ids.files import shown
from specalign.layer_ids.tables import format_table

SCHEMA: Final = "specalign.dump.inspect/1"

_MANY_PLACES: Final = 8


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
    """One key in one form: in how many passes it is stored, and its bytes; `width` counts elements of a row."""

    key: str
    dtype: str
    width: int
    site: str
    axis: str
    fingerprint: bool
    passes: int
    size: int


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
    """Read the headers and rows of every pass, but no values.

    Raises:
        DumpError: a pass that cannot be read.
    """
    infos = dump.infos()
    kinds = np.zeros(max(RowKind) + 1, np.int64)
    requests: dict[str, int] = {}
    for done, info in enumerate(infos, 1):
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
    return DumpSummary(dump.path, dump.manifest, _ranks(infos), _keys(infos), named, requests, notes)


def stored_bytes(spec: TensorSpec) -> int:
    """Bytes of the data that are stored of a tensor."""
    return spec.shape[0] * 16 if spec.fingerprint else math.prod(spec.shape) * DTYPES[spec.dtype].size


def _ranks(infos: Sequence[PassInfo]) -> tuple[RankSummary, ...]:
    ranks: dict[int, list[PassInfo]] = collections.defaultdict(list)
    for info in infos:
        ranks[info.rank].append(info)
    return tuple(
        RankSummary(
            rank,
            len(passes),
            sum(info.rows for info in passes),
            dict(passes[0].coords),
            ", ".join(dict.fromkeys(f"{info.stage[0]} to {info.stage[1] - 1}" for info in passes if info.stage)),
            sum(stored_bytes(spec) for info in passes for spec in info.tensors.values()),
        )
        for rank, passes in sorted(ranks.items())
    )


def _keys(infos: Sequence[PassInfo]) -> tuple[KeySummary, ...]:
    found: dict[tuple[Any, ...], list[int]] = collections.defaultdict(lambda: [0, 0])
    for info in infos:
        for spec in info.tensors.values():
            tally = found[spec.key, spec.dtype, math.prod(spec.shape[1:]), spec.site, spec.axis, spec.fingerprint]
            tally[0] += 1
            tally[1] += stored_bytes(spec)
    order = {key: at for at, key in enumerate(in_order({key for key, *_ in found}))}
    return tuple(
        KeySummary(*form, *tally) for form, tally in sorted(found.items(), key=lambda item: (order[item[0][0]], item[0]))
    )


def _form(key: KeySummary) -> str:
    return "fingerprints" if key.fingerprint else "tensor"


def _table(name: str, values: Mapping[str, str | int]) -> list[str]:
    return [f"{name}: {_words(values)}"] if values else []


def _words(values: Mapping[str, str | int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "-"


def _lengths(lengths: Sequence[int]) -> str:
    if not lengths:
        return "none"
    return f"{len(lengths)}, of {min(lengths)} to {max(lengths)} tokens (median {statistics.median(lengths):g})"

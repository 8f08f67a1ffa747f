"""From a path or repository id to a `DraftSpec` or `TargetSpec`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from specalign.layer_ids.draft_config import DraftSpec, Kind, parse_draft
from specalign.layer_ids.files import InputError, read_json_object
from specalign.layer_ids.sources import Source, locate
from specalign.layer_ids.target_config import TargetSpec, parse_target
from specalign.layer_ids.tensor_files import TensorFacts, pickled_weights, read_int_tensor, read_tensor_facts


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft head and where its config lies."""

    spec: DraftSpec
    config: Path


def load_draft(source: str, *, kind: Kind | None = None, hub_cache: Path | None = None) -> LoadedDraft:
    """The draft head at `source` (see `sources.locate`): its config, tensor headers and d2t; no other data is read.

    Raises:
        InputError: nothing there, unreadable, or no draft head; one line says what and where.
    """
    found = locate(source, hub_cache=hub_cache)
    tensors = read_tensor_facts(found.folder) if found.folder is not None else None
    if tensors is not None and not tensors.tensors and not tensors.complete:
        tensors = None  # an index alone: names without shapes, and it may be stale
    spec = parse_draft(
        read_json_object(found.config),
        name=found.name,
        kind=kind,
        tensors=tensors,
        d2t=_d2t(tensors),
        pickles=_pickles(found, tensors),
    )
    return LoadedDraft(spec, found.config)


def load_target(source: str, *, hub_cache: Path | None = None) -> TargetSpec:
    """The target at `source`: its config only.

    Raises:
        InputError: nothing there, unreadable, or a config that states no size.
    """
    found = locate(source, hub_cache=hub_cache)
    return parse_target(read_json_object(found.config), name=found.name)


def _d2t(tensors: TensorFacts | None) -> list[int] | None:
    name = next((n for n in ("d2t", "model.d2t") if tensors is not None and n in tensors.tensors), None)
    if tensors is None or name is None:
        return None
    if len(tensors.tensors[name].shape) != 1:
        raise InputError(f"{tensors.tensors[name].file}: d2t must have one dimension, not shape {tensors.tensors[name].shape}")
    values = read_int_tensor(tensors, name)
    return None if values is None else values.tolist()


def _pickles(found: Source, tensors: TensorFacts | None) -> tuple[str, ...]:
    return pickled_weights(found.folder) if found.folder is not None and tensors is None else ()

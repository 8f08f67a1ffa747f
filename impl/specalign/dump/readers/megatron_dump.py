"""slime's Megatron dumps: `<dir>/rank{global:05d}/{prefix}Pass{n:05d}.pt`.

A dict: store_prefix, input_ids, cu_seqlens (packed `cu_seqlens_q`), layers {global block number: output of that block}, modules
{name: output}. Each rank writes its own blocks. Two chunks of a virtual pipeline with one prefix overwrite each other's files
there, and a recomputed forward overwrites the layers of the first: neither can be seen in the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from specalign.dump.errors import DumpError
from specalign.dump.keys import boundary_key, module_key
from specalign.dump.manifest import Manifest
from specalign.dump.passes import PassInfo, TensorSpec
from specalign.dump.readers.base import ForeignDump, GivenRows, names_in, require_numbers, require_there, settle_rows
from specalign.dump.readers.entries import Entry, FileTensor, Notes, entry, fitting, flat_integers, shared_specs
from specalign.dump.readers.packed import packed_rows, sequence_first
from specalign.dump.readers.places import read_model_dims
from specalign.dump.readers.torch_files import load_torch_file
from specalign.dump.rows import Rows
from specalign.layer_ids.files import quoted, shown

_RANK: Final = re.compile(r"rank(?P<rank>\d{5,7})")
_FILE: Final = re.compile(r"(?P<prefix>.*?)_?Pass(?P<number>\d{5,9})\.pt")
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d{1,6})(?:\.|$)")
_FIELDS: Final = ("input_ids", "layers")
_MISSING: Final = "slime's dumper takes input_ids from the model's keyword arguments"


class MegatronDump(ForeignDump):
    """The passes of one prefix ("actor", "ref", …); see `open_megatron_dump`."""

    def __init__(self, path: Path, *, prefix: str | None = None, rows: GivenRows | None = None) -> None:
        require_there(path)
        self._files = _files(path, prefix)
        notes = Notes()
        self._staged = len({frozenset(_layers(_load(files[0]))) for files in self._files.values()}) > 1
        if self._staged:
            notes.add(
                "modules inside of blocks are left out: they are numbered within their pipeline stage, which is not recorded"
            )
        manifest = Manifest("slime megatron dump", model=read_model_dims(path), world=max(self._files) + 1)
        super().__init__(path, manifest, self._passes_of(rows, notes), ())
        self.notes = notes.texts()

    def _passes_of(self, given: GivenRows | None, notes: Notes) -> Iterator[tuple[PassInfo, Rows]]:
        specs: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        for rank, files in self._files.items():
            for number, file in files.items():
                where = shown(file)
                content = _load(file)
                rows = settle_rows(_rows(content, f"{rank}/{number}", where), given, number, where, _MISSING)
                kept = fitting(self._entries_of(content, len(rows), where), len(rows), where, notes)
                yield PassInfo(rank, number, len(rows), shared_specs(kept.values(), specs), (), None, where), rows

    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        return self._entries_of(_load(self._files[info.rank][info.number]), info.rows, info.where)

    def _entries_of(self, content: Mapping[str, Any], rows: int, where: str) -> dict[str, Entry]:
        found = {}
        for layer, tensor in _layers(content).items():
            key = boundary_key(layer + 1)
            found[key] = entry(key, sequence_first(tensor, rows, f"layer {layer}", where), site="post-block")
        for name, tensor in _modules(content, where).items():
            layer_match = _LAYER.search(name)
            if layer_match is not None and self._staged:
                continue
            made = entry(module_key(name, int(layer_match[1]) if layer_match else None), _row_first(tensor, rows))
            if made.spec.key in found:
                raise DumpError(f"{where}: two modules give {made.spec.key}")
            found[made.spec.key] = made
        return found


def detect(path: Path) -> bool:
    """Whether a folder holds `rank…/…Pass….pt`, by its names alone."""
    return any(_FILE.fullmatch(name) for rank in names_in(path) if _RANK.fullmatch(rank) for name in names_in(path / rank))


def open_megatron_dump(path: Path, *, prefix: str | None = None, rows: GivenRows | None = None) -> MegatronDump:
    """A dump of slime's Megatron side.

    Args:
        prefix: which model, if the folder holds several: "actor", "ref", …

    Raises:
        DumpError: no such dump, several prefixes, a gap in its passes, or tensors whose rows cannot be told.
    """
    return MegatronDump(path, prefix=prefix, rows=rows)


def _files(path: Path, prefix: str | None) -> dict[int, dict[int, Path]]:
    found: dict[str, dict[int, dict[int, Path]]] = {}
    for folder in names_in(path):
        rank = _RANK.fullmatch(folder)
        for match in filter(None, map(_FILE.fullmatch, names_in(path / folder) if rank else ())):
            ranks = found.setdefault(match["prefix"], {})
            ranks.setdefault(int(folder.removeprefix("rank")), {})[int(match["number"])] = path / folder / match[0]
    if prefix is None and len(found) > 1:
        raise DumpError(f"{shown(path)}: holds passes of {', '.join(sorted(found))}; say which: prefix='{min(found)}'")
    chosen = found.get(min(found, default="") if prefix is None else prefix.rstrip("_"))
    if not chosen:
        raise DumpError(f"{shown(path)}: holds no rank<r>/{prefix or '<prefix>'}_Pass<n>.pt; it has {sorted(found) or 'none'}")
    for number, files in chosen.items():
        require_numbers(list(files), "pass", f"{shown(path)} rank {number}")
    return {rank: dict(sorted(files.items())) for rank, files in sorted(chosen.items())}


def _load(file: Path) -> Mapping[str, Any]:
    content = load_torch_file(file)
    lacks = [field for field in _FIELDS if not isinstance(content, dict) or field not in content]
    if lacks:
        raise DumpError(f"{shown(file)}: lacks {', '.join(lacks)}; is it a pass of slime's Megatron dumper?")
    layers = content["layers"]
    if not isinstance(layers, dict) or not all(type(k) is int and k >= 0 for k in layers):
        raise DumpError(f"{shown(file)}: layers is {quoted(layers)}, not a table by block number")
    if not all(isinstance(v, FileTensor) for v in layers.values()):
        raise DumpError(f"{shown(file)}: layers holds something that is no tensor")
    return dict(content)


def _layers(content: Mapping[str, Any]) -> dict[int, FileTensor]:
    return dict(content["layers"])


def _modules(content: Mapping[str, Any], where: str) -> dict[str, FileTensor]:
    """Name → tensor; what a module returned beside its first tensor stands under `<name>.<index>`."""
    modules = content.get("modules") or {}
    if not isinstance(modules, dict):
        raise DumpError(f"{where}: modules is {quoted(modules)}, not a table by name")
    found: dict[str, FileTensor] = {}
    for name, value in modules.items():
        parts = [part for part in (value if isinstance(value, list) else [value]) if part is not None]
        if not all(isinstance(part, FileTensor) for part in parts):
            raise DumpError(f"{where}: module {quoted(name)} holds {quoted(value)}, not tensors")
        for index, part in enumerate(parts):
            found[str(name) if len(parts) == 1 else f"{name}.{index}"] = part
    return found


def _row_first(tensor: FileTensor, rows: int) -> FileTensor:
    """`[s, 1, *]` as `[s, *]`; anything else stays, and is left out with a note if its rows are not the tokens'."""
    shape = tensor.shape
    if len(shape) >= 3 and shape[0] == rows and shape[1] == 1:
        return FileTensor(tensor.dtype, tensor.data.reshape(rows, *shape[2:]))
    return tensor


def _rows(content: Mapping[str, Any], prefix: str, where: str) -> Rows | None:
    tokens, bounds = content["input_ids"], content.get("cu_seqlens")
    if not isinstance(tokens, FileTensor):
        return None
    if len(tokens.shape) == 2 and tokens.shape[0] > 1:
        raise DumpError(
            f"{where}: input_ids has shape {list(tokens.shape)}: a batch of {tokens.shape[0]}, whose rows"
            " Megatron interleaves; dump with packed sequences (micro-batch size 1)"
        )
    cuts = flat_integers(bounds, "cu_seqlens", where) if isinstance(bounds, FileTensor) else None
    return packed_rows(flat_integers(tokens, "input_ids", where), cuts, prefix, where)

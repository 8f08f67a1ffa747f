"""SGLang's `dumper` (SGLang and Megatron alike): `<dir>/<experiment>/k=v___k=v.pt`, one file a tensor, {value, meta}.

The meta repeats the tags of the name: step, rank, dump_index, name, recompute_status, then others (layer_id, …). Tokens are there
only as tensors of their own (`DUMPER_NON_INTRUSIVE_MODE=core`). A tensor that could not be saved is logged and skipped, which
shows as a gap in dump_index; what was to come last and was skipped does not show.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from specalign.dump.errors import DumpError
from specalign.dump.keys import module_key
from specalign.dump.manifest import AXES, Manifest
from specalign.dump.passes import PassInfo, TensorSpec
from specalign.dump.readers.base import ForeignDump, GivenRows, names_in, require_there, settle_rows
from specalign.dump.readers.entries import Entry, FileTensor, Notes, entry, fitting, flat_integers, shared_specs
from specalign.dump.readers.packed import packed_rows
from specalign.dump.readers.places import place, read_model_dims, top_module
from specalign.dump.readers.requests import Batch, Segmenter
from specalign.dump.readers.torch_files import load_torch_file
from specalign.dump.rows import Rows
from specalign.layer_ids.files import quoted, shown

_FILE: Final = re.compile(r"step=\d+___rank=\d+___dump_index=\d+___name=.+\.pt")
_HOOK: Final = re.compile(r"non_intrusive__(?P<module>.+)\.output(?:\.(?P<index>\d+))?")
_CORE: Final = frozenset(
    (
        "input_ids",
        "positions",
        "seq_lens",
        "req_pool_indices",
        "rids",
        "position_ids",
        "cu_seqlens_q",
        "cu_seqlens_kv",
        "qkv_format",
    )
)
_OWN_TAGS: Final = frozenset(("step", "rank", "dump_index", "name", "recompute_status", "layer_id", "world_rank", "world_size"))
_Values: TypeAlias = dict[tuple[str, int | None], Any]
_MISSING: Final = (
    "Dump the core fields (DUMPER_NON_INTRUSIVE_MODE=core): input_ids, positions, seq_lens and rids of SGLang, or input_ids and"
    " cu_seqlens_q of Megatron"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """One file by its meta. `key` is the name with the tags that tell it from others, `layer` the tag layer_id."""

    path: Path
    index: int
    name: str
    key: str
    layer: int | None


class SGLangDumper(ForeignDump):
    """One experiment of the dumper; see `open_dumper`."""

    def __init__(self, path: Path, *, rows: GivenRows | None = None) -> None:
        require_there(path)
        folder = _folder(path)
        self._dims = read_model_dims(folder)
        self._passes_files: dict[tuple[int, int], list[_File]] = {}
        self._coords: dict[int, tuple[tuple[str, int], ...]] = {}
        notes = Notes()
        self._scan(folder, notes)
        world = max((rank for rank, _ in self._passes_files), default=0) + 1
        super().__init__(path, Manifest("sglang dumper", model=self._dims, world=world), self._opened(rows, notes), ())
        self.notes = notes.texts()

    def _scan(self, folder: Path, notes: Notes) -> None:
        seen: dict[int, set[int]] = collections.defaultdict(set)
        for name in names_in(folder):
            if not _FILE.fullmatch(name):
                continue
            path = folder / name
            meta = _meta(load_torch_file(path), path)
            rank, step = meta["rank"], meta["step"]
            if meta["dump_index"] in seen[rank]:
                raise DumpError(f"{shown(path)}: rank {rank} has dump_index {meta['dump_index']} twice; keep one run a folder")
            seen[rank].add(meta["dump_index"])
            self._coords.setdefault(rank, _coords(meta))
            if meta["name"].startswith("grad__"):
                notes.count("gradients are left out", "tensors")
            elif meta.get("recompute_status") == "recompute":
                notes.count("tensors of a recomputed forward are left out: those of the first stand for them", "tensors")
            else:
                self._passes_files.setdefault((rank, step), []).append(_file(path, meta))
        for files in self._passes_files.values():
            files.sort(key=lambda file: file.index)
        for rank, indices in seen.items():
            lost = sorted(set(range(1, max(indices) + 1)) - indices)
            if lost:
                notes.add(
                    f"rank {rank}: {len(lost)} tensors were never saved (dump_index {', '.join(map(str, lost[:8]))}): SGLang logs"
                    " that and goes on. They count as missing"
                )

    def _opened(self, given: GivenRows | None, notes: Notes) -> Iterator[tuple[PassInfo, Rows]]:
        segmenters: dict[int, Segmenter] = collections.defaultdict(Segmenter)
        specs: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        for (rank, step), files in sorted(self._passes_files.items()):
            where = f"{shown(files[0].path.parent)} rank {rank} step {step}"
            values = _values(files, where)
            told = _rows(values, segmenters[rank], f"{rank}/{step}", where)
            rows = settle_rows(told, given, step, where, _MISSING)
            found = self._entries_of(files, values, len(rows), where, notes)
            kept = fitting(found, len(rows), where, notes)
            shared = shared_specs(kept.values(), specs)
            yield PassInfo(rank, step, len(rows), shared, self._coords[rank], None, where), rows
        for segmenter in segmenters.values():
            for text in segmenter.notes:
                notes.add(text)

    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        files = self._passes_files[info.rank, info.number]
        return self._entries_of(files, _values(files, info.where), info.rows, info.where, Notes())

    def _entries_of(self, files: Sequence[_File], values: _Values, rows: int, where: str, notes: Notes) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        hooked: dict[str, list[FileTensor]] = {}
        for file in files:
            if file.name in _CORE:
                continue
            value = values[file.key, file.layer]
            hook = _HOOK.fullmatch(file.name)
            if not isinstance(value, FileTensor):
                notes.count(f"{file.key} is left out: it holds no tensor")
            elif hook is not None:
                hooked.setdefault(hook["module"], []).append(_row_first(value, rows))
            else:
                key = module_key(file.key if file.layer is None else f"layers.{file.layer}.{file.key}", file.layer)
                found[key] = entry(key, _row_first(value, rows))
        dims = self._dims.get("num_layers")
        placed = place(hooked, top_module(sorted(hooked)), dims if isinstance(dims, int) else None, where) if hooked else {}
        twice = found.keys() & placed.keys()
        if twice:
            raise DumpError(f"{where}: {', '.join(sorted(twice))} comes from a hook and from a dump by that name")
        return found | placed


def detect(path: Path) -> bool:
    """Whether a folder, or the only level below it, holds the dumper's files."""
    return bool(_folders(path))


def open_dumper(path: Path, *, rows: GivenRows | None = None) -> SGLangDumper:
    """The dumper's files of one experiment: its folder, or the folder that holds that one.

    Args:
        rows: of each step, if no core fields were dumped.

    Raises:
        DumpError: several experiments, a name that was dumped twice in a step, or rows that cannot be told.
    """
    return SGLangDumper(path, rows=rows)


def _folders(path: Path) -> list[Path]:
    candidates = [path, *(path / name for name in names_in(path))]
    return [folder for folder in candidates if any(_FILE.fullmatch(name) for name in names_in(folder))]


def _folder(path: Path) -> Path:
    folders = _folders(path)
    if len(folders) != 1:
        many = ", ".join(folder.name for folder in folders)
        raise DumpError(
            f"{shown(path)}: {f'holds several experiments: {many}; open one' if folders else 'holds no file step=…___rank=….pt'}"
        )
    return folders[0]


def _meta(content: Any, path: Path) -> Mapping[str, Any]:
    meta = content.get("meta") if isinstance(content, dict) and "value" in content else None
    numbers = ("step", "rank", "dump_index")
    if (
        not isinstance(meta, dict)
        or not all(type(meta.get(n)) is int and meta[n] >= 0 for n in numbers)
        or not isinstance(meta.get("name"), str)
    ):
        raise DumpError(f"{shown(path)}: is no file of SGLang's dumper: {{value, meta}} with {', '.join(numbers)} and name")
    said = "___".join(f"{tag}={meta[tag]}" for tag in (*numbers, "name"))
    if not (path.stem == said or path.stem.startswith(said + "___")):
        raise DumpError(f"{shown(path)}: its meta says {said}; files must not be renamed")
    return meta


def _file(path: Path, meta: Mapping[str, Any]) -> _File:
    layer = meta.get("layer_id")
    if layer is not None and (type(layer) is not int or layer < 0):
        raise DumpError(f"{shown(path)}: layer_id is {quoted(layer)}, which is no number of a block")
    # Tags stand in the file's name; what only the meta holds describes the process.
    names = (part.partition("=")[0] for part in path.stem.split("___"))
    extra = [tag for tag in names if tag in meta and tag not in _OWN_TAGS and not tag.endswith(("_rank", "_size"))]
    key = ".".join([meta["name"], *(f"{tag}={meta[tag]}" for tag in extra)])
    return _File(path, meta["dump_index"], meta["name"], re.sub(r"\s", "_", key), layer)


def _coords(meta: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    for source in ("sglang_parallel_info", "megatron_parallel_info"):
        info = meta.get(source)
        if isinstance(info, dict):
            sized = [a for a in AXES if type(info.get(f"{a}_rank")) is int and info.get(f"{a}_size", 1) != 1]
            return tuple((axis, info[f"{axis}_rank"]) for axis in sized)
    return ()


def _values(files: Sequence[_File], where: str) -> _Values:
    """What each file of a pass holds, by key and layer.

    Core fields are dumped wherever a module takes an argument of that name; all must hold the same.

    Raises:
        DumpError: anything else that stands twice, or two core fields that differ.
    """
    values: _Values = {}
    places: dict[tuple[str, int | None], _File] = {}
    for file in files:
        core = file.name in _CORE
        place_of = (file.name, None) if core else (file.key, file.layer)
        value = load_torch_file(file.path)["value"]
        other = places.setdefault(place_of, file)
        if other is not file and not (core and _equal(values[place_of], value)):
            raise DumpError(
                f"{where}: {file.key} of layer {file.layer} was dumped twice (dump_index {other.index} and {file.index}): call"
                " dumper.step() after each forward, or the two cannot be told apart"
            )
        values[place_of] = value
    return values


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, FileTensor) and isinstance(b, FileTensor):
        return a.dtype == b.dtype and np.array_equal(a.data, b.data)
    return type(a) is type(b) and bool(a == b)


def _row_first(tensor: FileTensor, rows: int) -> FileTensor:
    """Megatron's `[s, 1, h]` as `[s, h]`."""
    shape = tensor.shape
    return FileTensor(tensor.dtype, tensor.data.reshape(rows, shape[2])) if shape[:2] == (rows, 1) and len(shape) == 3 else tensor


def _rows(values: _Values, segmenter: Segmenter, prefix: str, where: str) -> Rows | None:
    core = {name: value for (name, _), value in values.items() if name in _CORE}
    known = {name: flat_integers(value, name, where) for name, value in core.items() if isinstance(value, FileTensor)}
    if "input_ids" not in known:
        return None
    if "cu_seqlens_q" in known:
        return packed_rows(known["input_ids"], known["cu_seqlens_q"], prefix, where)
    rids = core.get("rids")
    if "positions" not in known or (rids is None and "seq_lens" not in known):
        return None
    if rids is not None and not (isinstance(rids, list) and all(isinstance(rid, str) for rid in rids)):
        raise DumpError(f"{where}: rids is {quoted(rids)}, not a list of request ids")
    slots = known.get("req_pool_indices")
    named = None if rids is None else tuple(rids)
    return segmenter.rows(Batch(known["input_ids"], known["positions"], known.get("seq_lens"), None, slots, named, where=where))

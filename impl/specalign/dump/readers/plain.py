"""Plain safetensors: one file a pass, with our keys (`boundary.3`, `tokens`, …) or names that the caller maps to them.

Beside the tensors a file holds `tokens` and `positions`, and `requests` and `row_kind` where it holds more than one request or
anything but a prefill. Request i of `requests` is called "i", the same one in every file; without `requests` a file is one
request by the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.files import map_file, reading, view
from specalign.dump.keys import INDEX_DTYPES, POSITIONS, REQUESTS, ROW_KIND, TOKENS, RowKind, parse_key
from specalign.dump.manifest import MANIFEST, Manifest
from specalign.dump.passes import PassInfo, TensorSpec
from specalign.dump.readers.base import ForeignDump, GivenRows, names_in, require_there, settle_rows
from specalign.dump.readers.entries import Entry, FileTensor, Notes, entry, fitting, integers, shared_specs
from specalign.dump.readers.places import read_model_dims
from specalign.dump.rows import NO_REQUEST, Rows, make_rows
from specalign.layer_ids.files import quoted, shown
from specalign.layer_ids.tensor_files import read_header

_SUFFIX: Final = ".safetensors"
_SHARD: Final = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")
_MISSING: Final = f"Save {TOKENS} and {POSITIONS} (I64, one a row) with the tensors"


class PlainSafetensors(ForeignDump):
    """Safetensors files; see `open_plain`."""

    def __init__(self, path: Path, *, names: Mapping[str, str] | None = None, rows: GivenRows | None = None) -> None:
        require_there(path)
        self._names = dict(names or {})
        for name, key in self._names.items():
            if key not in INDEX_DTYPES:
                parse_key(key)
            if list(self._names.values()).count(key) > 1:
                raise DumpError(f"{quoted(name)} and another name are both mapped to {key}")
        folder = path if path.is_dir() else path.parent
        self._files = [path] if path.is_file() else [path / name for name in names_in(path) if name.endswith(_SUFFIX)]
        if any(_SHARD.fullmatch(file.name) for file in self._files):
            raise DumpError(f"{shown(path)}: holds the shards of a checkpoint (-00001-of-…), not the passes of a run")
        notes = Notes()
        manifest = Manifest("safetensors", model=read_model_dims(folder) if path.is_dir() else {})
        super().__init__(path, manifest, self._passes_of(rows, notes), ())
        self.notes = notes.texts()

    def _passes_of(self, given: GivenRows | None, notes: Notes) -> Iterator[tuple[PassInfo, Rows]]:
        specs: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        for number, file in enumerate(self._files):
            tensors, where = _tensors(file), shown(file)
            ours = self._renamed(tensors, where)
            for name in sorted(set(tensors) - set(ours.values())):
                notes.count(f"{name} is left out: it is no key of a dump, and names= does not map it")
            told = _rows({key: tensors[name] for key, name in ours.items() if key in INDEX_DTYPES}, file.stem, where)
            rows = settle_rows(told, given, number, where, _MISSING)
            kept = fitting(self._entries_of(tensors, ours, len(rows)), len(rows), where, notes)
            yield PassInfo(0, number, len(rows), shared_specs(kept.values(), specs), (), None, where), rows

    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        tensors = _tensors(self._files[info.number])
        return self._entries_of(tensors, self._renamed(tensors, info.where), info.rows)

    def _renamed(self, tensors: Mapping[str, FileTensor], where: str) -> dict[str, str]:
        """Our key → the file's name, of every tensor that has one."""
        found: dict[str, str] = {}
        for name in tensors:
            key = self._names.get(name, name)
            if name not in self._names and key not in INDEX_DTYPES and not _is_key(key):
                continue
            if key in found:
                raise DumpError(f"{where}: {found[key]} and {name} are both {key}; map one of them to another key")
            found[key] = name
        return found

    def _entries_of(self, tensors: Mapping[str, FileTensor], ours: Mapping[str, str], rows: int) -> dict[str, Entry]:
        return {key: entry(key, _without_batch(tensors[name], rows)) for key, name in ours.items() if key not in INDEX_DTYPES}


def detect(path: Path) -> bool:
    """Whether it is a safetensors file, or a folder with some and without our own manifest."""
    names = names_in(path)
    return (path.name.endswith(_SUFFIX) and path.is_file()) or (MANIFEST not in names and any(n.endswith(_SUFFIX) for n in names))


def open_plain(path: Path, *, names: Mapping[str, str] | None = None, rows: GivenRows | None = None) -> PlainSafetensors:
    """One safetensors file, or a folder of them: one file a pass, in order of name.

    Args:
        names: name in the files → our key, such as `{"hidden_states.0": "boundary.0", "input_ids": "tokens"}`. Mind the
            convention: the last of transformers' `output_hidden_states` is `post_norm`, not a boundary.
        rows: of each pass by number, where the files hold no tokens.

    Raises:
        DumpError: no safetensors, two tensors for one key, or rows that are not known.
    """
    return PlainSafetensors(path, names=names, rows=rows)


def _is_key(name: str) -> bool:
    try:
        parse_key(name)
    except DumpError:
        return False
    return not name.startswith("fingerprint.")


def _tensors(file: Path) -> dict[str, FileTensor]:
    where = shown(file)
    with reading():
        _, infos = read_header(file)
    mapped = map_file(file)
    found = {}
    for info in infos:
        if info.dtype not in DTYPES:
            raise DumpError(f"{where}: {quoted(info.name)} is {info.dtype}; dumps hold {', '.join(DTYPES)}")
        if info.span is None:
            raise DumpError(f"{where}: is cut off: the data of {quoted(info.name)} is not in it; copy the file again")
        found[info.name] = FileTensor(info.dtype, view(mapped, info.dtype, info.shape, info.span))
    return found


def _without_batch(tensor: FileTensor, rows: int) -> FileTensor:
    """transformers' `[1, rows, h]` as `[rows, h]`."""
    shape = tensor.shape
    batched = len(shape) == 3 and shape[0] == 1 and shape[1] == rows
    return FileTensor(tensor.dtype, tensor.data.reshape(shape[1:])) if batched else tensor


def _rows(columns: Mapping[str, FileTensor], stem: str, where: str) -> Rows | None:
    if TOKENS not in columns:
        return None
    found: dict[str, NDArray[Any]] = {}
    for name, tensor in columns.items():
        value = integers(tensor, name, where)
        found[name] = value.reshape(-1) if value.ndim == 2 and len(value) == 1 else value
    tokens, positions = found[TOKENS], found.get(POSITIONS)
    if positions is None:
        raise DumpError(f"{where}: holds {TOKENS} and no {POSITIONS}; a chunk or a decode step does not begin at 0, so save them")
    kinds = found.get(ROW_KIND, np.zeros(len(tokens), np.uint8))
    requests = found.get(REQUESTS)
    if requests is None:
        if positions.shape == kinds.shape and (np.diff(positions[kinds != RowKind.PADDING]) != 1).any():
            raise DumpError(
                f"{where}: positions do not follow on, so it holds several requests; save {REQUESTS} (I32, one a row)"
            )
        requests, ids = np.where(kinds == RowKind.PADDING, NO_REQUEST, 0), [stem]
    else:
        known, inverse = np.unique(requests[requests >= 0], return_inverse=True)
        requests, ids = requests.copy(), [str(i) for i in known.tolist()]
        requests[requests >= 0] = inverse
    return make_rows(tokens, positions, requests, kinds, ids, where=where)

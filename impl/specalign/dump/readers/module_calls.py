"""Files that a hook of SGLang's `--forward-hooks` wrote: `<module>.call<k>.pt`, one a module and forward.

Each is a dict: name, class, call, mode (SGLang's ForwardMode, as text), input_ids, positions, seq_lens, out_cache_loc, output.
The batch is None for modules that get no `ForwardBatch` (embed_tokens, norm): their rows are those of the same call's blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from specalign.dump.errors import DumpError
from specalign.dump.manifest import Manifest
from specalign.dump.passes import PassInfo, TensorSpec
from specalign.dump.readers.base import ForeignDump, GivenRows, names_in, require_there, settle_rows
from specalign.dump.readers.entries import Entry, FileTensor, Notes, fitting, flat_integers, shared_specs
from specalign.dump.readers.places import place, read_model_dims, top_module
from specalign.dump.readers.requests import Batch, Segmenter, forward_mode
from specalign.dump.readers.torch_files import load_torch_file
from specalign.dump.rows import Rows
from specalign.layer_ids.files import quoted, shown

_FILE: Final = re.compile(r"(?P<name>\S+)\.call(?P<call>\d{1,9})\.pt")
_FIELDS: Final = ("name", "class", "call", "output")
_BATCH: Final = ("input_ids", "positions", "seq_lens")
_MISSING: Final = "Hook the model's blocks too, since embed_tokens and norm get no ForwardBatch"


class ModuleCalls(ForeignDump):
    """The files of one rank's hooks; see `open_module_calls`."""

    def __init__(self, path: Path, *, rows: GivenRows | None = None) -> None:
        require_there(path)
        self._dims = read_model_dims(path)
        self._files = _files(path)
        self._classes: dict[str, str] = {}
        notes = Notes()
        modules = {name for names in self._files.values() for name in names}
        self._top = top_module(sorted(modules))
        for call, names in self._files.items():
            for name in sorted(modules - names.keys()):
                notes.add(f"call {call} has no file of {name}, which other calls have: it counts as missing")
        passes = self._passes_of(rows, notes)
        super().__init__(path, Manifest("sglang forward hooks", model=self._dims), passes, notes.texts())

    def _passes_of(self, given: GivenRows | None, notes: Notes) -> list[tuple[PassInfo, Rows]]:
        segmenter, made = Segmenter(), []
        specs: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        for call in sorted(self._files):
            where = self._where(call)
            contents = self._contents(call)
            batch = _batch(contents, where)
            told = None if batch is None else segmenter.rows(batch)
            rows = settle_rows(told, given, call, where, _MISSING)
            kept = fitting(self._place(contents, where), len(rows), where, notes)
            made.append((PassInfo(0, call, len(rows), shared_specs(kept.values(), specs), (), None, where), rows))
        for text in segmenter.notes:
            notes.add(text)
        return made

    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        return self._place(self._contents(info.number), info.where)

    def _place(self, contents: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Entry]:
        dims = self._dims.get("num_layers")
        outputs = {name: _output(name, content["output"], where) for name, content in contents.items()}
        return place(outputs, self._top, dims if isinstance(dims, int) else None, where)

    def _contents(self, call: int) -> dict[str, Mapping[str, Any]]:
        contents = {}
        for name, file in self._files[call].items():
            content = load_torch_file(file)
            _check(content, name, call, shown(file))
            known = self._classes.setdefault(name, str(content["class"]))
            if known != str(content["class"]):
                raise DumpError(
                    f"{shown(file)}: {name} is a {content['class']} here and a {known} in another call: target and draft were"
                    " recorded into one folder; the hook must tell them apart"
                )
            contents[name] = content
        return contents

    def _where(self, call: int) -> str:
        return shown(next(iter(self._files[call].values())).parent) + f" call {call}"


def detect(path: Path) -> bool:
    """Whether a folder holds `<module>.call<k>.pt` files."""
    return any(_FILE.fullmatch(name) for name in names_in(path))


def open_module_calls(path: Path, *, rows: GivenRows | None = None) -> ModuleCalls:
    """The folder with the files of one rank.

    Raises:
        DumpError: a file is not what its name says, two files of one call belong to different batches, or rows cannot be told.
    """
    return ModuleCalls(path, rows=rows)


def _files(path: Path) -> dict[int, dict[str, Path]]:
    files: dict[int, dict[str, Path]] = {}
    for match in filter(None, map(_FILE.fullmatch, names_in(path))):
        call, name = int(match["call"]), match["name"]
        other = files.setdefault(call, {}).setdefault(name, path / match[0])
        if other.name != match[0]:
            raise DumpError(f"{shown(path)}: {other.name} and {match[0]} are call {call} of one module")
    if not files:
        raise DumpError(f"{shown(path)}: holds no <module>.call<k>.pt file")
    return files


def _check(content: Any, name: str, call: int, where: str) -> None:
    lacks = [field for field in _FIELDS if not isinstance(content, dict) or field not in content]
    if lacks:
        raise DumpError(f"{where}: lacks {', '.join(lacks)}; is it a file of a forward hook?")
    if content["name"] != name or content["call"] != call:
        raise DumpError(
            f"{where}: says that it is call {quoted(content['call'])} of {quoted(content['name'])}; files must not be renamed"
        )


def _batch(contents: Mapping[str, Mapping[str, Any]], where: str) -> Batch | None:
    """The batch of a call, on which all its files must agree."""
    found: tuple[str, Batch] | None = None
    for name, content in contents.items():
        if not all(isinstance(content.get(field), FileTensor) for field in _BATCH):
            continue
        columns = [flat_integers(content[field], field, where) for field in _BATCH]
        made = Batch(columns[0], columns[1], columns[2], mode=forward_mode(content.get("mode"), where), where=where)
        if found is not None and not _same(found[1], made):
            raise DumpError(
                f"{where}: {found[0]} and {name} saw different tokens, positions or lengths: the counts of their calls have"
                " drifted apart (a warm-up, a draft, or a module that was skipped)"
            )
        found = found or (name, made)
    return None if found is None else found[1]


def _same(a: Batch, b: Batch) -> bool:
    pairs = ((a.tokens, b.tokens), (a.positions, b.positions), (a.seq_lens, b.seq_lens))
    return a.mode == b.mode and all(np.array_equal(x, y) for x, y in pairs if x is not None and y is not None)


def _output(name: str, value: Any, where: str) -> list[FileTensor]:
    parts = [part for part in (value if isinstance(value, list) else [value]) if part is not None]
    if not parts or not all(isinstance(part, FileTensor) for part in parts):
        raise DumpError(f"{where}: the output of {name} is {quoted(value)}, not a tensor or tensors")
    return parts

"""The files of SGLang's tensor dump: opened as seldom as possible, and parsed once for each form that they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from specalign.dump.errors import DumpError
from specalign.dump.passes import TensorSpec
from specalign.dump.readers.entries import Entry, FileTensor
from specalign.dump.readers.torch_files import Loaded, TorchFile, open_torch_file
from specalign.layer_ids.files import shown

INFO: Final = ".forward_batch_info."
"""In the names of what the files hold of the batch."""

Form: TypeAlias = tuple[int, ...]
"""What passes of one form have in common: the rank, and the layout's number of each file that the pass lies in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    """Where one file's worth of tensors lies: a file, and the place in its list if it is a chunk."""

    file: Path
    index: int | None = None

    @property
    def where(self) -> str:
        """How messages name it."""
        return shown(self.file) if self.index is None else f"{shown(self.file)} pass {self.index}"


class Files:
    """The files' contents; the last two stay open, since a forward lies in two of them and a chunk holds many."""

    def __init__(self) -> None:
        self._open: dict[Path, TorchFile] = {}

    def read(self, spot: Spot) -> dict[str, Loaded]:
        """What was recorded of a forward, by name."""
        content = self.open(spot.file).value
        record = content if spot.index is None else content[spot.index]
        if not isinstance(record, dict) or not all(isinstance(name, str) for name in record):
            raise DumpError(f"{spot.where}: holds {kind_of(record)}, not a table of tensors by module; is it a tensor dump?")
        return record

    def count(self, file: Path) -> int:
        """Forwards in a chunk."""
        content = self.open(file).value
        if not isinstance(content, list):
            raise DumpError(f"{shown(file)}: holds {kind_of(content)}, not a list of passes; is it a chunk of slime's?")
        return len(content)

    def form(self, spot: Spot) -> int | None:
        """The number of a file's layout; None if it has no known one, or is a chunk."""
        layout = self.open(spot.file).layout if spot.index is None else None
        return None if layout is None else layout.number

    def open(self, file: Path) -> TorchFile:
        """A file, which stays open for a while."""
        kept = self._open
        if file in kept:
            return kept[file]
        content = open_torch_file(file)
        self._open = dict([*list(kept.items())[-1:], (file, content)])  # one assignment: threads may read at the same time
        return content


class Outlines:
    """What the files hold but for the values of their tensors: batches whole, of the others names, element types and shapes.

    Each file is opened once for it, however many of them are looked at together. The steps of a run share their outputs' outline.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._known: dict[Spot, tuple[Mapping[str, Loaded], Mapping[str, Loaded]]] = {}
        self._forms: dict[Spot, int | None] = {}
        self._of_form: dict[int, Mapping[str, Loaded]] = {}
        self._shared: dict[object, Mapping[str, Loaded]] = {}

    def read(self, spot: Spot) -> dict[str, Loaded]:
        """As `Files.read`; no tensor outside of the batch has values."""
        if spot not in self._known:
            self._known[spot] = self._read(spot)
        batch, outputs = self._known[spot]
        return {**batch, **outputs}

    def form(self, spot: Spot) -> int | None:
        """As `Files.form`."""
        if spot not in self._known:
            self._known[spot] = self._read(spot)
        return self._forms[spot]

    def _read(self, spot: Spot) -> tuple[Mapping[str, Loaded], Mapping[str, Loaded]]:
        form = self._forms[spot] = self.files.form(spot)
        outputs = None if form is None else self._of_form.get(form)
        if outputs is not None:
            file = self.files.open(spot.file)
            return {name: _copied(file.part(name)) for name in file.names if INFO in name}, outputs
        record = self.files.read(spot)
        batch = {name: _copied(value) for name, value in record.items() if INFO in name}
        outputs = {name: value for name, value in record.items() if INFO not in name}
        kinds = tuple((name, _kinds(value)) for name, value in outputs.items())
        if kinds not in self._shared:
            self._shared[kinds] = {name: _hollow(value) for name, value in outputs.items()}
        outputs = self._shared[kinds]
        if form is not None:
            self._of_form[form] = outputs
        return batch, outputs


_Place: TypeAlias = tuple[int, str, int | None]
"""Where a tensor of a pass is: in which of its files, under which name, and at which place of the list there."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How the entries of all passes of a form come out of their files.

    Attributes:
        items: for each entry what it is, the places of its parts, and the names and places of its twins.
    """

    items: tuple[tuple[TensorSpec, tuple[_Place, ...], tuple[tuple[str, _Place], ...]], ...]

    def entries(self, files: Sequence[TorchFile]) -> dict[str, Entry]:
        """The entries of a pass that lies in these files."""
        values: dict[tuple[int, str], Loaded] = {}

        def part(spot: _Place) -> FileTensor:
            file, name, index = spot
            if (file, name) not in values:
                values[file, name] = files[file].part(name)
            found: FileTensor = values[file, name] if index is None else values[file, name][index]
            return found

        return {
            spec.key: Entry(spec, tuple(map(part, parts)), tuple((name, part(spot)) for name, spot in twins))
            for spec, parts, twins in self.items
        }


def anew(record: Mapping[str, Loaded]) -> dict[str, Loaded]:
    """A record of an outline with tensors that no other has: the two files of a pass may share their outline."""
    return {name: _hollow(value) for name, value in record.items()}


def plan_of(entries: Mapping[str, Entry], records: Sequence[Mapping[str, Loaded]]) -> Plan:
    """The plan of the form of a pass whose entries were made of the tensors in these records, which are made `anew`."""
    places: dict[int, _Place] = {}
    for file, record in enumerate(records):
        for name, value in record.items():
            for index, tensor in enumerate(value) if isinstance(value, list) else ((None, value),):
                places[id(tensor)] = (file, name, index)
    return Plan(
        tuple(
            (
                made.spec,
                tuple(places[id(tensor)] for tensor in made.parts),
                tuple((name, places[id(twin)]) for name, twin in made.twins),
            )
            for made in entries.values()
        )
    )


def kind_of(value: Loaded) -> str:
    """What something is that is no table of tensors."""
    return "a tensor" if isinstance(value, FileTensor) else f"a {type(value).__name__}"


def _copied(value: Loaded) -> Loaded:
    """Out of the mapped file, which may be closed then."""
    return FileTensor(value.dtype, value.data.copy()) if isinstance(value, FileTensor) else value


def _kinds(value: Loaded) -> object:
    """Equal for values of one outline."""
    if isinstance(value, FileTensor):
        return value.dtype, value.shape
    return tuple(map(_kinds, value)) if isinstance(value, list) else str(type(value))


def _hollow(value: Loaded) -> Loaded:
    if isinstance(value, FileTensor):
        return FileTensor(value.dtype, np.broadcast_to(np.zeros((), value.data.dtype), value.shape))
    return list(map(_hollow, value)) if isinstance(value, list) else value

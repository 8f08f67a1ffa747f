"""The files of goldens: written whole or not at all, read by memory map."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from specalign.compare.leaves import Leaf
from specalign.dump.errors import DumpError
from specalign.dump.files import TEMPORARY, Source, checksum_of, map_file, sync_folder, view, write_tensors, writing
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.header import METADATA_KEY, seal
from specalign.golden.document import Document, Form, StoredTensor, parse_document
from specalign.golden.environment import ARCH, Environment
from specalign.golden.errors import GoldenError
from specalign.golden.keys import Key
from specalign.layer_ids.files import (
    InputError,
    is_there,
    list_names,
    open_regular,
    parse_json_object,
    quoted,
    read_exactly,
    read_json_object,
    shown,
)
from specalign.layer_ids.rewrite import write_text_atomically
from specalign.layer_ids.tensor_files import read_header

FOLDER: Final = "__golden__"
"""The folder of goldens beside a test."""

TENSORS: Final = ".safetensors"
DOCUMENT: Final = ".json"

_NAME: Final = re.compile(r"(?P<stem>.+)\.(?P<arch>[a-z0-9_]{1,24})(?P<suffix>\.safetensors|\.json)")
_LOCK_TIMEOUT: Final = 600.0
_RESUME: Final = " and go on with resume=True"
"""What the writer of dumps advises where a disk is full; a golden is written anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A golden's file, or where it would be.

    Attributes:
        folder: that holds it.
        stem: the part of its name that the key makes.
        arch: the architecture that its name says.
    """

    folder: Path
    stem: str
    arch: str

    @property
    def tensors(self) -> Path:
        return self.folder / f"{self.stem}.{self.arch}{TENSORS}"

    @property
    def document(self) -> Path:
        return self.folder / f"{self.stem}.{self.arch}{DOCUMENT}"

    def found(self) -> Path | None:
        """The file that is there.

        Raises:
            GoldenError: two are.
        """
        there = [path for path in (self.tensors, self.document) if is_there(path)]
        if len(there) > 1:
            raise GoldenError(f"{shown(there[0])} and {shown(there[1].name)} are one golden in two forms: remove one of them")
        return there[0] if there else None

    def others(self) -> tuple[str, ...]:
        """Architectures for which there is a golden, other than this one."""
        names = list_names(self.folder) if self.folder.is_dir() else []
        found = (_NAME.fullmatch(name) for name in names)
        return tuple(sorted({m["arch"] for m in found if m is not None and m["stem"] == self.stem and m["arch"] != self.arch}))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """A golden that was opened.

    Attributes:
        path: the file.
        document: what it says.
        data: by its name in the file, the bits of a tensor or the fingerprints of its rows; views of the mapped file. Empty for
            a golden that is elsewhere.
    """

    path: Path
    document: Document
    data: Mapping[str, NDArray[Any]]

    def leaf(self, tensor: StoredTensor) -> Leaf:
        """A tensor of a golden of values."""
        from specalign.dump.dtypes import DTYPES

        return Leaf(tensor.path, DTYPES[tensor.dtype], tensor.shape, self.data[tensor.stored])

    def damaged(self) -> tuple[str, ...]:
        """Names of the tensors whose data do not have their checksum; reads all of it."""
        return tuple(name for name, crc in self.document.crc32.items() if checksum_of(self.data[name]) != crc)


def parse_name(name: str) -> tuple[str, str] | None:
    """The stem and the architecture that a file's name says; None for a file that is no golden."""
    match = _NAME.fullmatch(name)
    return (match["stem"], match["arch"]) if match is not None and not name.startswith(".") else None


def write_golden(place: Place, key: Key, environment: Environment, leaves: Sequence[Leaf], form: Form) -> Path:
    """Write a golden of tensors, in the place of one that may be there.

    Raises:
        GoldenError: it cannot be written.
    """
    with replacing(place, TENSORS) as temporary:
        write_tensor_file(temporary, key, environment, leaves, form)
    return place.tensors


def write_tensor_file(path: Path, key: Key, environment: Environment, leaves: Sequence[Leaf], form: Form) -> None:
    """Write the safetensors file of a golden under a name that nobody has; equal arguments give equal bytes."""
    tensors = tuple(StoredTensor(leaf.path, leaf.dtype.name, leaf.shape) for leaf in leaves)
    document = Document(form, key, environment, tensors)
    sources = [_source(leaf, tensor, form) for leaf, tensor in zip(leaves, tensors, strict=True)]
    order = write_order(sources)
    with writing_golden():
        write_tensors(path, sources, lambda checksums: document.metadata(order, checksums), seal)


def write_order(sources: Sequence[Source]) -> list[str]:
    """The order of the data in the file, which is that of the checksums; see `write_tensors`."""
    from specalign.dump.dtypes import DTYPES

    return [source.name for source in sorted(sources, key=lambda source: (-DTYPES[source.dtype].size, source.name))]


def write_document(place: Place, document: Document) -> Path:
    """Write the document of a golden that is elsewhere, in the place of one that may be there."""
    with replacing(place, DOCUMENT) as temporary:
        write_text_atomically(json.dumps(document.to_json(), indent=2, sort_keys=True) + "\n", temporary)
    return place.document


@contextlib.contextmanager
def replacing(place: Place, suffix: str) -> Iterator[Path]:
    """A temporary path in the golden's folder that takes the golden's name at the end; any failure leaves what was there."""
    path = place.tensors if suffix == TENSORS else place.document
    with writing_golden(), writing(path):
        place.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        try:
            yield temporary
            temporary.replace(path)
            (place.document if suffix == TENSORS else place.tensors).unlink(missing_ok=True)  # the same golden in another form
            sync_folder(place.folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_golden(path: Path) -> Golden:
    """Open a golden; its tensors are not read, but mapped.

    Raises:
        GoldenError: it cannot be read, is none, is damaged in its header, or contradicts itself or its name.
    """
    try:
        if path.suffix == DOCUMENT:
            return _checked_name(Golden(path, parse_document(read_json_object(path), shown(path)), {}))
        return _checked_name(read_tensor_file(path))
    except GoldenError:
        raise
    except InputError as error:
        raise GoldenError(str(error)) from error


def read_tensor_file(path: Path) -> Golden:
    """Open the safetensors file of a golden, whatever its name. Raises `InputError`."""
    where = shown(path)
    metadata, infos = read_header(path)
    if metadata.keys() != {METADATA_KEY}:
        raise GoldenError(
            f"{where}: is no golden: its metadata has the keys {quoted(sorted(metadata))}, not {METADATA_KEY} alone"
        )
    spans = {info.name: info.span or (0, 0) for info in infos}
    _check_seal(path, min((begin for begin, _ in spans.values()), default=0))
    document = parse_document(parse_json_object(metadata[METADATA_KEY], f"{where}: the document {METADATA_KEY}"), where)
    if {info.name for info in infos} != {tensor.stored for tensor in document.tensors} or document.form not in (
        "values",
        "fingerprint",
    ):
        raise GoldenError(f"{where}: its document is not about the tensors that it holds; write the golden again")
    kinds = {info.name: (info.dtype, info.shape) for info in infos}
    for tensor in document.tensors:
        whole = (tensor.dtype, tensor.shape) if document.form == "values" else ("U64", (_rows(tensor.shape), 2))
        if kinds[tensor.stored] != whole:
            raise GoldenError(f"{where}: {quoted(tensor.stored)} is {kinds[tensor.stored]}, and its document says {whole}")
    mapped = map_file(path)
    return Golden(path, document, {name: view(mapped, *kinds[name], spans[name]) for name in kinds})


@contextlib.contextmanager
def locked(place: Place) -> Iterator[None]:
    """Nobody else on this machine writes this golden meanwhile. The lock lies in the folder of temporary files.

    Raises:
        GoldenError: somebody holds it for ten minutes.
    """
    name = hashlib.sha256(os.fsencode(f"{place.folder.absolute()}/{place.stem.casefold()}.{place.arch}")).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"specalign-golden-{os.getuid()}"
    with writing_golden(), writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock", timeout=_LOCK_TIMEOUT)
        try:
            lock.acquire()
        except Timeout:
            raise GoldenError(
                f"{shown(place.tensors)}: another process writes it for {_LOCK_TIMEOUT:.0f} s; look for what hangs"
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def writing_golden() -> Iterator[None]:
    """Makes every failure to write a `GoldenError` with the same text."""
    try:
        yield
    except GoldenError:
        raise
    except InputError as error:
        raise GoldenError(str(error).replace(_RESUME, "")) from error


def is_temporary(name: str) -> bool:
    """Whether a file or folder was being written by somebody who was killed."""
    return TEMPORARY.fullmatch(name) is not None


def fingerprint_of(leaf: Leaf) -> NDArray[np.uint64]:
    """The fingerprint of each row (the first axis) of a tensor, uint64 `[rows, 2]`; a single number is one row."""
    return fingerprint_rows(leaf.bits.reshape(_rows(leaf.shape), -1))


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _source(leaf: Leaf, tensor: StoredTensor, form: Form) -> Source:
    if form == "fingerprint":
        return Source(tensor.stored, "U64", fingerprint_of(leaf))
    return Source(tensor.stored, leaf.dtype.name, leaf.bits)


def _check_seal(path: Path, start: int) -> None:
    with open_regular(path) as (handle, _):
        header = read_exactly(handle, start, path)
    if seal(header) != header:
        raise DumpError(f"{shown(path)}: the header does not have its checksum: it was damaged; check it out again")


def _checked_name(golden: Golden) -> Golden:
    said = parse_name(golden.path.name)
    document = golden.document
    if said != (document.key.stem, document.environment.arch) or not ARCH.fullmatch(document.environment.arch):
        raise GoldenError(
            f"{shown(golden.path)}: is a golden of {document.key.text} for {quoted(document.environment.arch)}, and its name says"
            " something else: it was copied or renamed; restore the name, or remove it and write it anew"
        )
    return golden

"""The JSON document of a golden, `specalign.golden/1`: whose it is, where it was computed, and what form it has.

A golden of tensors is one safetensors file. Its metadata have the one key `specalign`, which holds the document as text; `check`
stands first and is the CRC-32 of the bytes up to the data, as in a pass of a dump:

    {"check": "01234567", "schema": "specalign.golden/1", "form": "values",
     "key": {"module": "test_router.py", "class": "", "function": "test_scores", "params": "4-8", "name": "scores"},
     "environment": {"device": "cuda", "arch": "sm90", "versions": {"torch": "2.9.0"}},
     "tensors": {"tensor": {"path": "", "dtype": "BF16", "shape": [17, 2880]}}, "crc32": {"tensor": "89abcdef"}}

A golden of a dump, and one whose file lies in a store, are a JSON file with a document that says where.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from specalign.dump.dtypes import DTYPES
from specalign.dump.header import METADATA_KEY, NO_CRC
from specalign.golden.environment import Environment, parse_environment
from specalign.golden.errors import GoldenError
from specalign.golden.keys import Key, parse_key
from specalign.layer_ids.files import quoted

SCHEMA: Final = "specalign.golden/1"
Form = Literal["values", "fingerprint", "external", "dump"]

SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DUMP_FOLDER: Final = re.compile(r"[A-Za-z0-9._=%~-]{1,250}\.dump")
_COMMON: Final = frozenset({"schema", "form", "key", "environment"})
_MORE: Final[Mapping[str, frozenset[str]]] = {
    "values": frozenset({"check", "tensors", "crc32"}),
    "fingerprint": frozenset({"check", "tensors", "crc32"}),
    "external": frozenset({"sha256", "size"}),
    "dump": frozenset({"folder", "passes", "rows"}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTensor:
    """What the document says of one tensor.

    Attributes:
        path: in the result: `` for a result that is one tensor, `['h'][0]` in a tree.
        dtype, shape: of the tensor itself, also where its fingerprints are stored.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> str:
        """Its name in the file."""
        return self.path or "tensor"


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A golden's document.

    Attributes:
        form: "values" and "fingerprint" are safetensors files; "external" points into a store, "dump" at a folder.
        key: whose it is.
        environment: where it was computed.
        tensors: of a safetensors file, in the order in which they were handed over.
        crc32: of the data of each, by its name in the file.
        sha256, size: of the file in the store.
        folder, passes, rows: of a dump, beside the document.
    """

    form: Form
    key: Key
    environment: Environment
    tensors: tuple[StoredTensor, ...] = ()
    crc32: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sha256: str = ""
    size: int = 0
    folder: str = ""
    passes: int = 0
    rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document as plain objects, after the JSON Schema `schemas/golden-1.json`."""
        said: dict[str, Any] = {"schema": SCHEMA, "form": self.form, "key": self.key.to_json()}
        said["environment"] = self.environment.to_json()
        if self.form == "external":
            return {**said, "sha256": self.sha256, "size": self.size}
        if self.form == "dump":
            return {**said, "folder": self.folder, "passes": self.passes, "rows": self.rows}
        tensors = {t.stored: {"path": t.path, "dtype": t.dtype, "shape": list(t.shape)} for t in self.tensors}
        return {"check": NO_CRC, **said, "tensors": tensors, "crc32": dict(self.crc32)}

    def metadata(self, names: Sequence[str], checksums: Sequence[str]) -> dict[str, str]:
        """The metadata of a safetensors file whose data have these checksums."""
        whole = dataclasses.replace(self, crc32=dict(zip(names, checksums, strict=True)))
        return {METADATA_KEY: json.dumps(whole.to_json(), separators=(",", ":"))}


def parse_document(document: Mapping[str, Any], where: str) -> Document:
    """A document out of its JSON object.

    Raises:
        GoldenError: another schema, unknown or missing fields, or a value that cannot be.
    """
    if document.get("schema") != SCHEMA:
        raise GoldenError(
            f"{where}: has the schema {quoted(document.get('schema'))}, and {SCHEMA} is read here; is it of a newer version?"
        )
    form = document.get("form")
    wanted = _COMMON | _MORE.get(str(form), frozenset())
    if not isinstance(form, str) or form not in _MORE or document.keys() != wanted:
        wrong = sorted(document.keys() ^ wanted)
        raise GoldenError(
            f"{where}: has the form {quoted(form)} and lacks, or has too many, {quoted(wrong)}; write the golden again"
        )
    key, environment = parse_key(document["key"], where), parse_environment(document["environment"], where)
    made = Document(cast("Form", form), key, environment)
    if form == "external":
        return dataclasses.replace(made, sha256=_sha256(document["sha256"], where), size=_number(document["size"], "size", where))
    if form == "dump":
        folder = document["folder"]
        if not isinstance(folder, str) or not _DUMP_FOLDER.fullmatch(folder):
            raise GoldenError(f"{where}: has the folder {quoted(folder)}, which is no name of a dump beside it; write it again")
        passes, rows = (_number(document[name], name, where) for name in ("passes", "rows"))
        return dataclasses.replace(made, folder=folder, passes=passes, rows=rows)
    tensors = _tensors(document["tensors"], where)
    return dataclasses.replace(made, tensors=tensors, crc32=_crc32(document["crc32"], tensors, where))


def _tensors(table: object, where: str) -> tuple[StoredTensor, ...]:
    if not isinstance(table, dict) or not table:
        raise GoldenError(f"{where}: tensors is {quoted(table)}, no table of tensors; write the golden again")
    return tuple(_tensor(name, entry, where) for name, entry in table.items())


def _tensor(name: str, entry: object, where: str) -> StoredTensor:
    said: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    path, dtype, shape = said.get("path"), said.get("dtype"), said.get("shape")
    if (
        said.keys() != {"path", "dtype", "shape"}
        or not isinstance(path, str)
        or (path or "tensor") != name
        or not isinstance(dtype, str)
        or dtype not in DTYPES
        or not isinstance(shape, list)
        or not all(type(size) is int and size > 0 for size in shape)
    ):
        raise GoldenError(f"{where}: says {quoted(entry)} of {quoted(name)}, which is no tensor; write the golden again")
    return StoredTensor(path, dtype, tuple(shape))


def _crc32(table: object, tensors: Sequence[StoredTensor], where: str) -> dict[str, str]:
    if (
        not isinstance(table, dict)
        or table.keys() != {tensor.stored for tensor in tensors}
        or not all(isinstance(value, str) and re.fullmatch(r"[0-9a-f]{8}", value) for value in table.values())
    ):
        raise GoldenError(f"{where}: crc32 is {quoted(table)}, not a checksum for each tensor; write the golden again")
    return table


def _sha256(value: object, where: str) -> str:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise GoldenError(f"{where}: sha256 is {quoted(value)}, not 64 hexadecimal digits; write the golden again")
    return value


def _number(value: object, name: str, where: str) -> int:
    if type(value) is not int or value < 1:
        raise GoldenError(f"{where}: {name} is {quoted(value)}, no number of at least 1; write the golden again")
    return value

"""`manifest.json`: who wrote a dump, where, and how the model was split over the ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specalign.dump.errors import DumpError
from specalign.layer_ids.files import quoted, read_json_object, shown

SCHEMA: Final = "specalign.dump/1"
MANIFEST: Final = "manifest.json"

AXES: Final = ("tp", "pp", "cp", "dp", "ep", "etp")
"""Axes of a parallel layout: tensor (and sequence), pipeline, context, data, expert, and tensor within experts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What holds for every rank and pass of a dump.

    Attributes:
        producer: the program that wrote it: "pytest-specalign 0.1.0", "sglang tensor dump".
        versions: of packages that decide bits: torch, triton, sglang, …
        device: "cpu" or the name of the GPU.
        arch: "cpu", "sm90", "gfx942", …; "" if it is not known.
        model: name, num_layers, hidden_size, vocab_size, … as far as known.
        layout: size of each axis of `AXES` that is larger than 1.
        world: number of ranks that write; 0 if it is not known.
    """

    producer: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device: str = ""
    arch: str = ""
    model: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    layout: Mapping[str, int] = dataclasses.field(default_factory=dict)
    world: int = 1

    def to_json(self) -> str:
        """The document, with sorted keys: equal manifests are equal texts."""
        document = {"schema": SCHEMA, **dataclasses.asdict(self)}
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def parse_manifest(document: Mapping[str, Any], where: str) -> Manifest:
    """A manifest out of its JSON object.

    Raises:
        DumpError: another schema, or a value of the wrong kind.
    """
    schema = document.get("schema")
    if schema != SCHEMA:
        raise DumpError(
            f"{where}: has the schema {quoted(schema)}, and {SCHEMA} is read here; is it a dump, or of a newer version?"
        )
    _check(document, where)
    return Manifest(
        document["producer"],
        dict(document.get("versions", {})),
        document.get("device", ""),
        document.get("arch", ""),
        dict(document.get("model", {})),
        dict(document.get("layout", {})),
        document.get("world", 1),
    )


def read_manifest(folder: Path) -> Manifest:
    """`manifest.json` of a dump.

    Raises:
        DumpError: it is not there, or not one.
    """
    path = folder / MANIFEST
    return parse_manifest(read_json_object(path), shown(path))


def _check(document: Mapping[str, Any], where: str) -> None:
    for name in ("producer", "device", "arch"):
        if not isinstance(document.get(name, None if name == "producer" else ""), str):
            raise DumpError(f"{where}: {name} is {quoted(document.get(name))}, which is no text")
    for name, kinds in (("versions", (str,)), ("model", (str, int)), ("layout", (int,))):
        table = document.get(name, {})
        if not isinstance(table, dict) or not all(type(value) in kinds for value in table.values()):
            raise DumpError(f"{where}: {name} is {quoted(table)}, which is no table of {' or '.join(k.__name__ for k in kinds)}")
    layout, world = document.get("layout", {}), document.get("world", 1)
    for axis, size in layout.items():
        if axis not in AXES or size < 1:
            raise DumpError(f"{where}: the layout says {quoted(axis)}: {size}; axes are {', '.join(AXES)}, sizes at least 1")
    if type(world) is not int or world < 0:
        raise DumpError(f"{where}: world is {quoted(world)}, which is no number of ranks")

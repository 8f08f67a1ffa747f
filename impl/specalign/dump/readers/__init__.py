"""Dumps of other programs, read as ours: which format a folder holds is told by the names in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from specalign.dump.errors import DumpError
from specalign.dump.manifest import MANIFEST
from specalign.dump.passes import Dump
from specalign.dump.readers import megatron_dump, module_calls, plain, sglang_dumper, sglang_tensor_dump
from specalign.dump.readers.base import GivenRows, names_in, require_there
from specalign.layer_ids.files import shown


class Opener(Protocol):
    """Opens a folder or file of one format."""

    def __call__(self, path: Path, *, rows: GivenRows | None = None) -> Dump:
        """The dump; `rows` are those of each pass by number where the format does not tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """One format.

    Attributes:
        name: as `open_foreign(reader=…)` takes it.
        looks_for: what a folder of this format holds, for messages.
        detect: whether a path looks like it; looks at names only.
        open: opens it.
    """

    name: str
    looks_for: str
    detect: Callable[[Path], bool]
    open: Opener


READERS: Final = (
    Reader(
        "sglang-tensor-dump",
        "TP<t>_PP<p>_Rank<r>_pid<pid>/Pass<n>.pt or Chunk<n>.pt",
        sglang_tensor_dump.detect,
        sglang_tensor_dump.open_tensor_dump,
    ),
    Reader("sglang-dumper", "step=…___rank=…___dump_index=…___name=….pt", sglang_dumper.detect, sglang_dumper.open_dumper),
    Reader("sglang-module-calls", "<module>.call<k>.pt", module_calls.detect, module_calls.open_module_calls),
    Reader("slime-megatron", "rank<r>/<prefix>_Pass<n>.pt", megatron_dump.detect, megatron_dump.open_megatron_dump),
    Reader("safetensors", "*.safetensors with tokens and positions", plain.detect, plain.open_plain),
)
"""Every foreign format that is read."""


def open_foreign(path: Path | str, *, reader: str | None = None, rows: GivenRows | None = None) -> Dump:
    """A dump of another program, opened by the reader that fits.

    What the format cannot tell and what was left out stands in `notes` of the result.

    Args:
        reader: the name of one of `READERS`, if the path could be two things.
        rows: the rows of each pass by its number, for files that do not say which tokens they belong to.

    Raises:
        DumpError: no reader fits, or two; or what the reader finds wrong.
    """
    path = Path(path)
    require_there(path)
    fitting = [made for made in READERS if (made.detect(path) if reader is None else made.name == reader)]
    if len(fitting) == 1:
        return fitting[0].open(path, rows=rows)
    if reader is not None:
        raise DumpError(f"there is no reader {reader!r}; readers are {', '.join(made.name for made in READERS)}")
    if fitting:
        names = " and ".join(made.name for made in fitting)
        raise DumpError(f"{shown(path)}: fits {names}; give each format its own folder, or say which: reader='{fitting[0].name}'")
    looked = "; ".join(f"{made.looks_for} ({made.name})" for made in READERS)
    own = f" It has a {MANIFEST}: is it a dump of specalign's own?" if MANIFEST in names_in(path) else ""
    raise DumpError(f"{shown(path)}: no known dump.{own} Looked for: {looked}")

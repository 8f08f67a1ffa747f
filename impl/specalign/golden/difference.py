"""Two goldens of one result, or two folders of goldens: an old state and a new one, held against each other."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np

from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import BITS, Mode
from specalign.golden.catalog import Entry, entries, folders
from specalign.golden.check import check_tensors, ulp_text
from specalign.golden.dumps import open_golden_dump
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, read_golden
from specalign.layer_ids.files import shown

State = Literal["same", "different", "only old", "only new"]
_DIGITS: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenDifference:
    """What became of one golden.

    Attributes:
        name: the file, relative to both folders.
        state: "same" by the mode; versions may still differ.
        old, new: the first 16 hexadecimal digits of the SHA-256 of each file (of the file in the store, for one that lies there;
            of the document, for a dump); empty where it is not there.
        text: where and by how much they differ.
        max_ulp: the largest distance, where values were compared; 2**64 − 1 for a NaN.
    """

    name: str
    state: State
    old: str
    new: str
    text: str = ""
    max_ulp: int | None = None

    def format(self) -> str:
        """One line, and the details below it."""
        ulp = "" if self.max_ulp is None else f", at most {ulp_text(self.max_ulp)}"
        lines = [f"{self.state}: {self.name} ({self.old or 'none'} → {self.new or 'none'}{ulp})"]
        return "\n".join([*lines, *(f"    {line}" for line in self.text.splitlines())])


def diff_goldens(old: Path, new: Path, mode: Mode = BITS) -> tuple[GoldenDifference, ...]:
    """Two files, or every golden of two folders.

    Raises:
        GoldenError: one of each, a golden that cannot be read, or no golden on either side.
    """
    if old.is_dir() != new.is_dir():
        raise GoldenError(f"{shown(old)} and {shown(new)} are a folder and a file: give two of a kind")
    if not old.is_dir():
        return (_pair(new.name, old, new, mode),)
    sides = [{str(entry.path.relative_to(top)): entry for entry in _below(top)} for top in (old, new)]
    if not any(sides):
        raise GoldenError(f"{shown(old)} and {shown(new)}: hold no golden; give the folders that do")
    found = []
    for name in sorted(sides[0].keys() | sides[1].keys()):
        a, b = (side.get(name) for side in sides)
        if a is not None and b is not None:
            found.append(_pair(name, a.path, b.path, mode))
        elif a is not None:
            found.append(GoldenDifference(name, "only old", digest(read_golden(a.path)), ""))
        elif b is not None:
            found.append(GoldenDifference(name, "only new", "", digest(read_golden(b.path))))
    return tuple(found)


def digest(golden: Golden) -> str:
    """What tells one state of a golden from another, in 16 hexadecimal digits."""
    if golden.document.form == "external":
        return golden.document.sha256[:_DIGITS]
    whole = hashlib.sha256()
    with open(golden.path, "rb") as file:  # noqa: PTH123  # hashlib wants it open
        whole = hashlib.file_digest(file, "sha256")
    return whole.hexdigest()[:_DIGITS]


def _below(top: Path) -> list[Entry]:
    return [entry for folder in folders(top) for entry in entries(folder)]


def _pair(name: str, old: Path, new: Path, mode: Mode) -> GoldenDifference:
    a, b = read_golden(old), read_golden(new)
    digests = digest(a), digest(b)
    if a.document.key != b.document.key:
        raise GoldenError(
            f"{shown(old)} is of {a.document.key.text} and {shown(new)} of {b.document.key.text}: give two of one result"
        )
    forms = {a.document.form, b.document.form}
    if forms == {"external"}:
        same = a.document.sha256 == b.document.sha256
        return GoldenDifference(name, "same" if same else "different", *digests, "" if same else "both lie in the store")
    if forms == {"dump"}:
        report = compare_dumps(open_golden_dump(a), open_golden_dump(b), mode=mode)
        ulps = [key.max_ulp for key in report.keys if key.max_ulp is not None]
        text = "" if report.ok else report.format()
        return GoldenDifference(name, "same" if report.ok else "different", *digests, text, max(ulps, default=None))
    if forms == {"fingerprint"}:
        return _fingerprints(name, a, b, digests)
    if not forms <= {"values", "fingerprint"}:
        return GoldenDifference(name, "different", *digests, f"the form was {a.document.form} and is {b.document.form}")
    if b.document.form == "fingerprint":
        a, b = b, a
    leaves = [b.leaf(tensor) for tensor in b.document.tensors]
    found = check_tensors(a, leaves, a.document.environment, mode, "all")
    text = "\n".join([*found.problems, *(check.text for check in found.checks)])
    return GoldenDifference(name, "same" if found.ok else "different", *digests, text, found.max_ulp)


def _fingerprints(name: str, a: Golden, b: Golden, digests: tuple[str, str]) -> GoldenDifference:
    if a.document.tensors != b.document.tensors:
        return GoldenDifference(name, "different", *digests, "the tensors have other names, types or shapes")
    counts: Sequence[tuple[str, int]] = [
        (tensor.stored, int(np.any(a.data[tensor.stored] != b.data[tensor.stored], axis=1).sum()))
        for tensor in a.document.tensors
    ]
    lines = [f"{stored}: {rows} rows have other bits" for stored, rows in counts if rows]
    return GoldenDifference(name, "different" if lines else "same", *digests, "\n".join(lines))

"""What may be wrong with a dump on disk, and the report on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from specalign.layer_ids.files import shown

Severity = Literal["error", "warning"]

CODES: Final[Mapping[str, str]] = {
    "manifest": "manifest.json is missing or wrong",
    "empty": "no rank wrote any pass",
    "rank-missing": "a rank of the manifest's world wrote nothing",
    "rank-unknown": "a rank that the manifest's world does not have",
    "pass-missing": "a gap in the pass numbers, or passes that the end mark counts and that are gone",
    "pass-count": "ranks wrote different numbers of passes",
    "no-end": "a writer that did not come to its end: killed, failed, or still at work",
    "end": "an end mark that is damaged or counts other rows",
    "header": "a pass that is cut off, foreign, damaged in its header, or that contradicts itself",
    "misplaced": "a pass that stands under another rank or number than its own",
    "place": "coordinates outside of the layout, two ranks at one place, or a rank that moved",
    "stage": "a tensor of a layer that this rank did not run",
    "width": "boundaries of different widths",
    "rows": "rows that contradict themselves",
    "data": "data that does not have its checksum, or cannot be read",
    "fingerprint": "stored fingerprints that are not those of the tensor beside them",
    "nonfinite": "stored counts of non-finite elements that are not those of the tensor beside them, or that no row can have",
    "leftover": "a temporary file of a writer that was killed",
    "foreign": "a file that is no part of a dump",
}
"""Every code of a problem, and what it means."""


@dataclasses.dataclass(frozen=True, slots=True)
class DumpProblem:
    """One thing that is wrong with a dump.

    Attributes:
        code: one of `CODES`.
        file: what it is about.
        what: what is wrong, and by how much.
        next: what to do.
        severity: a "warning" does not make a dump bad.
    """

    code: str
    file: str
    what: str
    next: str
    severity: Severity = "error"

    def format(self) -> str:
        """Two lines."""
        return f"{self.severity} [{self.code}] {self.file}: {self.what}\n    next: {self.next}"


@dataclasses.dataclass(frozen=True, slots=True)
class ValidationReport:
    """What `validate` found.

    Attributes:
        folder: of the dump.
        problems: all of them, in the order in which they were met.
        ranks, passes, rows: how many of each are there and could be read.
        size: bytes of the pass files that were read.
    """

    folder: Path
    problems: tuple[DumpProblem, ...]
    ranks: int
    passes: int
    rows: int
    size: int

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(problem.severity != "error" for problem in self.problems)

    def format(self) -> str:
        """The problems, and one line that sums up."""
        errors = sum(problem.severity == "error" for problem in self.problems)
        verdict = "whole" if self.ok else f"not to be trusted, {errors} error{'s' if errors > 1 else ''}"
        read = f"ranks {self.ranks}, passes {self.passes}, rows {self.rows}, {self.size} bytes"
        return "\n".join([*(problem.format() for problem in self.problems), f"{shown(self.folder)}: {verdict} ({read})"])

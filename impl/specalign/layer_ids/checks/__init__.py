"""The checks of `specalign check`: one module a concern, each a generator of findings.

`FILE_CHECKS` look at the two files alone, `ENGINE_CHECKS` at one engine's reading of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from specalign.layer_ids.checks import ids, norms, pipeline, settings, support, weights, widths
from specalign.layer_ids.checks.case import EngineCase, FileCase
from specalign.layer_ids.findings import Finding

FILE_CHECKS: Final[tuple[Callable[[FileCase], Iterator[Finding]], ...]] = (
    ids.check_files,
    widths.check_files,
    norms.check_files,
    weights.check_files,
    settings.check_files,
)

ENGINE_CHECKS: Final[tuple[Callable[[EngineCase], Iterator[Finding]], ...]] = (
    support.check_engine,
    ids.check_engine,
    widths.check_engine,
    norms.check_engine,
    weights.check_engine,
    settings.check_engine,
    pipeline.check_engine,
)

__all__ = ["ENGINE_CHECKS", "FILE_CHECKS", "EngineCase", "FileCase"]

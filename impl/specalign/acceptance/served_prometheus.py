"""Samples out of Prometheus' text format, of the metrics that are asked for; everything else in a scrape is passed over.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text-based format 0.0.4).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.layer_ids.files import quoted

_NAME: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_REST: Final = re.compile(r'(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t]*')
_LABEL: Final = re.compile(r'[ \t]*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One line.

    Attributes:
        name: of the metric.
        labels: (name, value), sorted by name; values with their escapes.
        value: finite.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    @property
    def series(self) -> str:
        """Name and labels, as the format writes them."""
        inside = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.name}{{{inside}}}" if inside else self.name

    def label(self, name: str) -> str | None:
        """The value of a label."""
        return dict(self.labels).get(name)


def looks_like_prometheus(text: str) -> bool:
    """Whether a line is a comment of the format, or the first line that is not blank is a sample."""
    lines = [line for line in text.split("\n") if line.strip()]
    if any(line.startswith(("# HELP ", "# TYPE ")) for line in lines):
        return True
    name = _NAME.match(lines[0]) if lines else None
    return bool(name and _REST.fullmatch(lines[0].rstrip("\r"), name.end()) and _is_number(lines[0]))


def _is_number(line: str) -> bool:
    try:
        float(line.split()[-1])
    except ValueError:
        return False
    return True


def read_samples(text: str, names: Collection[str], where: str) -> tuple[Sample, ...]:
    """The samples of the metrics `names`.

    Raises:
        AcceptanceError: a line of such a metric is broken, has a value that is not finite, or comes twice.
    """
    found: dict[str, Sample] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")
        name = _NAME.match(line)
        if name is None or name[0] not in names:
            continue
        sample = _sample(name[0], _REST.fullmatch(line, name.end()))
        if sample is None:
            raise AcceptanceError(f"{where}, line {number}: no sample of Prometheus' text format: {quoted(line)}; take it again")
        if sample.series in found:
            raise AcceptanceError(
                f"{where}, line {number}: {quoted(sample.series)} comes twice; give one scrape, not several in a row"
            )
        found[sample.series] = sample
    return tuple(found.values())


def _sample(name: str, rest: re.Match[str] | None) -> Sample | None:
    if rest is None or "_" in rest[2]:
        return None
    labels, at, inside = [], 0, rest[1] or ""
    while at < len(inside):
        label = _LABEL.match(inside, at)
        if label is None:
            return None
        labels.append((label[1], label[2]))
        at = label.end()
    try:
        value = float(rest[2])
    except ValueError:
        return None
    return Sample(name, tuple(sorted(labels)), value) if math.isfinite(value) else None

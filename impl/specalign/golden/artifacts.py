"""Both sides of what differs, written where a person or a CI job can pick them up: bounded in bytes, and what was cut is said."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from specalign.compare.leaves import Leaf
from specalign.compare.report import format_json, write_html
from specalign.compare.result import CompareReport
from specalign.dump.convert import convert
from specalign.dump.files import Source, write_tensors
from specalign.dump.passes import Dump
from specalign.golden.check import GoldenReport
from specalign.golden.files import Golden
from specalign.layer_ids.files import InputError, shown
from specalign.layer_ids.rewrite import write_text_atomically

LIMIT: Final = 256 * 1024 * 1024
"""Most bytes of tensors that are written for one failure, unless another limit is given."""

EXPECTED, ACTUAL, REPORT = "expected", "actual", "report.txt"


def write_tensor_sides(folder: Path, report: GoldenReport, golden: Golden, leaves: Sequence[Leaf], limit: int = LIMIT) -> None:
    """Write `expected.safetensors`, `actual.safetensors` and `report.txt`, in the place of those that may be there.

    Only tensors that differ are written. One that does not fit any more is cut to rows around its first difference.

    Raises:
        InputError: the folder cannot be written to.
    """
    _clear(folder)
    budget, cut = _Budget(limit), []
    stored = {tensor.path: tensor for tensor in golden.document.tensors}
    by_path = {leaf.path: leaf for leaf in leaves}
    first_rows = {check.path: check.first_row for check in report.checks}
    extra = {path: None for path in [*by_path, *stored] if (path in by_path) != (path in stored)}
    sides: dict[str, list[Source]] = {EXPECTED: [], ACTUAL: []}
    for path, first_row in (first_rows | extra).items():
        pair = ((EXPECTED, _golden_leaf(golden, path)), (ACTUAL, by_path.get(path)))
        given = [(side, leaf) for side, leaf in pair if leaf is not None]
        share = budget.left // max(1, len(given))
        for side, leaf in given:
            part, said = budget.take(leaf, first_row or 0, share)
            sides[side] += [part] if part is not None else []
            cut += [f"{side}: {said}"] if said else []
    if golden.document.form == "fingerprint":
        cut.append("expected: the golden holds fingerprints and no values")
    for side, sources in sides.items():
        if sources:
            write_tensors(folder / f"{side}.safetensors", sources)
    _write_report(folder, report, cut, limit)


def write_dump_sides(folder: Path, report: GoldenReport, golden: Dump, dump: Dump, limit: int = LIMIT) -> None:
    """Write the comparison (`compare.json`, with jinja2 `compare.html`), and of both dumps the keys that differ.

    Raises:
        InputError: the folder cannot be written to.
    """
    _clear(folder)
    compare = report.compare
    if compare is None:
        _write_report(folder, report, [], limit)
        return
    write_text_atomically(format_json(compare), folder / "compare.json")
    cut = []
    if importlib.util.find_spec("jinja2") is not None:
        write_html(compare, folder / "compare.html")
    else:
        cut.append("compare.html: needs jinja2: pip install 'pytest-specalign[report]'")
    budget = _Budget(limit)
    for key in _differing(compare):
        sizes = [_bytes_of(side, key) for side in (golden, dump)]
        if budget.left < sum(sizes):
            cut.append(f"{key}: {sum(sizes)} bytes on both sides, {budget.left} were left")
            continue
        budget.left -= sum(sizes)
        budget.keys.append(key)
    for name, side in ((EXPECTED, golden), (ACTUAL, dump)):
        keys = [key for key in budget.keys if _bytes_of(side, key)]
        if keys:
            try:
                convert(side, folder / f"{name}.dump", keys=keys)
            except InputError as error:
                cut.append(f"{name}.dump: {error}")
    _write_report(folder, report, cut, limit)


class _Budget:
    def __init__(self, limit: int) -> None:
        self.left = limit
        self.keys: list[str] = []

    def take(self, leaf: Leaf, first_row: int, share: int) -> tuple[Source | None, str]:
        """The tensor, or so many of its rows, `[rows, width]`, as fit into `share` bytes; and what was cut."""
        name = leaf.path or "tensor"
        if leaf.bits.nbytes <= share:
            self.left -= leaf.bits.nbytes
            return Source(name, leaf.dtype.name, leaf.bits), ""
        rows = leaf.bits.reshape(-1, leaf.shape[-1] if leaf.shape else 1)
        count = share // rows[0].nbytes
        if not count:
            return None, f"{name} ({leaf.kind}) was left out: {share} bytes were left for it"
        begin = max(0, min(first_row - count // 2, len(rows) - count))
        part = rows[begin : begin + count]
        self.left -= part.nbytes
        return Source(name, leaf.dtype.name, part), f"{name} ({leaf.kind}): rows {begin} to {begin + count - 1} of {len(rows)}"


def _golden_leaf(golden: Golden, path: str) -> Leaf | None:
    found = next((tensor for tensor in golden.document.tensors if tensor.path == path), None)
    return None if found is None or golden.document.form != "values" else golden.leaf(found)


def _differing(compare: CompareReport) -> list[str]:
    return [key.key for key in compare.keys if not key.ok]


def _bytes_of(dump: Dump, key: str) -> int:
    total = 0
    for info in dump.infos():
        spec = info.tensors.get(key)
        if spec is not None:
            size = 16 * info.rows if spec.fingerprint else int(np.prod(spec.shape)) * _element(spec.dtype)
            total += size
    return total


def _element(dtype: str) -> int:
    from specalign.dump.dtypes import DTYPES

    return DTYPES[dtype].size


def _clear(folder: Path) -> None:
    """Make the folder, and take away what an earlier run wrote into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{shown(folder)}: cannot be made: {error.strerror or error}; give another --specalign-artifacts"
        ) from error
    for name in (f"{EXPECTED}.safetensors", f"{ACTUAL}.safetensors", REPORT, "compare.json", "compare.html"):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
    for name in (f"{EXPECTED}.dump", f"{ACTUAL}.dump"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _write_report(folder: Path, report: GoldenReport, cut: Sequence[str], limit: int) -> None:
    lines = [report.format(), "", f"not written (the limit is {limit} bytes):" if cut else "all that differs was written"]
    write_text_atomically("\n".join([*lines, *(f"  {line}" for line in cut)]) + "\n", folder / REPORT)

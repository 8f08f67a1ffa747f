"""Goldens that are dumps: a document, and the dump in a folder beside it, whole or as fingerprints of its rows."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import BITS, Mode
from specalign.compare.result import CompareReport
from specalign.dump.convert import convert
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.keys import MAY_BE_INFINITE
from specalign.dump.nonfinite import AllowNonfinite, any_illegal, illegal
from specalign.dump.opening import open_dump
from specalign.dump.passes import Dump
from specalign.dump.validate import validate
from specalign.golden.check import GoldenReport
from specalign.golden.document import Document
from specalign.golden.environment import Environment, named_environment
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, Place, write_document, writing_golden
from specalign.golden.keys import Key
from specalign.layer_ids.files import InputError, shown

SUFFIX: Final = ".dump"
_SHOWN: Final = 3

_DIGITS: Final = 12
_NAME: Final = re.compile(rf"[^.].*\.[a-z0-9_]{{1,24}}\.[0-9a-f]{{{_DIGITS}}}\.dump")


def open_result(dump: Dump | str | os.PathLike[str]) -> Dump:
    """A dump that a test hands over, opened. Raises `GoldenError` for one that cannot be read or holds no row."""
    try:
        opened = dump if isinstance(dump, Dump) else open_dump(dump)
        rows = sum(info.rows for info in opened.infos())
    except InputError as error:
        raise GoldenError(str(error)) from error
    if not rows:
        raise GoldenError(f"{shown(opened.path)}: holds no row, so a golden of it would prove nothing")
    return opened


def environment_of(dump: Dump) -> Environment | None:
    """Where a dump was recorded, out of its manifest; None where that says nothing."""
    arch = dump.manifest.arch
    if not arch:
        return None
    return Environment(named_environment(arch).device, arch, dict(dump.manifest.versions))


def write_dump(place: Place, key: Key, environment: Environment, dump: Dump, *, fingerprint: bool) -> Path:
    """Write a golden that is a dump, in the place of one that may be there.

    The new dump is written under a name of its own; then the document that names it takes its place; then the old one goes. A
    run that is killed leaves a golden that is the old one or the new one, and perhaps a folder that nothing names.

    Raises:
        GoldenError: a dump that cannot be read, or cannot be written.
    """
    name = f"{place.stem}.{place.arch}.{hashlib.sha256(os.urandom(16)).hexdigest()[:_DIGITS]}{SUFFIX}"
    target = place.folder / name
    infos = dump.infos()
    try:
        with writing_golden():
            place.folder.mkdir(parents=True, exist_ok=True)
            convert(dump, target, fingerprint=fingerprint)
            made = Document("dump", key, environment, folder=name, passes=len(infos), rows=sum(info.rows for info in infos))
            path = write_document(place, made)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    for folder in dump_folders(place):
        if folder != target:
            shutil.rmtree(folder, ignore_errors=True)
    return path


def dump_folders(place: Place) -> list[Path]:
    """Every folder of a dump that has the name of this golden: the one that its document names, and what killed runs left."""
    start = f"{place.stem}.{place.arch}."
    named = [p for p in sorted(place.folder.iterdir()) if p.name.startswith(start) and is_dump_folder(p.name) and p.is_dir()]
    return [path for path in named if len(path.name) == len(start) + _DIGITS + len(SUFFIX)]


def is_dump_folder(name: str) -> bool:
    """Whether a folder's name is one that `write_dump` gives."""
    return _NAME.fullmatch(name) is not None


def open_golden_dump(golden: Golden) -> Dump:
    """The dump of a golden.

    Raises:
        GoldenError: it is not there, cannot be read, or is not as large as the document says.
    """
    document, folder = golden.document, golden.path.parent / golden.document.folder
    try:
        dump = open_dump(folder)
        infos = dump.infos()
    except InputError as error:
        raise GoldenError(f"{shown(golden.path)}: its dump cannot be read: {error}") from error
    found = len(infos), sum(info.rows for info in infos)
    if found != (document.passes, document.rows):
        raise GoldenError(
            f"{shown(folder)}: has {found[0]} passes and {found[1]} rows, and the golden's document says {document.passes} and"
            f" {document.rows}: parts of it are missing or were changed; check it out again"
        )
    return dump


def check_dump(golden: Golden, dump: Dump, environment: Environment, mode: Mode = BITS) -> GoldenReport:
    """Hold a dump against a golden that is one: `compare_dumps` with the golden as side a.

    Raises:
        GoldenError: a dump that cannot be read, a golden that is damaged, or a tolerance for fingerprints.
    """
    if golden.document.form != "dump":
        raise GoldenError(f"{shown(golden.path)}: is a golden of the form {golden.document.form}, and the result is a dump")
    if (golden.document.environment.device, golden.document.environment.arch) != (environment.device, environment.arch):
        raise GoldenError(
            f"{shown(golden.path)}: was computed on {golden.document.environment.arch}, and this dump on {environment.arch}"
        )
    opened = open_golden_dump(golden)
    if not mode.is_bits:
        _refuse_damage(golden)  # within a tolerance a damaged golden could pass
    try:
        report = compare_dumps(opened, dump, mode=mode)
    except ValueError as error:  # an InputError, or a tolerance for fingerprints
        raise error if isinstance(error, GoldenError) else GoldenError(str(error)) from error
    if not report.ok:
        _refuse_damage(golden)  # a golden that is not what was written says nothing of the result
    compared = sum(key.rows_compared for key in report.keys)
    changes = golden.document.environment.changes(environment)
    problems = tuple(_ends(report))
    return GoldenReport(golden.document.key, golden.path, str(mode), compared, (), problems, changes, report)


def _refuse_damage(golden: Golden) -> None:
    """Read all of the golden's dump, and hold it against its checksums. Raises `GoldenError`."""
    found = validate(golden.path.parent / golden.document.folder).problems
    damaged = [f"{problem.file}: {problem.what}" for problem in found if problem.code in ("data", "header")]
    if damaged:
        raise GoldenError(
            f"{shown(golden.path)}: its dump was damaged after it was written: {'; '.join(damaged[:_SHOWN])}; check it out again"
        )


def _ends(report: CompareReport) -> Iterator[str]:
    """Last tokens of requests that one side lacks. Between two engines that is no gap: one of them never runs the last token.
    A golden and its result are of one program, and every row of either must be in both."""
    sides = (("golden has", "dump lacks", report.a.terminal), ("dump has", "golden lacks", report.b.terminal))
    for has, lacks, rows in sides:
        if rows:
            yield f"the {has} {rows} row{'s' if rows > 1 else ''} at the end of requests that the {lacks}"


def observed(dump: Dump) -> dict[str, NDArray[np.uint64]]:
    """The fingerprints of every row of a request under every key of every pass: what must not change from run to run."""
    found: dict[str, NDArray[np.uint64]] = {}
    for info in dump.infos():
        counted = dump.rows(info).counted  # what padding holds is nobody's
        for name, tensor in dump.load(info).items() if counted.any() else ():
            data = tensor.data if tensor.spec.fingerprint else fingerprint_rows(tensor.data)
            found[f"rank {info.rank} pass {info.number} {name}"] = data[counted]
    return found


def illegal_values(dump: Dump) -> tuple[str, ...]:
    """Non-finite values that must not be in a golden, one line for each key of a pass: −inf is legal in logits and log-probs."""
    found = []
    for info in dump.infos():
        counted = dump.rows(info).counted
        for name, tensor in dump.load(info).items():
            allow: AllowNonfinite = "inf" if name in MAY_BE_INFINITE else "no"
            if not tensor.spec.fingerprint and any_illegal(tensor.data, tensor.dtype, allow):
                rows = illegal(tensor.data, tensor.dtype, allow).reshape(len(tensor.data), -1).any(axis=1) & counted
                if rows.any():
                    count, first = int(rows.sum()), int(rows.argmax())
                    found.append(f"{info.where}: {name}: {count} rows hold non-finite values, row {first} first")
    return tuple(found)

"""What the layer-id setters of an SGLang wheel really do, found by running them: no SGLang, torch or GPU needed.

SGLang's target models take the ids of a draft head's config through `set_eagle3_layers_to_capture`,
`set_dflash_layers_to_capture` or `set_dspark_layers_to_capture`, and each family does something else with them.
`run_setters` executes those methods, and the properties and helpers they touch, from the wheel's own source on fakes
with `num_layers` layers, as on the one pipeline rank that owns every layer, in a subprocess with a timeout and a memory
limit. What a setter stores is an index in SGLang's own numbering; whether the model captures before or after that
block, and whether it reaches the last one, is no part of it.

Not guaranteed: the source is semi-trusted. It runs without imports, files or most builtins, which bounds an accident
and no attacker.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from specalign.integrations.sglang_setters_child import SETTER
from specalign.integrations.sglang_setters_plan import build_plan
from specalign.integrations.sglang_setters_source import Class, SetterRunError, Sources

__all__ = [
    "DEFAULT_IDS",
    "SetterCase",
    "SetterGap",
    "SetterReport",
    "SetterRunError",
    "SetterSource",
    "read_setters",
    "run_setters",
]

DEFAULT_IDS: tuple[tuple[int, ...] | None, ...] = (None, (24, 30, 36), (1, 17, 32), (2, 18, 33), (1, 17, 35))
KINDS = ("eagle3", "dflash", "dspark")
MODELS = "sglang/srt/models/"
MAX_MEMBER, MAX_TOTAL, MAX_LAYERS = 4 << 20, 64 << 20, 4096
MEMORY_LIMIT, MAX_TIMEOUT = 1 << 30, 86_400
_ZIP_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class SetterSource:
    """One setter that a class has, and where it is defined (`inherited`: in a base class)."""

    module: str
    class_name: str
    kind: str
    owner_module: str
    owner_class: str
    line: int

    @property
    def inherited(self) -> bool:
        return (self.module, self.class_name) != (self.owner_module, self.owner_class)


@dataclass(frozen=True)
class SetterCase:
    """One execution. `module` is the path under sglang/srt/models, dotted.

    `stored`: the ids the setter left as layers_to_capture (a set comes out sorted), None if it stored none or raised.
    `flagged`: the layers it marked with `_is_layer_to_capture`, None if it marks none or raised. `error`: the class of
    the exception. `delegated_to`: an inner setter whose class the sources do not tell; it received `delegated_ids`, and
    what it makes of them is unknown.
    """

    module: str
    class_name: str
    kind: str
    num_layers: int
    ids: tuple[int, ...] | None
    stored: tuple[int, ...] | None
    flagged: tuple[int, ...] | None
    error: str | None
    delegated_to: str | None = None
    delegated_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SetterGap:
    """A setter, for one list of ids (`every_ids`: for any), whose outcome the fakes cannot tell, and why."""

    module: str
    class_name: str
    kind: str
    ids: tuple[int, ...] | None
    reason: str
    every_ids: bool = False


@dataclass(frozen=True)
class SetterReport:
    wheel: str
    version: str
    cases: tuple[SetterCase, ...]
    unsupported: tuple[SetterGap, ...]

    @property
    def ok(self) -> bool:
        """Whether every setter that the wheel defines could be run."""
        return not self.unsupported

    def format(self) -> str:
        lines = [f"{self.wheel}: SGLang {self.version}, {len(self.cases)} cases, {len(self.unsupported)} unsupported"]
        for gap in self.unsupported:
            ids = "any ids" if gap.every_ids else gap.ids
            lines.append(f"  unsupported: {gap.module}.{gap.class_name} {gap.kind} {ids}: {gap.reason}")
        return "\n".join(lines)


class _Wheel:
    """The Python files of an SGLang wheel, read one by one within fixed size limits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._budget = MAX_TOTAL
        try:
            self._zip = zipfile.ZipFile(path)
        except _ZIP_ERRORS as error:
            raise SetterRunError(f"{path} is no readable wheel ({error}); give the .whl file as downloaded") from None
        self._names = frozenset(self._zip.namelist())

    def __enter__(self) -> _Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def models(self) -> list[str]:
        """Dotted names of the model modules."""
        found = sorted(name for name in self._names if name.startswith(MODELS) and name.endswith(".py"))
        if not found:
            raise SetterRunError(f"{self.path} holds no {MODELS}*.py; give an SGLang wheel")
        return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in found]

    def version(self) -> str:
        names = sorted(name for name in self._names if re.fullmatch(r"sglang-[^/]+\.dist-info/METADATA", name))
        version = HeaderParser().parsestr(self._text(names[0])).get("Version") if names else None
        if not version:
            raise SetterRunError(f"{self.path} has no sglang-*.dist-info/METADATA with a Version; give an SGLang wheel")
        return str(version).strip()

    def read(self, module: str) -> tuple[str, bool] | None:
        base = module.replace(".", "/")
        for name, is_package in ((f"{base}.py", False), (f"{base}/__init__.py", True)):
            if name in self._names:
                return self._text(name), is_package
        return None

    def _text(self, name: str) -> str:
        limit = min(MAX_MEMBER, self._budget)
        try:
            with self._zip.open(name) as file:
                data = file.read(limit + 1)  # the size in the header may lie
            if len(data) > limit:
                raise SetterRunError(f"{self.path}: {name} is over the limit of {limit} bytes; check the wheel")
            self._budget -= len(data)
            return data.decode("utf-8-sig")
        except (*_ZIP_ERRORS, UnicodeDecodeError) as error:
            raise SetterRunError(f"{self.path}: cannot read {name} ({error}); download the wheel again") from None


def _setters_of(sources: Sources, name: str) -> Iterator[tuple[SetterSource, Class]]:
    """The setters, own and inherited, of the classes in one model module."""
    module = sources.module(name)
    for cls in sources.classes_of(module) if module else ():
        for kind in KINDS:
            owner = next((one for one in cls.mro if f"set_{kind}_layers_to_capture" in one.own), None)
            if owner is not None:
                line = owner.own[f"set_{kind}_layers_to_capture"][-1].lineno
                source = (_short(name), cls.node.name, kind, _short(owner.module.name), owner.node.name, line)
                yield SetterSource(*source), cls


def _short(module: str) -> str:
    return module.removeprefix(MODELS.replace("/", "."))


def _unreached(sources: Sources, name: str) -> Iterator[SetterGap]:
    """Setters that are neither in the body of a module-level class nor inherited from one: none may go unnoticed."""
    module = sources.module(name)
    if module is None or not module.mentions_setter:
        return
    classes = sources.classes_of(module)
    twice = {cls.key for cls in classes if len(module.bindings[cls.node.name]) > 1}
    known = {id(node) for cls in classes if cls.key not in twice for nodes in cls.own.values() for node in nodes}
    for node in ast.walk(module.tree):
        found = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found = node.attr
        match = SETTER.fullmatch(found or "")
        if match and id(node) not in known:
            reason = f"line {getattr(node, 'lineno', 0)}: defined under a condition or outside a module-level class"
            yield SetterGap(_short(name), "", match[1], None, reason, every_ids=True)


def _scan(wheel: _Wheel, sources: Sources) -> tuple[list[tuple[SetterSource, Class]], list[SetterGap]]:
    setters: list[tuple[SetterSource, Class]] = []
    gaps: list[SetterGap] = []
    try:
        for name in wheel.models:
            setters += _setters_of(sources, name)
            gaps += _unreached(sources, name)
    except (RecursionError, TypeError) as error:
        raise SetterRunError(f"{wheel.path}: cannot follow the classes of {name} ({error}); check the wheel") from None
    if not setters and not gaps:
        raise SetterRunError(f"{wheel.path} has no set_*_layers_to_capture in {MODELS}; give a newer SGLang wheel")
    return setters, gaps


def read_setters(wheel: Path) -> tuple[SetterSource, ...]:
    """Every class under sglang/srt/models that has a layer-id setter, own or inherited; nothing is executed.

    Setters defined under a condition or outside a class are not listed here; `run_setters` reports them as unsupported.
    """
    with _Wheel(wheel) as files:
        return tuple(source for source, _ in _scan(files, Sources(files.read))[0])


def run_setters(
    wheel: Path,
    *,
    num_layers: int = 36,
    ids: Sequence[tuple[int, ...] | None] = DEFAULT_IDS,
    timeout: float = 60,
) -> SetterReport:
    """Execute every setter of the wheel with every list of ids. `timeout` in seconds is for all of them together.

    Raises `SetterRunError` if the wheel cannot be read or holds no setter, and if the subprocess crashes or times out.
    """
    _check_arguments(num_layers, ids, timeout)
    with _Wheel(wheel) as files:
        sources, version = Sources(files.read), files.version()
        setters, gaps = _scan(files, sources)
        plan = build_plan(sources, [cls for _, cls in setters], [f"set_{kind}_layers_to_capture" for kind in KINDS])
    runs = [(source, cls, one) for source, cls in setters for one in ids]
    jobs = [{"key": cls.key, "setter": f"set_{source.kind}_layers_to_capture", "ids": one} for source, cls, one in runs]
    results = _run_child(plan | {"jobs": jobs, "num_layers": num_layers}, timeout, wheel)
    if len(results) != len(jobs):
        raise SetterRunError(f"{wheel}: {len(results)} answers to {len(jobs)} runs; report this as a bug")
    cases: list[SetterCase] = []
    for (source, _, one), result in zip(runs, results, strict=True):
        where = (source.module, source.class_name, source.kind)
        if "gap" in result:
            gaps.append(SetterGap(*where, one, result["gap"]))
        else:
            stored, flagged, handed = (_ids(result[key]) for key in ("stored", "flagged", "ids"))
            cases.append(SetterCase(*where, num_layers, one, stored, flagged, result["error"], result["to"], handed))
    return SetterReport(Path(wheel).name, version, tuple(cases), tuple(gaps))


def _ids(found: list[int] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(found)


def _check_arguments(num_layers: int, ids: Sequence[tuple[int, ...] | None], timeout: float) -> None:
    if not 1 <= num_layers <= MAX_LAYERS:
        raise SetterRunError(f"num_layers is {num_layers}; give 1 to {MAX_LAYERS}")
    if not ids or any(one is not None and not all(type(item) is int for item in one) for one in ids):
        raise SetterRunError(f"ids is {ids!r}; give at least one tuple of whole numbers or None")
    if not 0 < timeout <= MAX_TIMEOUT:
        raise SetterRunError(f"timeout is {timeout}; give seconds above 0, at most {MAX_TIMEOUT}")


def _run_child(plan: dict[str, Any], timeout: float, wheel: Path) -> list[dict[str, Any]]:
    child = Path(__file__).with_name("sglang_setters_child.py")
    command = [sys.executable, "-I", "-W", "ignore", str(child)]
    limits = {"memory": MEMORY_LIMIT, "seconds": int(timeout) + 2}
    try:
        done = subprocess.run(command, input=json.dumps(plan | limits), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as stop:
        progress = stop.stderr.decode(errors="replace") if isinstance(stop.stderr, bytes) else stop.stderr
        problem = f"not done after {timeout} s, at {_last_line(progress)}; look for a loop there, or raise timeout"
        raise SetterRunError(f"{wheel}: {problem}") from None
    except OSError as error:
        raise SetterRunError(f"{wheel}: cannot start {sys.executable} ({error}); check that Python") from None
    if done.returncode:
        problem = f"the subprocess ended with status {done.returncode}: {_last_line(done.stderr)}"
        raise SetterRunError(f"{wheel}: {problem}; look at that setter, or at the memory limit")
    try:
        return list(json.loads(done.stdout))
    except ValueError:
        raise SetterRunError(f"{wheel}: the subprocess answered no JSON; report this as a bug") from None


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1][:300] if lines else "its start"

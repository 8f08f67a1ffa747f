"""Runs SGLang's layer-id setters on fakes; started as `python -I sglang_setters_child.py`, never imported by SGLang.

Standard input holds a plan (see `sglang_setters_plan.build_plan`): the reduced source of the setters and of what they
touch, and how their classes relate. Standard output gets one JSON list of results. The setters see real lists and
numbers for layers and ids, and `Fake` objects for everything else. A fake answers nothing that it does not know: a
yes-or-no question about an unknown is tried both ways, any other use ends the run with a `Gap`. So a result is what the
source does, and what depends on the fake is reported as a gap.

Not guaranteed: a sandbox for hostile code. Limits on builtins, memory, CPU time and files bound accidents.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

SETTER = re.compile(r"set_(eagle3|dflash|dspark)_layers_to_capture")
STORED = re.compile(r".*layers_to_capture")
BLOCKED_ATTRIBUTE = re.compile(r"__.*|_fake.*|(gi|cr|ag)_frame|f_(back|globals|builtins|locals)|tb_(frame|next)|mro")
FLAG = "_is_layer_to_capture"
INNER_MODELS = frozenset({"model", "language_model", "text_model", "llm"})
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_LOGGERS = ("print_info_once", "print_warning_once", "log_info_on_rank0")
STAND_INS = frozenset({"logger", "math", "get_parallel", "get_pp_group", *_LOGGERS})
_PLAIN = """abs all any bool callable dict divmod enumerate filter float frozenset int len list map max min next range
repr reversed round set slice sorted str sum super tuple zip property staticmethod classmethod isinstance hasattr
getattr setattr print NotImplemented"""
_ERRORS = (name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception))
ALLOWED_BUILTINS = frozenset([*_PLAIN.split(), *_ERRORS])
MAX_RUNS, MAX_STORED, MAX_ID = 64, 4096, 2**31


class Gap(BaseException):
    """The fake cannot answer. Not an `Exception`, so that a setter's own handlers let it through."""


@dataclass
class Run:
    """One execution of one setter: `script` says how to answer its first questions, `log` what was asked."""

    num_layers: int
    script: list[int]
    log: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    fakes: list[Fake] = field(default_factory=list)
    delegated: list[tuple[str, Any]] = field(default_factory=list)
    classes: dict[str, tuple[type[Fake], dict[str, Any]]] = field(default_factory=dict)

    def ask(self, question: str, options: tuple[str, ...] = ("false", "true")) -> int:
        if question not in self.answers:
            position = len(self.log)
            answer = self.script[position] if position < len(self.script) else 0
            self.log.append((question, answer, options))
            self.answers[question] = answer
        return self.answers[question]

    def gap(self, reason: str) -> NoReturn:
        # Kept as well as raised: a bare `except:` in the setter must not turn a gap into a result.
        self.gaps.append(reason)
        raise Gap(reason)


@dataclass
class State:
    """What one fake is: its path from `self`, the facts of its class (None if unknown), and what it has handed out."""

    run: Run
    path: str
    facts: dict[str, Any] | None = None
    present: bool = False
    layer: int | None = None
    children: dict[str, Any] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)


class Fake:
    """Stands for an object that the setter reaches. Classes from the wheel derive from it."""

    _fake: State

    def __getattr__(self, name: str) -> Any:
        state = self._fake
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(type(self), name):
            state.run.gap(f"the property {state.path}.{name} failed on a fake")
        if name not in state.children:
            state.children[name] = _attribute(state, name)
        return state.children[name]

    def __bool__(self) -> bool:
        return self._fake.present or self._fake.run.ask(self._fake.path) == 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._fake.run.gap(f"calls {self._fake.path}(), which is not in the sources read")

    def __repr__(self) -> str:
        return f"<{self._fake.path}>"


def _refusal(operation: str) -> Callable[..., NoReturn]:
    return lambda self, *_: self._fake.run.gap(f"needs the value of {self._fake.path} ({operation})")


_ARITHMETIC = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul divmod"
_OTHER = "lt le gt ge eq ne hash len iter next getitem setitem delitem contains index int float neg abs enter exit"
for _name in [*_OTHER.split(), *(side + word for word in _ARITHMETIC.split() for side in ("", "r"))]:
    setattr(Fake, f"__{_name}__", _refusal(_name))


def make(cls: type[Fake], state: State) -> Fake:
    """A fake of class `cls`, without running any `__init__`."""
    fake = object.__new__(cls)
    object.__setattr__(fake, "_fake", state)
    state.run.fakes.append(fake)
    return fake


def _config(run: Run, path: str) -> Fake:
    return make(Fake, State(run, path, present=True, children=dict.fromkeys(LAYER_COUNTS, run.num_layers)))


def _pipeline(run: Run, path: str) -> Fake:
    known = {"is_first_rank": True, "is_last_rank": True, "world_size": 1, "rank_in_group": 0}
    return make(Fake, State(run, path, present=True, children=known))


def _layers(run: Run, path: str) -> list[Fake]:
    # One path for all layers: a question about an unknown attribute of a layer has one answer for every layer.
    states = (State(run, f"{path}[*]", None, True, i, {"layer_id": i, "layer_idx": i}) for i in range(run.num_layers))
    return [make(Fake, state) for state in states]


def _attribute(state: State, name: str) -> Any:
    """What `fake.name` is when the setter has not assigned it and the class does not define it."""
    run, path, facts = state.run, f"{state.path}.{name}", state.facts or {}
    if SETTER.fullmatch(name):
        return _inner_setter(state, name)
    if name in facts.get("initial", {}):
        state.initial[name] = ast.literal_eval(facts["initial"][name])
        return ast.literal_eval(facts["initial"][name])
    if name == "config" or name.endswith("_config"):
        return _config(run, path)
    if name == "pp_group":
        return _pipeline(run, path)
    if name == "layers":
        return _layers(run, path)
    if name in (bounds := {"start_layer": 0, "end_layer": run.num_layers}):
        return bounds[name]
    return _member(run, path, facts.get("attrs", {}).get(name, [None]), name in INNER_MODELS)


def _member(run: Run, path: str, keys: list[str | None], present: bool) -> Fake:
    key = keys[run.ask(f"the class of {path}", tuple(key or "unknown" for key in keys))] if len(keys) > 1 else keys[0]
    cls, facts = run.classes[key] if key is not None else (Fake, None)
    return make(cls, State(run, path, facts, present or key is not None))


def _inner_setter(state: State, name: str) -> Any:
    if state.facts is not None and state.facts["closed"]:
        raise AttributeError(f"{state.facts['key']} has no attribute {name}")

    def received(layer_ids: Any) -> None:
        ids = None if layer_ids is None else _numbers(state.run, layer_ids)
        state.run.delegated.append((f"{state.path}.{name}", ids))

    return received


def _has(fake: Fake, name: str) -> bool:
    state = fake._fake
    if name in fake.__dict__ or name in state.children or hasattr(type(fake), name):
        return True
    if SETTER.fullmatch(name):
        return state.facts is None or not state.facts["closed"]
    if state.facts and (name in state.facts["attrs"] or name in state.facts["assigned"]):
        return True
    return state.run.ask(f"{state.path} has {name}") == 1


def _namespace(run: Run) -> dict[str, Any]:
    """The restricted builtins and the stand-ins that every module of the wheel sees."""

    def checked(name: str) -> str:
        return run.gap(f"touches the attribute {name}") if BLOCKED_ATTRIBUTE.fullmatch(name) else name

    def fake_hasattr(obj: Any, name: str) -> bool:
        return _has(obj, checked(name)) if isinstance(obj, Fake) else hasattr(obj, checked(name))

    def fake_getattr(obj: Any, name: str, *default: Any) -> Any:
        return default[0] if default and not fake_hasattr(obj, name) else getattr(obj, checked(name))

    def fake_isinstance(obj: Any, kinds: Any) -> bool:
        parts = kinds if isinstance(kinds, tuple) else (kinds,)
        if isinstance(obj, Fake) or any(isinstance(part, Fake) for part in parts):
            run.gap(f"asks whether {obj!r} is a {kinds!r}")
        return isinstance(obj, kinds)

    def is_none(obj: Any) -> bool:
        if not isinstance(obj, Fake) or obj._fake.present:
            return obj is None
        return run.ask(f"{obj._fake.path} is None") == 1

    safe = {name: getattr(builtins, name) for name in ALLOWED_BUILTINS}
    safe |= {"hasattr": fake_hasattr, "getattr": fake_getattr, "isinstance": fake_isinstance, "print": _ignore}
    safe["setattr"] = lambda obj, name, value: setattr(obj, checked(name), value)
    safe["__build_class__"] = builtins.__build_class__
    stand_ins: dict[str, Any] = dict.fromkeys(_LOGGERS, _ignore)
    stand_ins |= {"logger": _Logger(), "math": math, "get_pp_group": lambda: _pipeline(run, "get_pp_group()")}
    stand_ins["get_parallel"] = lambda: make(Fake, State(run, "get_parallel()"))
    stand_ins |= {"_fake_gap": run.gap, "_fake_is_none": is_none, "__builtins__": safe, "__name__": "wheel"}
    return stand_ins | {"_fake_default": lambda text: make(Fake, State(run, text))}


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stands for print and for the loggers."""


class _Logger:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


def build(plan: dict[str, Any], run: Run) -> None:
    """Execute the reduced sources of all modules and classes into `run.classes`, afresh for each run."""
    spaces = {name: _namespace(run) for name in plan["modules"]}
    for name, module in plan["modules"].items():
        spaces[name].update({text: make(Fake, State(run, text)) for text in module["unknown"]})
        exec(module["code"], spaces[name])  # noqa: S102
    for facts in plan["classes"]:
        space = spaces[facts["module"]]
        space["_fake_bases"] = tuple(run.classes[key][0] for key in facts["bases"]) or (Fake,)
        exec(facts["code"], space)  # noqa: S102
        run.classes[facts["key"]] = (space.pop("_fake_class"), facts)
    for name, module in plan["modules"].items():
        for local_name, (source, remote) in module["links"].items():
            spaces[name][local_name] = spaces[source][remote]


def _numbers(run: Run, value: Any) -> list[int]:
    """The ids as a list of plain ints; sets come out sorted. Anything else is a gap."""
    if not isinstance(value, (list, tuple, set, frozenset)) or len(value) > MAX_STORED:
        run.gap(f"stores {type(value).__name__} where a list of ids was expected")
    if not all(type(item) is int and abs(item) < MAX_ID for item in value):
        run.gap("stores something that is no layer id")
    return sorted(value) if isinstance(value, (set, frozenset)) else list(value)


def _stored(run: Run) -> Iterator[list[int]]:
    for fake in run.fakes:
        for name, value in fake.__dict__.items():
            if STORED.fullmatch(name) and value is not None:
                yield _numbers(run, value)
        for name, before in fake._fake.initial.items():
            if name not in fake.__dict__ and fake._fake.children[name] != before:
                yield _numbers(run, fake._fake.children[name])


def _outcome(run: Run) -> dict[str, Any]:
    lists = list(_stored(run))
    if any(one != lists[0] for one in lists):
        run.gap(f"stores different lists in different places: {lists}")
    if len(run.delegated) > 1:
        run.gap(f"hands ids to more than one inner setter: {run.delegated}")
    touched = [fake for fake in run.fakes if fake._fake.layer is not None and FLAG in fake.__dict__]
    flagged = sorted({fake._fake.layer or 0 for fake in touched if getattr(fake, FLAG)}) if touched else None
    target, ids = run.delegated[0] if run.delegated else (None, None)
    return {"stored": lists[0] if lists else None, "flagged": flagged, "error": None, "to": target, "ids": ids}


def execute(plan: dict[str, Any], job: dict[str, Any], run: Run) -> dict[str, Any]:
    """Run one setter once. An exception of the setter is an outcome; a gap, or too deep a recursion, is not."""
    build(plan, run)
    cls, facts = run.classes[job["key"]]
    model = make(cls, State(run, "self", facts, present=True))
    try:
        getattr(model, job["setter"])(None if job["ids"] is None else list(job["ids"]))
        result = _outcome(run)
    except (Gap, RecursionError, MemoryError) as stop:
        return {"gap": str(stop) or type(stop).__name__}
    except Exception as error:
        # What `super()` lacks may stand in a base class outside the wheel; only a setter is known not to.
        outside = isinstance(error, AttributeError) and isinstance(error.obj, super)
        if outside and not (facts["closed"] and SETTER.fullmatch(str(getattr(error, "name", "")))):
            return {"gap": f"uses a base class outside the sources read ({error})"}
        result = {"stored": None, "flagged": None, "error": type(error).__name__, "to": None, "ids": None}
    return {"gap": run.gaps[0]} if run.gaps else result


def explore(plan: dict[str, Any], job: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Run one setter for every way of answering the open questions; one outcome for all of them, or a gap."""
    script: list[int] = []
    first: dict[str, Any] | None = None
    for _ in range(MAX_RUNS):
        run = Run(num_layers, script)
        result = execute(plan, job, run)
        if "gap" in result:
            return result
        first = first or result
        if result != first:
            asked = ", ".join(f"{question} = {options[answer]}" for question, answer, options in run.log)
            return {"gap": f"depends on what no fake can know: with {asked} it {_say(result)}, else it {_say(first)}"}
        open_ends = [i for i, (_, answer, options) in enumerate(run.log) if answer + 1 < len(options)]
        if not open_ends:
            return first
        last = open_ends[-1]
        script = [answer for _, answer, _ in run.log[:last]] + [run.log[last][1] + 1]
    return {"gap": f"asks about too many unknown attributes ({MAX_RUNS} runs were not enough)"}


def _say(result: dict[str, Any]) -> str:
    said = {"raises": "error", "stores": "stored", "flags": "flagged", "hands on": "ids"}
    return ", ".join(f"{verb} {result[key]}" for verb, key in said.items() if result[key] is not None) or "does nothing"


def limit_resources(memory: int, seconds: int) -> None:
    """Bound memory and CPU time and forbid new files, where the platform can (macOS has no limit on memory)."""
    resource = importlib.import_module("resource")
    limits = {"RLIMIT_AS": memory, "RLIMIT_CPU": seconds, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 3}
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def main() -> None:
    plan = json.load(sys.stdin)
    with contextlib.suppress(ImportError):  # Windows: the parent's timeout is the only bound
        limit_resources(plan["memory"], plan["seconds"])
    for name, part in [*plan["modules"].items(), *((facts["key"], facts) for facts in plan["classes"])]:
        part["code"] = compile(part["source"], name, "exec")
    results = []
    for job in plan["jobs"]:
        sys.stderr.write(f"{job['key']}.{job['setter']}({job['ids']})\n")
        sys.stderr.flush()
        results.append(explore(plan, job, plan["num_layers"]))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

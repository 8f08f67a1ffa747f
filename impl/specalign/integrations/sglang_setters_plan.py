"""Cuts the sources around SGLang's layer-id setters down to what has to be executed.

A plan holds, per module, the helper functions and literal constants, and per class the setters, the properties and
methods that they mention, and the classes of the attributes that they reach. Annotations and docstrings go. A function
that does what the runner must not do (import, open a file, touch `__class__`) keeps its place but only reports that it
was called.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterable, Iterator
from typing import Any

from specalign.integrations.sglang_setters_child import (
    ALLOWED_BUILTINS,
    BLOCKED_ATTRIBUTE,
    SETTER,
    STAND_INS,
    STORED,
)
from specalign.integrations.sglang_setters_members import Members
from specalign.integrations.sglang_setters_source import Class, Function, Module, Sources, Target

_BUILTINS = frozenset(dir(builtins))
_KEPT_DECORATORS = frozenset({"property", "staticmethod", "classmethod"})
# They change how autograd or a cache treats the call, not what it returns.
_DROPPED_DECORATORS = frozenset({"torch.no_grad()", "torch.no_grad", "torch.inference_mode()"})
_CACHED = frozenset({"cached_property", "functools.cached_property"})


class _Plan:
    """Grows from the classes with setters until nothing new is mentioned."""

    def __init__(self, sources: Sources, classes: Iterable[Class]) -> None:
        self._sources = sources
        self._members = Members(sources)
        self._names: set[str] = set()
        self._seen: set[int] = set()
        self._functions: dict[str, dict[str, Function]] = {}
        self._unknown: dict[str, set[str]] = {}
        self._links: dict[str, dict[str, tuple[str, str]]] = {}
        self._constants: dict[str, dict[str, str]] = {}
        self.classes: dict[str, Class] = {}
        for cls in classes:
            self._add_class(cls)

    def _add_class(self, cls: Class) -> None:
        for one in reversed(cls.mro):  # bases first: the child creates the classes in this order
            self.classes.setdefault(one.key, one)

    def grow(self, setters: Iterable[str]) -> None:
        self._names.update(setters)
        before = (-1, -1, -1)
        while before != (before := (len(self._names), len(self.classes), len(self._seen))):
            for cls in list(self.classes.values()):
                self._grow_class(cls)

    def _grow_class(self, cls: Class) -> None:
        for name in self._names & cls.own.keys():
            for node in cls.own[name]:
                self._mention(node, cls.module)
        for name in sorted(self._names):
            for found in self._members.classes_of(cls, name):
                if found is not None:
                    self._add_class(found)

    def _mention(self, node: ast.stmt, module: Module) -> None:
        """Note the attributes and the global names that a kept statement uses."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute):
                self._names.add(inner.attr)
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier():
                self._names.add(inner.value)  # hasattr(x, "name")
        if isinstance(node, ast.FunctionDef):
            for name in _free_names(node):
                self._need(name, module)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            self._names.add(node.value.id)  # one setter as an alias of another

    def _need(self, name: str, module: Module) -> None:
        if name in STAND_INS or not (module.bindings.get(name) or module.has_star_import):
            return
        target = self._sources.lookup(module, name)
        if target is not None and isinstance(target.node, ast.FunctionDef):
            self._functions.setdefault(target.module.name, {})[target.name] = target.node
            self._link(name, module, target)
            self._mention(target.node, target.module)
        elif target is not None and (text := _literal(target.node)) is not None:
            self._constants.setdefault(target.module.name, {})[target.name] = text
            self._link(name, module, target)
        else:
            self._unknown.setdefault(module.name, set()).add(name)

    def _link(self, name: str, module: Module, target: Target) -> None:
        if (module.name, name) != (target.module.name, target.name):
            self._links.setdefault(module.name, {})[name] = (target.module.name, target.name)

    def modules(self) -> dict[str, Any]:
        names = {cls.module.name for cls in self.classes.values()}
        names |= self._functions.keys() | self._constants.keys() | self._links.keys()
        return {name: self._module(name) for name in sorted(names)}

    def _module(self, name: str) -> dict[str, Any]:
        constants = [f"{local} = {text}" for local, text in self._constants.get(name, {}).items()]
        module = self._sources.module(name)
        functions = [ast.unparse(_reduced(node, module)) for node in self._functions.get(name, {}).values()]
        unknown = sorted(self._unknown.get(name, ()))
        return {"source": "\n".join([*constants, *functions]), "unknown": unknown, "links": self._links.get(name, {})}

    def as_class(self, cls: Class) -> dict[str, Any]:
        attributes = {name: self._members.classes_of(cls, name) for name in sorted(self._names)}
        keys = {name: [c and c.key for c in found] for name, found in attributes.items() if found}
        assigned = sorted(self._names & {name for one in cls.mro for name in one.assigned})
        facts = {"attrs": keys, "assigned": assigned, "initial": _initial(cls), "closed": cls.closed}
        bases = [base.key for base in cls.bases]
        return facts | {"key": cls.key, "module": cls.module.name, "bases": bases, "source": self._body(cls)}

    def _body(self, cls: Class) -> str:
        kept = [_kept(name, node, cls) for name in cls.own if name in self._names for node in cls.own[name]]
        body = [node for node in kept if node is not None] or [ast.Pass()]
        bases: list[ast.expr] = [ast.Starred(ast.Name("_fake_bases", ast.Load()), ast.Load())]
        return ast.unparse(ast.fix_missing_locations(ast.ClassDef("_fake_class", bases, [], body, [])))


def _kept(name: str, node: ast.stmt, cls: Class) -> ast.stmt | None:
    """What a reduced class keeps of one statement of its body."""
    if isinstance(node, ast.FunctionDef):
        return _reduced(node, cls.module)
    if isinstance(node, ast.Assign) and _is_alias(node, cls):
        return node
    if isinstance(node, ast.Assign) and _is_literal(node.value) and not STORED.fullmatch(name):
        return node
    if not SETTER.fullmatch(name):
        return None
    # Dropped, it would look as if the class had no such setter.
    return ast.parse(f"def {name}(*args): _fake_gap('{cls.key} defines {name} by something other than def')").body[0]


def build_plan(sources: Sources, classes: Iterable[Class], setters: Iterable[str]) -> dict[str, Any]:
    """The modules and classes (bases first) that the setters of `classes` need; plain JSON data."""
    plan = _Plan(sources, classes)
    plan.grow(setters)
    return {"modules": plan.modules(), "classes": [plan.as_class(cls) for cls in plan.classes.values()]}


def _literal(node: ast.stmt) -> str | None:
    """The text of an assignment's value, if it is a plain literal."""
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return None if value is None or not _is_literal(value) else ast.unparse(value)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_alias(node: ast.Assign, cls: Class) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in cls.methods


def _initial(cls: Class) -> dict[str, str]:
    """What the class or its `__init__` sets the list of captured layers to, before any setter runs."""
    found: dict[str, str] = {}
    for one in reversed(cls.mro):
        for name, nodes in one.own.items():
            if STORED.fullmatch(name) and not SETTER.fullmatch(name) and (text := _literal(nodes[-1])) is not None:
                found[name] = text
        for name, values in one.assigned.items():
            literals = [ast.unparse(v) for method, v in values if method.name == "__init__" and _is_literal(v)]
            if STORED.fullmatch(name) and literals:
                found[name] = literals[-1]
    return found


def _reduced(function: Function, module: Module | None) -> Function:
    """The function's source without annotations; only a report of the reason, if it does what it must not."""
    node = _Stripper().visit(copy.deepcopy(function))
    if not isinstance(node, ast.FunctionDef):
        raise TypeError(f"{function.name} is no function after reduction")
    reason = _forbidden(function, module)
    decorators = [ast.unparse(d) for d in node.decorator_list]
    known = _KEPT_DECORATORS | _DROPPED_DECORATORS | _CACHED
    strange = [d for d in decorators if d not in known and not d.endswith(".setter")]
    reason = reason or (f"is decorated by {strange[0]}" if strange else None)
    kept = ["property" if d in _CACHED else d for d in decorators if d not in [*_DROPPED_DECORATORS, *strange]]
    node.decorator_list = [ast.Name(d) if d in _KEPT_DECORATORS else ast.parse(d, mode="eval").body for d in kept]
    if reason is not None:
        node.body = ast.parse(f"_fake_gap({f'{function.name} {reason}'!r})").body
    return ast.fix_missing_locations(node)


class _Stripper(ast.NodeTransformer):
    """Drops annotations and docstrings, hides defaults that are no literals, lets a fake answer `x is None`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [_plain_default(d) for d in node.defaults]
        node.kw_defaults = [d and _plain_default(d) for d in node.kw_defaults]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value is not None else ast.Pass()

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        other = node.comparators[0]
        is_none = len(node.ops) == 1 and isinstance(other, ast.Constant) and other.value is None
        if not is_none or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        call = ast.Call(ast.Name("_fake_is_none", ast.Load()), [node.left], [])
        return ast.UnaryOp(ast.Not(), call) if isinstance(node.ops[0], ast.IsNot) else call


def _plain_default(node: ast.expr) -> ast.expr:
    if _is_literal(node):
        return node
    return ast.Call(ast.Name("_fake_default", ast.Load()), [ast.Constant(ast.unparse(node))], [])


def _free_names(function: Function) -> set[str]:
    """Names that the function reads and does not bind anywhere in its body."""
    stripped = _Stripper().visit(copy.deepcopy(function))
    names = [n for n in ast.walk(stripped) if isinstance(n, ast.Name)]
    local = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    local |= {n.arg for n in ast.walk(stripped) if isinstance(n, ast.arg)}
    local |= {n.name for n in ast.walk(stripped) if isinstance(n, (ast.FunctionDef, ast.ExceptHandler)) and n.name}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)} - local - {"_fake_is_none", "_fake_default"}


def _forbidden(function: Function, module: Module | None) -> str | None:
    bound = module.bindings.keys() if module else set[str]()
    for name in sorted(_free_names(function)):
        if name.startswith("__") or (name in _BUILTINS and name not in ALLOWED_BUILTINS and name not in bound):
            return f"uses the builtin {name}"
    return next((reason for node in ast.walk(function) for reason in _problems(node)), None)


def _problems(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield f"imports ({ast.unparse(node)})"
    elif isinstance(node, ast.Attribute) and BLOCKED_ATTRIBUTE.fullmatch(node.attr):
        yield f"touches the attribute {node.attr}"
    elif isinstance(node, ast.Name) and node.id.startswith("_fake"):
        yield f"uses the name {node.id}"
    elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom, ast.ClassDef, ast.Global)):
        yield f"holds a {type(node).__name__} statement"
    elif isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
        yield from (f"catches {ast.unparse(k)}" for k in kinds if not _is_builtin_error(k))


def _is_builtin_error(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ALLOWED_BUILTINS

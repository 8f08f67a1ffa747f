"""Which class `self.model` has, read from `self.model = SomeClass(...)` and the ways in which SGLang writes that.

A wrapper's setter hands ids to an inner model's setter, so the inner class decides what becomes of them. It may be
named outright, held by a variable, a class attribute or a parameter that a derived class fills in, or made by a method.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from specalign.integrations.sglang_setters_source import (
    Class,
    Function,
    Sources,
    Target,
    assignments,
    is_name,
    self_name,
)

# Modules of another pipeline stage: the fake is the one rank that owns every layer.
PLACEHOLDERS = frozenset({"PPMissingLayer"})
_DEPTH = 12


@dataclass(frozen=True)
class _Scope:
    """Where an expression stands: the class asked about, the class whose body holds it, and the method."""

    cls: Class
    owner: Class
    method: Function


class Members:
    """Looks up the classes of attributes in one wheel's sources."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def classes_of(self, cls: Class, attribute: str) -> list[Class | None]:
        """The classes that `self.<attribute>` of a `cls` may have; None stands for one that cannot be told."""
        for owner in cls.mro:
            found: list[Class | None] = []
            for method, value in owner.assigned.get(attribute, []):
                found += self._made_by(value, _Scope(cls, owner, method), _DEPTH)
            if any(found):
                return list(dict.fromkeys(found))
        return []

    def _made_by(self, node: ast.expr, scope: _Scope, depth: int) -> list[Class | None]:
        if isinstance(node, ast.IfExp):
            return self._made_by(node.body, scope, depth) + self._made_by(node.orelse, scope, depth)
        if isinstance(node, ast.Constant) and node.value is None:
            return []  # an encoder-only server, or another pipeline stage
        return self._named_by(node.func, scope, depth - 1) if isinstance(node, ast.Call) and depth else [None]

    def _named_by(self, node: ast.expr, scope: _Scope, depth: int) -> list[Class | None]:
        """The classes that calling `node` makes: a class, a variable or parameter that holds one, `self.make_it`."""
        if not depth:
            return [None]
        if isinstance(node, ast.IfExp):
            return self._named_by(node.body, scope, depth) + self._named_by(node.orelse, scope, depth)
        if isinstance(node, ast.Attribute) and is_name(node.value, self_name(scope.method)):
            return self._by_member(node.attr, scope, depth - 1)
        if isinstance(node, ast.Name):
            local = [v for n in ast.walk(scope.method) for t, v in assignments(n) if is_name(t, node.id)]
            if local:
                return [cls for value in local for cls in self._named_by(value, scope, depth - 1)]
            inside = [n for n in ast.walk(scope.method) if isinstance(n, (ast.Import, ast.ImportFrom))]
            imports = [b for n in inside for name, b in scope.owner.module.bound_by(n) if name == node.id]
            if imports:
                return self._class_or_unknown(self._sources.follow(scope.owner.module, node.id, imports[-1], depth))
            if node.id in _parameters(scope.method):
                return self._by_parameter(node.id, scope, depth - 1)
        return self._class_or_unknown(self._sources.resolve(scope.owner.module, node))

    def _class_or_unknown(self, target: Target | None) -> list[Class | None]:
        if target is None or not isinstance(target.node, ast.ClassDef):
            return [None]
        return [] if target.name in PLACEHOLDERS else [self._sources.as_class(target)]

    def _by_member(self, name: str, scope: _Scope, depth: int) -> list[Class | None]:
        """`self.body_cls(...)` or `self.init_llm(...)`, as the most derived class defines it."""
        for owner in scope.cls.mro:
            for node in owner.own.get(name, [])[-1:]:
                if isinstance(node, ast.Assign):
                    return self._named_by(node.value, _Scope(scope.cls, owner, scope.method), depth)
                if isinstance(node, ast.FunctionDef):
                    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
                    inner = _Scope(scope.cls, owner, node)
                    return [cls for value in values for cls in self._made_by(value, inner, depth)]
        return [None]

    def _by_parameter(self, name: str, scope: _Scope, depth: int) -> list[Class | None]:
        """A class handed to `__init__`: what the next derived `__init__` passes, else the default."""
        order = scope.cls.mro
        for owner in reversed(order[: order.index(scope.owner)]):
            method = owner.methods.get(scope.method.name)
            if method is not None:
                call = _super_call(method)
                if call is None or any(isinstance(arg, ast.Starred) for arg in call.args):
                    return [None]
                passed = _argument(call, name, list(_parameters(scope.method)))
                if passed is not None:
                    return self._named_by(passed, _Scope(scope.cls, owner, method), depth)
                break
        default = _parameters(scope.method)[name]
        return [None] if default is None else self._named_by(default, _Scope(scope.cls, scope.owner, _NO_METHOD), depth)


_NO_METHOD = Function("_", ast.arguments([], [], None, [], [], None, []), [ast.Pass()], [])


def _parameters(method: Function) -> dict[str, ast.expr | None]:
    args = [*method.args.posonlyargs, *method.args.args]
    padding: list[ast.expr | None] = [None] * (len(args) - len(method.args.defaults))
    plain = zip(args, padding + list(method.args.defaults), strict=True)
    keyword_only = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
    return {arg.arg: default for arg, default in [*plain, *keyword_only]}


def _super_call(method: Function) -> ast.Call | None:
    """The first `super().<method>(...)` in a method of that name."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method.name:
            inner = node.func.value
            if isinstance(inner, ast.Call) and is_name(inner.func, "super"):
                return node
    return None


def _argument(call: ast.Call, name: str, parameters: list[str]) -> ast.expr | None:
    position = parameters.index(name) - 1  # the bound call passes no self
    positional = call.args[position] if 0 <= position < len(call.args) else None
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), positional)

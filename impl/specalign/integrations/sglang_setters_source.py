"""Reads SGLang's model sources without importing them: who defines a layer-id setter, who inherits it, what it needs.

`Sources` follows names through a wheel's files (imports, aliases, base classes), `sglang_setters_members` the classes
of attributes, and `sglang_setters_plan` reduces what they find to the text that `sglang_setters_child` executes. A name
that two places could define is not resolved: the child then treats it as unknown.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from specalign.integrations.sglang_setters_child import SETTER

Function: TypeAlias = ast.FunctionDef
Reader: TypeAlias = Callable[[str], "tuple[str, bool] | None"]
PACKAGE = "sglang"
_DEPTH = 12


class SetterRunError(ValueError):
    """The wheel cannot be read, or its setters cannot be run as a whole. One line: what, where, what to do next."""


@dataclass(frozen=True, eq=False)
class Target:
    """A definition at module level: a class, a function or an assignment."""

    module: Module
    name: str
    node: ast.stmt


@dataclass(frozen=True)
class Import:
    module: str
    attribute: str | None


@dataclass(frozen=True, eq=False)
class Module:
    """One parsed file and what its module-level names are bound to (several bindings: it depends on a condition)."""

    name: str
    tree: ast.Module
    is_package: bool
    mentions_setter: bool
    bindings: dict[str, list[ast.stmt | Import]] = field(default_factory=dict)

    @cached_property
    def has_star_import(self) -> bool:
        return any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(self.tree))

    def bind(self, body: list[ast.stmt], conditional: bool = False) -> None:
        for node in body:
            for name, binding in self.bound_by(node):
                self.bindings[name] = [*(self.bindings.get(name, []) if conditional else []), binding]
            for block in _inner_blocks(node):
                self.bind(block, conditional=True)

    def bound_by(self, node: ast.stmt) -> Iterator[tuple[str, ast.stmt | Import]]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((n.id, node) for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield alias.asname or top, Import(alias.name if alias.asname else top, None)
        elif isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, Import(self._absolute(node), a.name)) for a in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*kept, *([node.module] if node.module else [])])


def _inner_blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
        yield node.body
        yield from (getattr(node, "orelse", []), getattr(node, "finalbody", []))
        yield from (handler.body for handler in getattr(node, "handlers", []))


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the wheel. `unfollowed` tells that a base could not be followed although the wheel should hold it."""

    key: str
    module: Module
    node: ast.ClassDef
    bases: tuple[Class, ...]
    unfollowed: bool

    @cached_property
    def mro(self) -> tuple[Class, ...]:
        # Python's own C3 order, on empty stand-in classes.
        types: dict[str, type] = {}

        def build(cls: Class) -> type:
            if cls.key not in types:
                types[cls.key] = type(cls.key, tuple(map(build, cls.bases)) or (object,), {"cls": cls})
            return types[cls.key]

        return tuple(vars(kind)["cls"] for kind in build(self).__mro__[:-1])

    @cached_property
    def own(self) -> dict[str, list[ast.stmt]]:
        """Name → the statements of the class body that define it (a property and its setter are two)."""
        found: dict[str, list[ast.stmt]] = {}
        for node in self.node.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                plain = ast.Assign([node.target], node.value)
                found.setdefault(node.target.id, []).append(ast.copy_location(plain, node))
        return found

    @cached_property
    def methods(self) -> dict[str, Function]:
        return {name: nodes[-1] for name, nodes in self.own.items() if isinstance(nodes[-1], ast.FunctionDef)}

    @cached_property
    def assigned(self) -> dict[str, list[tuple[Function, ast.expr]]]:
        """Attribute name → every `self.name = value` in the class's methods."""
        found: dict[str, list[tuple[Function, ast.expr]]] = {}
        for method in self.methods.values():
            for node in ast.walk(method):
                for target, value in assignments(node):
                    if isinstance(target, ast.Attribute) and is_name(target.value, self_name(method)):
                        found.setdefault(target.attr, []).append((method, value))
        return found

    @cached_property
    def closed(self) -> bool:
        """Whether a setter that no class of the wheel defines is really missing."""
        special = {"__getattr__", "__getattribute__"}
        return not any(
            cls.unfollowed or special & cls.own.keys() or cls.node.keywords or cls.has_hidden_setter for cls in self.mro
        )

    @cached_property
    def has_hidden_setter(self) -> bool:
        """Whether a setter stands in the body under a condition."""
        if not self.module.mentions_setter:
            return False
        functions = [n for n in ast.walk(self.node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return any(SETTER.fullmatch(node.name) and node.name not in self.own for node in functions)


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def self_name(method: Function) -> str:
    args = [*method.args.posonlyargs, *method.args.args]
    return args[0].arg if args else ""


def is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _module(name: str, text: str, is_package: bool) -> Module:
    try:
        module = Module(name, ast.parse(text), is_package, SETTER.search(text) is not None)
        module.bind(module.tree.body)
        return module
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        problem = f"{name} does not parse with Python {version} ({error}); use a Python that this SGLang supports"
        raise SetterRunError(problem) from None


class Sources:
    """The files of a wheel that were needed so far. `read` gives (text, is a package) for a dotted module name."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._modules: dict[str, Module | None] = {}
        self._classes: dict[str, Class] = {}

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            found = self._read(name) if name.split(".")[0] == PACKAGE else None
            self._modules[name] = None if found is None else _module(name, *found)
        return self._modules[name]

    def classes_of(self, module: Module) -> list[Class]:
        nodes = [(name, found) for name, bound in module.bindings.items() for found in bound]
        return [self.as_class(Target(module, name, node)) for name, node in nodes if isinstance(node, ast.ClassDef)]

    def lookup(self, module: Module, name: str, depth: int = _DEPTH) -> Target | None:
        """The one definition that `name` means in `module`; None if there is none in the wheel, or more than one."""
        found = [self.follow(module, name, binding, depth) for binding in module.bindings.get(name, [])]
        unique = {(target.module.name, id(target.node)) if target else None: target for target in found}
        return next(iter(unique.values())) if len(unique) == 1 else None

    def follow(self, module: Module, name: str, binding: ast.stmt | Import, depth: int) -> Target | None:
        if depth == 0:
            return None
        if isinstance(binding, ast.Assign) and isinstance(binding.value, (ast.Name, ast.Attribute)):
            return self.resolve(module, binding.value, depth - 1)
        if not isinstance(binding, Import):
            return Target(module, name, binding)
        source = self.module(binding.module)
        return self.lookup(source, binding.attribute, depth - 1) if source and binding.attribute else None

    def resolve(self, module: Module, node: ast.expr, depth: int = _DEPTH) -> Target | None:
        if isinstance(node, ast.Name):
            return self.lookup(module, node.id, depth)
        if isinstance(node, ast.Attribute) and (inner := self._named_module(module, node.value)) is not None:
            return self.lookup(inner, node.attr, depth)
        return None

    def _named_module(self, module: Module, node: ast.expr) -> Module | None:
        if isinstance(node, ast.Attribute):
            parent = self._named_module(module, node.value)
            return self.module(f"{parent.name}.{node.attr}") if parent else None
        bound = module.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
        if len(bound) != 1 or not isinstance(bound[0], Import):
            return None
        return self.module(".".join(filter(None, (bound[0].module, bound[0].attribute))))

    def comes_from_outside(self, module: Module, node: ast.expr) -> bool:
        """Whether a base class is imported from another package, such as `nn.Module`, or is a builtin."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        bound = module.bindings.get(node.id)
        if bound is None:
            return not module.has_star_import
        return all(isinstance(b, Import) and b.module.split(".")[0] != PACKAGE for b in bound)

    def as_class(self, target: Target) -> Class:
        """The class of a ClassDef target, with its bases followed."""
        key = f"{target.module.name}:{target.name}"
        if not isinstance(target.node, ast.ClassDef):
            raise TypeError(f"{key} is no class")
        if key in self._classes and self._classes[key].node is target.node:
            return self._classes[key]
        # Entered first without bases, so that a circular pair of classes ends here.
        self._classes[key] = Class(key, target.module, target.node, (), True)
        followed = [self.resolve(target.module, base) for base in target.node.bases]
        found = [t if t and isinstance(t.node, ast.ClassDef) and t.node is not target.node else None for t in followed]
        bases = [self.as_class(t) for t in found if t]
        lost = [base for base, t in zip(target.node.bases, found, strict=True) if t is None]
        unfollowed = any(not self.comes_from_outside(target.module, base) for base in lost)
        self._classes[key] = Class(key, target.module, target.node, tuple(bases), unfollowed)
        return self._classes[key]

"""What the source of a module says about GPU tests, for modules that were skipped before they could be asked."""

from __future__ import annotations

import ast
from pathlib import Path

from pytest_specalign.gpu_tests import FIXTURES


def names_gpu_tests(path: Path) -> bool:
    """Whether the source of a module names the mark `gpu` or a fixture that leases; also where it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    return any(map(_names_gpu, ast.walk(tree)))


def _names_gpu(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="gpu", value=ast.Attribute(attr="mark") | ast.Name(id="mark")):
            return True
        case ast.arg(arg=name) | ast.Constant(value=str(name)) | ast.Name(id=name):
            return name in FIXTURES
        case _:
            return False

"""Loads a test module in a rank as pytest loads it: an assert that fails tells the values."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
from collections.abc import Mapping
from types import CodeType
from typing import Any


class AssertLoader(importlib.machinery.SourceFileLoader):
    """Rewrites asserts, and neither reads nor writes the cache: what stands there under this name was not rewritten."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Nothing to compare a cached file with."""
        raise OSError(f"{path}: the cache is left alone")

    def source_to_code(self, data: Any, path: Any, *args: Any, **kwargs: Any) -> CodeType:  # type: ignore[override]
        """With asserts rewritten by pytest's own function, where it has one of this name: pytest does not promise it."""
        tree = ast.parse(data, filename=path)
        rewrite = getattr(importlib.import_module("_pytest.assertion.rewrite"), "rewrite_asserts", None)
        if rewrite is not None and isinstance(data, bytes):
            rewrite(tree, data, str(path))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

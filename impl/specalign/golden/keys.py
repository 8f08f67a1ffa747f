"""Which golden is whose: the key of a golden, and the name of its file.

A key names a test and one result of it. `callspec.id` goes in as it is: sorted, the parameters [a-b] and [b-a] would share a
golden. The file's name is the parts of the key with `~` between them and none at the end, each percent-encoded outside of
`[A-Za-z0-9._=-]`; over 120 bytes, it is the first 80, a hyphen, and 16 hexadecimal digits of the SHA-256 of the whole. The path
of the test's folder is no part of the name: the golden lies in a folder that belongs to that one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from specalign.golden.errors import GoldenError
from specalign.layer_ids.files import quoted

SEPARATOR: Final = "~"
MAX_STEM: Final = 120
"""Bytes of a file's name, without what follows the key."""

_KEPT: Final = 80
_DIGITS: Final = 16
_OTHER: Final = re.compile(rb"[^A-Za-z0-9._=-]")
_FIELDS: Final = ("module", "class", "function", "params", "name")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    """One result of one test.

    Attributes:
        module: the file's name, as `test_router.py`.
        classes: `TestA`, or `TestA.TestB` for a nested class; empty for a function.
        function: the test's name without parameters.
        params: `callspec.id`, or None where the test has no parameters.
        name: of the result; empty for a test's only one.
    """

    module: str
    classes: str
    function: str
    params: str | None
    name: str = ""

    @property
    def test(self) -> str:
        """`test_router.py::TestA::test_scores[4-8]`."""
        path = "::".join(part for part in (self.module, *self.classes.split("."), self.function) if part)
        return path if self.params is None else f"{path}[{self.params}]"

    @property
    def text(self) -> str:
        """The test, and `::name` if the result has one: what messages and patterns say."""
        return f"{self.test}::{self.name}" if self.name else self.test

    @property
    def stem(self) -> str:
        """The file's name without the architecture and what follows it."""
        parts = (self.module, self.classes, self.function, self.params or "", self.name)
        full = SEPARATOR.join(encode(part) for part in parts).rstrip(SEPARATOR)
        if len(full) <= MAX_STEM:
            return full
        return f"{full[:_KEPT]}-{hashlib.sha256(full.encode()).hexdigest()[:_DIGITS]}"

    @property
    def folded(self) -> str:
        """Equal for two keys whose files a file system may take for one: some tell no capitals from small letters."""
        return self.stem.casefold()

    def to_json(self) -> dict[str, str | None]:
        """The key in a golden's document."""
        return dict(zip(_FIELDS, (self.module, self.classes, self.function, self.params, self.name), strict=True))


def encode(part: str) -> str:
    """Percent-encoded, byte by byte of UTF-8, outside of `[A-Za-z0-9._=-]`."""
    data = part.encode("utf-8", "surrogatepass")
    return _OTHER.sub(lambda match: b"%%%02X" % match[0][0], data).decode("ascii")


def parse_key(document: object, where: str) -> Key:
    """The key out of a golden's document.

    Raises:
        GoldenError: it is none.
    """
    table: Mapping[str, Any] = document if isinstance(document, dict) else {}
    values = [table.get(field) for field in _FIELDS]
    fits = [isinstance(value, str) or (value is None and field == "params") for value, field in zip(values, _FIELDS, strict=True)]
    if set(table) != set(_FIELDS) or not all(fits):
        raise GoldenError(f"{where}: has the key {quoted(document)}, not one of {', '.join(_FIELDS)}; write the golden again")
    module, classes, function, params, name = values
    return Key(str(module), str(classes), str(function), params, str(name))


def matches(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern in which only `*` is special; brackets are those of parameters."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None

"""The markers `gpu` and `bitwise`: their arguments are read and checked here.

A `gpu` test gets a lease of such GPUs (`pytest_specalign.leases`); what `bitwise` does is in `pytest_specalign.bitwise`. A wrong
argument fails at collection.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(MiB|GiB|TiB)")


@dataclasses.dataclass(frozen=True)
class GpuMark:
    """`gpu(count=1, capability=None, memory=None)`.

    Attributes:
        count: how many GPUs the test needs, at least 1.
        capability: the least compute capability, as (major, minor); (9, 0) is Hopper. None takes any.
        memory: the least memory of each GPU, like "40GiB" (MiB, GiB or TiB). None takes any.
    """

    count: int = 1
    capability: tuple[int, int] | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        _refuse_below(1, "count", self.count)
        if self.capability is not None and not _is_capability(self.capability):
            raise ValueError(f"capability is {self.capability!r}: give two whole numbers, (major, minor), like (9, 0)")
        if self.memory is not None and not _is_memory(self.memory):
            raise ValueError(f'memory is {self.memory!r}: give a size like "40GiB" (MiB, GiB or TiB)')


@dataclasses.dataclass(frozen=True)
class BitwiseMark:
    """`bitwise(runs=2)`.

    Attributes:
        runs: how often the test runs; at least 2, since one run agrees with itself.
    """

    runs: int = 2

    def __post_init__(self) -> None:
        _refuse_below(2, "runs", self.runs)


MARKS: dict[str, type[GpuMark] | type[BitwiseMark]] = {"gpu": GpuMark, "bitwise": BitwiseMark}

DESCRIPTIONS = (
    "gpu(count=1, capability=None, memory=None): the test needs GPUs. It runs under a lease of so many, each with at least this"
    " compute capability and this much free memory, and skips where the machine has none such.",
    "bitwise(runs=2): the test function is called that often with the same fixtures, and what it hands to"
    " bitwise.observe(name, tensor) must have the same bits each time.",
)


def register_marks(config: pytest.Config) -> None:
    """Make the markers known, for `--markers` and `--strict-markers`."""
    for line in DESCRIPTIONS:
        config.addinivalue_line("markers", line)


def read_mark(mark: pytest.Mark) -> GpuMark | BitwiseMark:
    """The arguments of a `gpu` or `bitwise` mark.

    Raises:
        ValueError: an argument that the mark does not take, or a value out of range.
    """
    try:
        return MARKS[mark.name](*mark.args, **mark.kwargs)
    except TypeError as error:  # Python's own words name the constructor, which means nothing to the reader
        raise ValueError(re.sub(r"^\w+\.__init__\(\) ", "", str(error))) from error


def bad_marks(node: pytest.Item) -> Iterator[str]:
    """One line for each mark of a test, its class or its module whose arguments are wrong."""
    for name in MARKS:
        for mark in node.iter_markers(name):
            try:
                read_mark(mark)
            except ValueError as error:
                yield f"{node.nodeid}: bad mark {_spelled(mark)}: {error}"


def _spelled(mark: pytest.Mark) -> str:
    arguments = [repr(value) for value in mark.args] + [f"{key}={value!r}" for key, value in mark.kwargs.items()]
    return f"@pytest.mark.{mark.name}({', '.join(arguments)})"


def _refuse_below(least: int, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: give a whole number of at least {least}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_capability(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_int(part) and part >= 0 for part in value)


def _is_memory(value: object) -> bool:
    match = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    return match is not None and float(match[1]) > 0

"""Tests that are refused at collection: wrong marks, and `bitwise` tests of which the runs would prove nothing.

Marks of these names count where the plugin is active; `bitwise` also on a test that uses the plugin's fixture of that name or
`specalign_golden`. Elsewhere the names may be somebody else's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_specalign.bitwise import bitwise
from pytest_specalign.golden import specalign_golden
from pytest_specalign.marks import bad_marks
from pytest_specalign.options import is_active


def refuse_definition(definition: pytest.Function) -> None:
    """Raise for a test function before it is parametrized: called from `pytest_generate_tests`.

    Raises:
        pytest.Collector.CollectError: so that the module fails with these lines, under xdist too. (A UsageError at this point
            ends xdist with an internal error.)
    """
    found = list(_problems(definition, is_active(definition.config)))
    if found:
        raise pytest.Collector.CollectError("\n".join(found))


def refuse_items(report: pytest.CollectReport) -> pytest.CollectReport:
    """A failed report in place of `report` if something is wrong with a collected item.

    This finds what `pytest_generate_tests` cannot see: marks on a `pytest.param`, tests of a `unittest.TestCase`, and items that
    are no Python functions.
    """
    items = [node for node in report.result or () if isinstance(node, pytest.Item)]
    found = [line for item in items for line in _problems(item, is_active(item.config))]
    if not found:
        return report
    return pytest.CollectReport(report.nodeid, "failed", "\n".join(found), [], report.sections)


def _problems(node: pytest.Item, active: bool) -> Iterator[str]:
    if active:
        yield from bad_marks(node)
    if node.get_closest_marker("bitwise") is None:
        return
    ours = _uses_our_fixture(node)
    if ours and not active:
        yield from (line for line in bad_marks(node) if "@pytest.mark.bitwise(" in line)
    if ours or active:
        yield from (f"{node.nodeid}: @pytest.mark.bitwise {reason}" for reason in (*_wrong_kinds(node), *_reruns(node)))


def _uses_our_fixture(node: pytest.Item) -> bool:
    info: Any = getattr(node, "_fixtureinfo", None)
    known: Any = info.name2fixturedefs if info is not None else {}
    ours = (("bitwise", bitwise), ("specalign_golden", specalign_golden))
    return any(name in known and known[name][-1].func is _function_of(fixture) for name, fixture in ours)


def _function_of(fixture: Any) -> Any:
    return fixture._get_wrapped_function() if hasattr(fixture, "_get_wrapped_function") else inspect.unwrap(fixture)


def _wrong_kinds(node: pytest.Item) -> Iterator[str]:
    """Tests whose function the plugin does not call."""
    if not isinstance(node, pytest.Function):
        yield f"repeats test functions, and this is a {type(node).__name__}: take the mark away"
        return
    unittest = sys.modules.get("unittest")
    if unittest is not None and isinstance(node.cls, type) and issubclass(node.cls, unittest.TestCase):
        yield f"cannot repeat a method of a unittest.TestCase ({node.cls.__qualname__}): write a function or a plain class"
        return
    function = inspect.unwrap(node.obj)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield "cannot repeat a coroutine function: write a plain function that runs it, with asyncio.run(...)"
    if getattr(node.obj, "is_hypothesis_test", False):
        yield "cannot repeat a test of hypothesis' @given, which calls it with new examples: use assert_repeatable inside of it"


def _reruns(node: pytest.Item) -> Iterator[str]:
    """Reruns until it passes are the opposite of the same bits each time."""
    config = node.config
    append = _option(config, "reruns_mode") == "append"
    if _option(config, "force_reruns"):
        yield "refuses reruns: a test whose bits change must fail, not run until they agree; run without --force-reruns"
        return
    for mark in node.iter_markers("flaky"):
        if not _forbids_reruns(mark):
            yield "refuses reruns: a test whose bits change must fail, not run until they agree; take the mark flaky away"
            return
        if not append:
            return  # the closest mark counts, and overrules --reruns
    for name, spelled in (("reruns", "--reruns"), ("force_flaky", "--force-flaky")):
        if _option(config, name):
            yield (
                f"refuses reruns: a test whose bits change must fail, not run until they agree; run it without {spelled}"
                + (", or mark it @pytest.mark.flaky(reruns=0)" if name == "reruns" and not append else "")
            )
            return
    if _ini(config, "reruns"):
        yield (
            "refuses reruns: a test whose bits change must fail, not run until they agree; the ini value reruns asks for them:"
            " mark the test @pytest.mark.flaky(reruns=0)"
        )


def _forbids_reruns(mark: pytest.Mark) -> bool:
    """`flaky(reruns=0)`, with which pytest-rerunfailures exempts a test from `--reruns`."""
    return bool(mark.kwargs.get("reruns", mark.args[0] if mark.args else None) == 0)


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(name, default=None)


def _ini(config: pytest.Config, name: str) -> bool:
    try:
        value = config.getini(name)
    except (KeyError, ValueError):  # no plugin has such a key
        return False
    return bool(value) and str(value).strip() != "0"

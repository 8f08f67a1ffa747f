"""The machinery under every contract: property tests that are created anew for each class that a user writes.

A contract's properties are methods `check_<name>` marked with `holds_for`. Every concrete subclass gets a `test_<name>` of its
own: a copy of the function, wrapped by `hypothesis.given` afterwards. One wrapped function shared by two subclasses would fail
hypothesis' health check `differing_executors`. The tests take no fixture: whatever they need comes from methods and attributes
of the class.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, TypeVar

import pytest

from pytest_specalign import strategies as _strategies  # noqa: F401  # fails in one line without hypothesis

import hypothesis  # isort: skip
from hypothesis import strategies as st  # isort: skip

Strategy: TypeAlias = st.SearchStrategy[Any]
Body = TypeVar("Body", bound=Callable[..., None])
Method = TypeVar("Method", bound=Callable[..., Any])

_PROPERTY: Final = "__specalign_property__"
_OPEN: Final = "__specalign_open__"
_GENERATED: Final = "__specalign_generated__"


@dataclasses.dataclass(frozen=True, slots=True)
class _Property:
    cases: Callable[[Any], Strategy]
    examples: Callable[[Any], Sequence[Any]]
    when: Callable[[Any], bool]
    unseen: Callable[[Any], str | None]


def holds_for(
    cases: Callable[[Any], Strategy],
    *,
    examples: Callable[[Any], Sequence[Any]] = lambda cls: (),
    when: Callable[[Any], bool] = lambda cls: True,
    unseen: Callable[[Any], str | None] = lambda cls: None,
) -> Callable[[Body], Body]:
    """Marks `check_<name>(self, case)` as a property of a contract.

    Args:
        cases: given the leaf class, the strategy that `case` is drawn from. Called when the test runs.
        examples: given the leaf class, cases that always run first. Called when the class is created, if it is complete.
        when: given the leaf class, whether the property applies at all. Called when the class is created.
        unseen: given the leaf class, why the property cannot be looked at, or None. Its test is then skipped with this reason.
    """

    def mark(body: Body) -> Body:
        setattr(body, _PROPERTY, _Property(cases, examples, when, unseen))
        return body

    return mark


def left_open(method: Method) -> Method:
    """Marks a method of a contract that users fill in."""
    setattr(method, _OPEN, True)
    return method


def is_open(cls: type, name: str) -> bool:
    """Whether `name` is still as the contract left it."""
    return bool(getattr(getattr(cls, name), _OPEN, False))


def violated(message: str) -> NoReturn:
    """Fails the property. An `AssertionError`, so that hypothesis' note on the failing case is shown with it."""
    __tracebackhide__ = True
    raise AssertionError(message) from None


def not_looked_at(reason: str) -> NoReturn:
    """Skips the property, and says so: what was not looked at has not passed."""
    __tracebackhide__ = True
    pytest.skip(f"not looked at: {reason}")


class Contract:
    """Base of all contracts. A subclass with `abstract=True` gets no tests and hands its properties on.

    Attributes:
        settings: hypothesis settings for all properties of the class, in place of the loaded profile.
    """

    settings: ClassVar[hypothesis.settings | None] = None

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not abstract:
            for name, body in _properties(cls):
                _create_test(cls, name, body)

    @classmethod
    def declaration_problem(cls) -> str | None:
        """What is missing or wrong in the declaration of the class, in one line, or None."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Refuses an incomplete class where pytest collects it: one line, with and without xdist."""
        problem = type(self).declaration_problem()
        if problem is not None:
            raise pytest.Collector.CollectError(problem)


def _properties(cls: type) -> Iterator[tuple[str, Callable[..., None]]]:
    """In the order of definition, so that the plainest property runs first."""
    for name in dict.fromkeys(name for owner in reversed(cls.__mro__) for name in vars(owner)):
        body = getattr(cls, name)
        if name.startswith("check_") and hasattr(body, _PROPERTY):
            yield name.removeprefix("check_"), body


class _NoTest:
    """Stands for a test that does not apply to a class. Not callable, so nothing collects it."""


_NO_TEST: Final = _NoTest()
setattr(_NO_TEST, _GENERATED, True)


def _create_test(cls: type[Contract], name: str, body: Callable[..., None]) -> None:
    """Sets `test_<name>` on the class, unless a user wrote one (or None, to leave it out) or the property does not apply."""
    declared: _Property = getattr(body, _PROPERTY)
    test_name = f"test_{name}"
    if not hasattr(getattr(cls, test_name, _NO_TEST), _GENERATED):
        return
    if not declared.when(cls):
        setattr(cls, test_name, _NO_TEST)  # hides an inherited one
        return
    reason = declared.unseen(cls)
    if reason is not None:
        setattr(cls, test_name, _skipping(reason))
        return
    test = hypothesis.given(case=st.deferred(lambda: declared.cases(cls)))(_copied(body, cls, test_name))
    for case in reversed(declared.examples(cls) if cls.declaration_problem() is None else ()):
        test = hypothesis.example(case=case)(test)
    test = (cls.settings or hypothesis.settings(deadline=None, report_multiple_bugs=False))(test)
    setattr(test, _GENERATED, True)
    setattr(cls, test_name, test)


def _skipping(reason: str) -> Callable[..., None]:
    def test(self: Contract) -> None:
        not_looked_at(reason)

    setattr(test, _GENERATED, True)
    return test


def _copied(body: Callable[..., None], cls: type, test_name: str) -> types.FunctionType:
    if not isinstance(body, types.FunctionType):
        raise TypeError(f"{cls.__qualname__}.{test_name}: a property is a plain method, not {type(body).__name__}")
    copy = types.FunctionType(body.__code__, body.__globals__, test_name, body.__defaults__, body.__closure__)
    copy.__kwdefaults__ = body.__kwdefaults__
    copy.__annotations__ = dict(body.__annotations__)
    copy.__doc__ = body.__doc__
    copy.__module__ = cls.__module__
    copy.__qualname__ = f"{cls.__qualname__}.{test_name}"
    return copy


@dataclasses.dataclass(frozen=True, slots=True)
class ContractResult:
    """What `run_contract` found: the failure message of each property that does not hold, by test name.

    `unseen` says why a property was not looked at; that is neither passed nor failed.
    """

    passed: tuple[str, ...]
    failed: dict[str, str]
    unseen: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.passed) and not self.failed

    def format(self) -> str:
        lines = [f"{name}: {message}" for name, message in self.failed.items()]
        lines += [f"{name}: {reason}" for name, reason in self.unseen.items()]
        return "\n".join([*lines, f"{len(self.passed)} properties hold, {len(self.failed)} do not"])


def run_contract(contract: type[Contract]) -> ContractResult:
    """Runs every property test of a contract class without pytest.

    Raises:
        TypeError: the class is incomplete; the message is `declaration_problem`'s.
    """
    problem = contract.declaration_problem()
    if problem is not None:
        raise TypeError(problem)
    # A subclass has tests of its own: hypothesis lets a test run on one instance only, and the class may have run before.
    instance = types.new_class(contract.__name__, (contract,))()
    passed: list[str] = []
    failed: dict[str, str] = {}
    unseen: dict[str, str] = {}
    for name in sorted(n for n in dir(instance) if n.startswith("test_") and callable(getattr(instance, n))):
        try:
            getattr(instance, name)()
        except pytest.skip.Exception as skipped:
            unseen[name] = str(skipped)
        except Exception as error:
            failed[name] = str(error)
        else:
            passed.append(name)
    return ContractResult(tuple(passed), failed, unseen)

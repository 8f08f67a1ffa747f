"""The few pickle opcodes that `torch.save` writes for tensors and plain values, and nothing that runs code.

A pickle is a program, and Python's unpickler calls whatever the program names. This one knows the 33 opcodes of a table, and a
name in the pickle stays a `Name`: the only ones that are ever "called" are those that the caller hands in. An opcode or a call
that is not known ends with `UnknownPickleError`; what is in such a file is then for torch's own `weights_only` unpickler to say.

Opcodes: CPython's `Lib/pickletools.py`, which `torch.save` uses at protocol 2.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final


class UnknownPickleError(ValueError):
    """The pickle holds something else, or is damaged."""


class RefusedPickleError(ValueError):
    """The pickle holds what no reader of dumps takes and what another unpickler may hang or crash on: nobody else is asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A global that the pickle names; it is not looked up.

    Attributes:
        text: "module name", with a space between them.
    """

    text: str


Calls = Mapping[str, Callable[..., object]]
"""What may be called, by the text of its `Name`."""


def read_pickle(data: bytes, calls: Calls, persistent: Callable[[object], object]) -> object:
    """The value of a pickle.

    Args:
        data: all of it.
        calls: see `Calls`. They get the arguments of the pickle, which may be anything.
        persistent: makes a value of a persistent id (torch: of a storage).

    Raises:
        UnknownPickleError: it holds anything but what is said above, or does not end where it says so.
        RefusedPickleError: see there.
    """
    machine = _Machine(data, calls, persistent)
    try:
        return machine.run()
    except RefusedPickleError:
        raise
    except (IndexError, KeyError, struct.error, TypeError, ValueError, OverflowError) as error:
        raise UnknownPickleError(f"at byte {machine.at}: {type(error).__name__}: {error}") from error


class _Machine:
    """A stack, the marks in it, and what was put aside under a number."""

    __slots__ = ("at", "calls", "data", "marks", "memo", "persistent", "stack")

    def __init__(self, data: bytes, calls: Calls, persistent: Callable[[object], object]) -> None:
        self.data, self.calls, self.persistent, self.at = data, calls, persistent, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        data = self.data
        while (opcode := data[self.at]) != _STOP:
            self.at += 1
            _OPCODES[opcode](self)
        if len(self.stack) != 1 or self.marks:
            raise UnknownPickleError(f"{len(self.stack)} values are left at the end")
        return self.stack[0]

    def bytes(self, count: int) -> bytes:
        """The next bytes of the pickle."""
        begin, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise UnknownPickleError(f"it ends {self.at - len(self.data)} bytes early")
        return self.data[begin : self.at]

    def line(self) -> str:
        """The next bytes up to the end of a line."""
        begin = self.at
        self.at = self.data.find(b"\n", begin, begin + _LONGEST_LINE) + 1
        if not self.at:
            raise RefusedPickleError(f"its pickle is cut off, or names something by more than {_LONGEST_LINE} letters")
        return self.data[begin : self.at - 1].decode("ascii")

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, taken off the stack."""
        begin = self.marks.pop()
        taken = self.stack[begin:]
        del self.stack[begin:]
        return taken


def _push(value: object) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _number(layout: str) -> Callable[[_Machine], None]:
    one = struct.Struct(layout)

    def run(machine: _Machine) -> None:
        machine.stack.append(one.unpack(machine.bytes(one.size))[0])

    return run


def _long(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.bytes(machine.bytes(1)[0]), "little", signed=True))


def _text(size: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        count = int.from_bytes(machine.bytes(size), "little")
        machine.stack.append(machine.bytes(count).decode("utf-8", "surrogatepass"))

    return run


def _put_short(machine: _Machine) -> None:
    machine.memo[machine.data[machine.at]] = machine.stack[-1]
    machine.at += 1


def _get_short(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.at]])
    machine.at += 1


def _byte(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _put(size: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        machine.memo[int.from_bytes(machine.bytes(size), "little")] = machine.stack[-1]

    return run


def _get(size: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        machine.stack.append(machine.memo[int.from_bytes(machine.bytes(size), "little")])

    return run


def _tuple(count: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        if len(machine.stack) < count:
            raise UnknownPickleError("a tuple of more than there is")
        taken = tuple(machine.stack[-count:])
        machine.stack[-count:] = [taken]

    return run


def _marked(make: Callable[[list[Any]], object]) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        taken = machine.since_mark()
        machine.stack.append(make(taken))

    return run


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise UnknownPickleError("a name without a value")
    return dict(zip(map(_key, items[::2]), items[1::2], strict=True))


def _key(name: object) -> object:
    """The name of a value. One hash of a tuple of tuples may take for ever, or more stack than there is."""
    if not isinstance(name, (str, int)):
        raise RefusedPickleError(f"a table has a name of type {type(name).__name__}, which is neither text nor a number")
    return name


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    _a(list, machine.stack[-1]).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    _a(list, machine.stack[-1]).extend(values)


def _set_item(machine: _Machine) -> None:
    value, name = machine.stack.pop(), machine.stack.pop()
    _a(dict, machine.stack[-1])[_key(name)] = value


def _set_items(machine: _Machine) -> None:
    pairs = _pairs(machine.since_mark())
    _a(dict, machine.stack[-1]).update(pairs)


def _a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise UnknownPickleError(f"a {type(value).__name__} where a {kind.__name__} is filled")
    return value


def _name(machine: _Machine) -> None:
    machine.stack.append(Name(f"{machine.line()} {machine.line()}"))


def _call(machine: _Machine) -> None:
    arguments, called = machine.stack.pop(), machine.stack.pop()
    if not isinstance(called, Name):  # and not shown: the text of lists in lists in lists may have no end
        raise RefusedPickleError(f"its pickle calls an object of type {type(called).__name__}")
    if called.text not in machine.calls or type(arguments) is not tuple:
        raise UnknownPickleError(f"a call of {called.text!r}")
    machine.stack.append(machine.calls[called.text](*arguments))


def _persistent(machine: _Machine) -> None:
    machine.stack.append(machine.persistent(machine.stack.pop()))


def _mark(machine: _Machine) -> None:
    machine.marks.append(len(machine.stack))


def _protocol(machine: _Machine) -> None:
    if machine.bytes(1) != b"\x02":
        raise UnknownPickleError("another protocol")


_STOP: Final = ord(".")
_LONGEST_LINE: Final = 256
"""Of a name's module, and of the name within it."""

_BY_LETTER: Final[Mapping[bytes, Callable[[_Machine], None]]] = {
    b"\x80": _protocol,
    b"(": _mark,
    b"N": _push(None),
    b"\x88": _push(True),
    b"\x89": _push(False),
    b"K": _byte,
    b"M": _number("<H"),
    b"J": _number("<i"),
    b"G": _number(">d"),
    b"\x8a": _long,
    b"\x8c": _text(1),
    b"X": _text(4),
    b"q": _put_short,
    b"r": _put(4),
    b"h": _get_short,
    b"j": _get(4),
    b")": lambda machine: machine.stack.append(()),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"t": _marked(tuple),
    b"]": lambda machine: machine.stack.append([]),
    b"l": _marked(list),
    b"a": _append,
    b"e": _appends,
    b"}": lambda machine: machine.stack.append({}),
    b"d": _marked(_pairs),
    b"s": _set_item,
    b"u": _set_items,
    b"c": _name,
    b"R": _call,
    b"Q": _persistent,
}
_OPCODES: Final = {ord(letter): run for letter, run in _BY_LETTER.items()}

"""How a call gets to the ranks, and its result back: pickled, functions by the name that they can be imported by.

Both ends are processes of the same run and user, and the files lie in a folder that only this user can read: nothing foreign is
unpickled. Tensors travel as their raw bytes and arrive on the CPU, without their history of gradients.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from specalign.ranks.errors import RankGroupError


class _Pickler(pickle.Pickler):
    """Takes tensors as bytes, also those on a GPU, whose number means another GPU in the process that reads it."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            return NotImplemented
        there = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        raw = there.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(raw), str(there.dtype).removeprefix("torch."), tuple(there.shape))


def _tensor(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    writable = raw if isinstance(raw, bytearray) else bytearray(raw)
    return torch.frombuffer(writable, dtype=torch.uint8).view(kind).reshape(shape)


def pack(value: object) -> bytes:
    """Pickled, with what pickle itself raises for what it cannot take."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def pack_call(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    """A call for the ranks.

    Raises:
        RankGroupError: a function that cannot be imported by its name, or an argument that cannot be pickled.
    """
    __tracebackhide__ = True
    refuse_function(function)
    try:
        return pack((function, args, kwargs))
    except Exception as error:  # pickle lets through whatever a value's own code raises
        raise RankGroupError(
            f"the call of {name_of(function)} cannot be sent to the ranks: {type(error).__name__}: {error}. Pass plain values and"
            " tensors, and make the rest in the function"
        ) from error


def refuse_function(function: Callable[..., object]) -> None:
    """Refuse what pickle refuses, in words that say what to do.

    Raises:
        RankGroupError: a lambda, a function inside of a function, one of `__main__`, or something that cannot be called.
    """
    __tracebackhide__ = True
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner):
        raise RankGroupError(f"{inner!r} cannot be called: give a function")
    inner = getattr(inner, "__func__", inner)
    name = getattr(inner, "__qualname__", "")
    kind = "a lambda" if "<lambda>" in name else "defined inside of a function" if "<locals>" in name else ""
    if not kind and getattr(inner, "__module__", None) == "__main__":
        kind = "defined in __main__, which the ranks do not run"
    if kind:
        raise RankGroupError(
            f"{name_of(function)} is {kind}: the ranks are new processes, which import the function by its name. Define it at the"
            " top level of a module, and pass what it needs as arguments"
        )


def name_of(function: object) -> str:
    """`module.function`, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '?')}.{name}" if name else repr(function)

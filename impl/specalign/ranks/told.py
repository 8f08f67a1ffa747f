"""What a rank tells of an exception."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN = Path(__file__).parent


def describe(error: BaseException) -> dict[str, str]:
    """`reason` in one line, and `details`: the traceback from the function on, without the frames of this room."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == _OWN and trace.tb_next is not None:
        trace = trace.tb_next
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception as second:  # what failed is told all the same
        said = f"<its text cannot be had: {type(second).__qualname__}>"
    name = type(error).__qualname__
    told = traceback.TracebackException(type(error), error, trace)
    return {"reason": f"raised {name}: {said}" if said else f"raised {name}", "details": "".join(told.format())}


def unreadable(error: Exception) -> dict[str, str]:
    """The same of a result that was sent back and cannot be unpickled here."""
    told = describe(error)
    return {
        **told,
        "reason": f"returned what cannot be read here: unpickling it {told['reason']}; return plain values and tensors",
    }


def unpicklable(rank: int, result: object, problem: Exception) -> TypeError:
    """What is raised for a result that cannot be sent back."""
    kind = f"{type(result).__module__}.{type(result).__qualname__}".removeprefix("builtins.")
    return TypeError(f"rank {rank} returned a {kind} that cannot be sent back: {problem}. Return plain values and tensors")

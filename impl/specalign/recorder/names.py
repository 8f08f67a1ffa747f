"""What the requests of a forward are called where nobody says."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from specalign.recorder.errors import RecordError

Requests: TypeAlias = Sequence[str] | Callable[[], Sequence[str]]
"""The ids of the sequences of a forward, in their order; or what gives them, called once a forward."""


class RequestNames:
    """Ids for the sequences of each forward of one model.

    The caller's, if there are any. Otherwise sequence b of forward k that begins anew is `pass<k>/<b>`, and a forward that
    goes on from a cache goes on with the names of the sequences that filled it: those of the forward that was given
    the same cache or made it; where caches cannot be told apart (tuples), those of the forward before. A cache whose sequences
    are reordered (beam search) is not seen: name the sequences then.

    k counts the forwards of this model alone, so that one micro-batch has one name on every pipeline stage and in every
    virtual chunk.
    """

    def __init__(self, requests: Requests | None) -> None:
        self._requests = requests
        self._last: tuple[str, ...] | None = None
        self._by_cache: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()
        self.forward = 0

    def next(self, count: int, cache: Any, past: int) -> tuple[str, ...]:
        """The names of the `count` sequences of the forward that begins, `past` tokens after their beginning.

        Raises:
            RecordError: it goes on from sequences that cannot be told.
        """
        if self._requests is not None:
            given = self._requests() if callable(self._requests) else self._requests
            if len(given) != count:
                raise RecordError(
                    f"requests= names {len(given)} requests and this forward has {count} sequences: name each, in their order"
                )
            self._last = tuple(given)
        elif past:
            self._last = self._continued(count, cache, past)
        else:
            self._last = tuple(f"pass{self.forward}/{place}" for place in range(count))
        self.remember(cache)
        return self._last

    def remember(self, cache: Any) -> None:
        """This cache, given to the forward or made by it, holds the sequences of the forward."""
        if self._last is not None and _can_be_key(cache):
            self._by_cache[cache] = self._last

    def _continued(self, count: int, cache: Any, past: int) -> tuple[str, ...]:
        known = self._by_cache.get(cache) if _can_be_key(cache) else self._last
        if known is None and len(self._by_cache):
            raise RecordError(
                f"this forward goes on after {past} cached tokens from a cache that no recorded forward filled (a copy of one?):"
                " whose tokens they are cannot be told. Pass requests=, the ids of the sequences of each forward"
            )
        if known is None:
            known = tuple(f"pass{self.forward}/{place}" for place in range(count))  # the cache was filled before the recording
        if len(known) != count:
            raise RecordError(
                f"this forward goes on after {past} cached tokens with {count} sequences, and {len(known)} filled the cache:"
                " which is which cannot be told. Pass requests=, the ids of the sequences of each forward"
            )
        return known


def _can_be_key(cache: Any) -> bool:
    return type(cache).__hash__ is not None and getattr(type(cache), "__weakrefoffset__", 0) != 0

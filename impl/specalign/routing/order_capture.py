"""The order in which one router's experts stand in their slots, caught while that router runs and handed over once.

Megatron's router returns a dense map, in which the order of the slots is lost; what reads the map afterwards makes up another.
The order is part of the bits of the combine, which adds slot by slot, so it is caught where it still is. Everything hangs on the
one router that it was installed on: no global, no patched function, no class. Other routers, and torch, are as before.

Two seats:

- Megatron-core's `router_replay`, an object that the router asks for its top-k (`get_replay_topk`). The choice is made by
  `ordered_topk`: the experts that torch would take, except where the k-th score is tied; what Megatron then sums over the slots,
  it sums in this order. Where groups limit the choice it is left to Megatron, bit for bit, and its order is what is caught. An
  object that sat there before (a replay) still decides, and its order is caught.
- Any method of any module whose result holds the ids; `read` finds them. The result is left as it is.

Not seen: a fused kernel that bypasses the seat (refused where Megatron's config says so), calls replayed by a CUDA graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, TypeAlias, get_args

from torch import Tensor, nn

from specalign.routing.errors import RoutingError
from specalign.routing.replay_ids import INTEGERS
from specalign.routing.topk import CheckNan, Order, ordered_topk, tied

ReadIds: TypeAlias = Callable[[Any], Tensor]
TopKFunction: TypeAlias = Callable[..., tuple[Tensor, Tensor]]

SEAT = "router_replay"
_ABSENT = object()


class OrderCapture(contextlib.AbstractContextManager["OrderCapture"]):
    """Made by `capture_order` or `capture_ids`, and on the router from then on until `remove()` or the end of a `with`."""

    def __init__(self, router: nn.Module, around: str) -> None:
        self._router, self._around = router, around
        self._pending: Tensor | None = None
        self._undo: list[tuple[str, Any, Any]] = []

    @property
    def pending(self) -> bool:
        """Whether an order waits to be taken."""
        return self._pending is not None

    @property
    def installed(self) -> bool:
        """Whether the router still has this capture on it."""
        return bool(self._undo)

    def take(self) -> Tensor:
        """The ids of the last forward, int64 `[T, k]`, in slot order. Each order is handed over once.

        Raises:
            RoutingError: there is none, or it was taken before.
        """
        if self._pending is None:
            raise RoutingError(
                f"no order is pending on this {self._name}: it was taken before, or no forward ran to its end since. Take it"
                " once, after each forward of this router"
            )
        ids, self._pending = self._pending, None
        return ids

    def discard(self) -> None:
        """Forget an order that nobody will take, for example after an evaluation without a dispatcher."""
        self._pending = None

    def remove(self) -> None:
        """Take the capture off; the router is what it was before. Once off, this does nothing.

        Raises:
            RoutingError: something else was put over it in the meantime. Remove that first.
        """
        for name, ours, _ in self._undo:
            if self._router.__dict__.get(name) is not ours:
                raise RoutingError(f"{self._name}.{name} was replaced after this capture: remove what lies over it first")
        for name, _, before in reversed(self._undo):
            self._restore(name, before)
        self._undo.clear()
        self._pending = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.remove()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoutingError(
            f"a {self._name} with an order capture was to be copied or pickled: the copy would share it. Remove it first"
        )

    @property
    def _name(self) -> str:
        return type(self._router).__name__

    def _put(self, name: str, value: Any) -> None:
        before = self._router.__dict__.get(name, _ABSENT)
        setattr(self._router, name, value)
        self._undo.append((name, value, before))

    def _restore(self, name: str, before: Any) -> None:
        if before is _ABSENT:
            delattr(self._router, name)
        else:
            setattr(self._router, name, before)

    def _keep(self, ids: Tensor) -> None:
        self._refuse_pending()
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.dtype not in INTEGERS:
            found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
            raise RoutingError(
                f"ids of this {self._name} are {found}: expected whole numbers [tokens, slots], not a map of experts"
            )
        self._pending = ids.detach().long().clone()  # a copy: what the router does with its ids afterwards is its own

    def _refuse_pending(self) -> None:
        if self._pending is not None:
            raise RoutingError(
                f"this {self._name} runs again and nobody took the order of its last forward: take() it between them, or"
                " discard() it. With recomputation, take it in both passes"
            )

    def _bracket(self, read: ReadIds | None) -> Callable[..., Any]:
        """Around the router's method: nothing pending before, one order after, none if it raised."""
        inner = getattr(self._router, self._around)

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._refuse_pending()
            try:
                result = inner(*args, **kwargs)
                if read is not None:
                    self._keep(read(result))
                self._refuse_none()
            except BaseException:
                self._pending = None
                raise
            return result

        return _Uncopied(forward, self)

    def _refuse_none(self) -> None:
        if self._pending is None:
            raise RoutingError(
                f"{self._name}.{self._around} ran and no top-k came by: a fused kernel or another kind of routing decides here"
            )


class _Uncopied:
    """A function that deepcopy does not share between two routers without a word."""

    def __init__(self, function: Callable[..., Any], capture: OrderCapture) -> None:
        self._function, self.capture = function, capture

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.capture.__reduce_ex__(protocol)


class _Seat(_Uncopied):
    """What sits in `router_replay`: makes the choice, or lets the one who sat there before make it, and keeps its order."""

    def __init__(self, capture: OrderCapture, before: Any, order: Order, check: CheckNan) -> None:
        super().__init__(self.get_replay_topk, capture)
        self._before, self._order, self._check = before, order, check

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopKFunction | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(values, ids), as megatron-core's `RouterReplay` has it."""
        if default_compute_topk is None:
            raise RoutingError(
                f"this {self.capture._name} gave no top-k of its own: its routing is of a kind that is not known here"
            )
        choose = default_compute_topk if group_topk else functools.partial(self._choose, default_compute_topk)
        if self._before is None:
            values, ids = choose(scores, topk, num_groups=num_groups, group_topk=group_topk)
        else:
            values, ids = self._before.get_replay_topk(scores, topk, num_groups, group_topk, choose)
        self.capture._keep(ids)
        return values, ids

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # how Python itself asks, for copying among others
            raise AttributeError(name)
        return getattr(self._before, name)

    def _choose(
        self, default: TopKFunction, scores: Tensor, topk: int, num_groups: Any = None, group_topk: Any = None
    ) -> tuple[Tensor, Tensor]:
        ids, values = ordered_topk(scores, topk, order=self._order, check_nan=self._check)
        if self._check == "sync":
            self._refuse_others(ids, default(scores, topk, num_groups, group_topk)[1], tied(scores, topk))
        return values, ids

    def _refuse_others(self, ours: Tensor, theirs: Tensor, free: Tensor) -> None:
        """A router whose own choice is no top-k of its scores, a table of tokens for example, must not get one from here."""
        other = (ours.sort(1).values != theirs.sort(1).values).any(1) & ~free
        if other.any():
            token = int(other.nonzero()[0])
            raise RoutingError(
                f"token {token} of this {self.capture._name}: its own choice is {theirs[token].tolist()}, the highest scores have"
                f" {ours[token].tolist()}, and none is tied; {int(other.sum())} tokens in all. It does not choose by score: use"
                " capture_ids on what it returns"
            )


def capture_order(
    router: nn.Module, *, order: Order = "engine", around: str = "forward", check: CheckNan = "sync"
) -> OrderCapture:
    """Install on one megatron-core router: its top-k stands in `order`, and `take()` hands each forward's ids over.

    Args:
        router: a `TopKRouter`, or any module that asks `self.router_replay` for its top-k as that one does.
        order: of the slots where no groups limit the choice; see `specalign.routing.topk`.
        around: the method in which one top-k happens. An order belongs to a call of it: if the call raises, the order goes.
        check: `sync` looks for NaN, and whether the router itself would take the same experts where none is tied, which waits
            for the device twice a forward; `off` trusts both.

    Raises:
        RoutingError: the router has no such seat, its fused kernel would bypass it, or a capture is on it already; from inside
            the forward: the order of the last one was not taken, no top-k came by or more than one, or what `check` finds.
    """
    if not hasattr(router, SEAT):
        raise RoutingError(f"{type(router).__name__} has no {SEAT}: use capture_ids with the method whose result holds the ids")
    if getattr(getattr(router, "config", None), "moe_router_fusion", False):
        raise RoutingError(f"moe_router_fusion of this {type(router).__name__} is on: its kernel never asks {SEAT}. Turn it off")
    for name, value, allowed in (("order", order, Order), ("check", check, CheckNan)):
        if value not in get_args(allowed):
            raise RoutingError(f"{name} = {value!r}: expected one of {list(get_args(allowed))}")
    capture = _new(router, around)
    capture._put(SEAT, _Seat(capture, getattr(router, SEAT), order, check))
    capture._put(around, capture._bracket(None))
    return capture


def capture_ids(router: nn.Module, read: ReadIds, *, around: str = "forward") -> OrderCapture:
    """Install on one module of any kind: after each call of `around`, `read(result)` are its ids `[T, k]`, in their own order.

    The result is handed on as it is. Raises `RoutingError` as `capture_order` does; what `read` raises passes through.
    """
    capture = _new(router, around)
    capture._put(around, capture._bracket(read))
    return capture


def _new(router: nn.Module, around: str) -> OrderCapture:
    if not callable(getattr(router, around, None)):
        raise RoutingError(f"{type(router).__name__} has no method {around!r}")
    if any(isinstance(value, _Uncopied) for value in router.__dict__.values()):
        raise RoutingError(f"this {type(router).__name__} has an order capture already: remove() it first")
    return OrderCapture(router, around)

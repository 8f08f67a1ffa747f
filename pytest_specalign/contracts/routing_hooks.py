"""The hooks of `RoutingContract`: what each is called with, and what it must give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor

from pytest_specalign.contracts.routing_cases import Inputs, name_of
from specalign.routing import reference
from specalign.routing.topk import Order, ordered_topk

What: TypeAlias = Literal["scatter", "scatter_backward", "gather", "gather_backward", "topk", "layout"]
Output: TypeAlias = tuple[Tensor, ...]

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """One hook.

    Attributes:
        call: how it is written, for messages.
        arguments: what it is called with.
        right: what it must give, as tensors in this order; the second argument is the order of a top-k.
        names: of these tensors.
        integers: it gives ids or rows, whose integer type is free.
    """

    call: str
    arguments: Callable[[Inputs], tuple[Any, ...]]
    right: Callable[[Inputs, Order], Output]
    names: tuple[str, ...]
    integers: bool = False

    def output(self, found: Any) -> Output:
        """What a hook returned, on the CPU. Raises `TypeError` where it is not as many tensors as it should be."""
        parts = found if isinstance(found, tuple) and len(self.names) > 1 else (found,)
        if len(parts) != len(self.names) or not all(isinstance(part, Tensor) for part in parts):
            raise TypeError(f"{self.call} returned {_kinds(found)}: expected {' and '.join(self.names)}, tensors")
        return tuple(_plain(part, self.integers) for part in parts)


def _plain(part: Tensor, integers: bool) -> Tensor:
    return part.detach().cpu().long() if integers and not part.is_floating_point() else part.detach().cpu()


def _kinds(found: Any) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"


HOOKS: Final[dict[What, Hook]] = {
    "scatter": Hook(
        "scatter(rows, positions, num_rows, padding_rows)",
        lambda i: (i.token_rows, i.positions, i.num_rows, i.padding_rows),
        lambda i, _: (reference.scatter_reference(i.token_rows, i.positions, i.num_rows, i.padding_rows),),
        ("expert-major rows",),
    ),
    "scatter_backward": Hook(
        "scatter_backward(grad, positions)",
        lambda i: (i.expert_rows, i.positions),
        lambda i, _: (reference.scatter_backward_reference(i.expert_rows, i.positions),),
        ("the gradient of the token rows",),
    ),
    "gather": Hook(
        "gather(rows, positions, weights)",
        lambda i: (i.expert_rows, i.positions, i.weights),
        lambda i, _: (reference.gather_reference(i.expert_rows, i.positions, i.weights),),
        ("token rows",),
    ),
    "gather_backward": Hook(
        "gather_backward(grad, rows, positions, weights, padding_rows)",
        lambda i: (i.token_rows, i.expert_rows, i.positions, i.weights, i.padding_rows),
        lambda i, _: reference.gather_backward_reference(i.token_rows, i.expert_rows, i.positions, i.weights, i.padding_rows),
        ("the gradient of the expert-major rows", "that of the weights"),
    ),
    "topk": Hook(
        "topk(scores, k)",
        lambda i: (i.scores, min(i.case.slots, i.case.experts)),
        lambda i, order: (ordered_topk(i.scores, min(i.case.slots, i.case.experts), order=order).ids,),
        ("expert ids",),
        integers=True,
    ),
    "layout": Hook(
        "layout(expert_ids, weights, num_experts, alignment)",
        lambda i: (i.ids, i.weights, i.case.experts, i.case.alignment),
        lambda i, _: (i.positions, i.m_indices),
        ("positions", "m_indices"),
        integers=True,
    ),
}


def same_bits(one: Output, other: Output) -> bool:
    """Shapes, dtypes and raw bits."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def difference(hook: Hook, got: Output, right: Output) -> str:
    """The first element that differs, in values and bits, and how many do."""
    for name, one, other in zip(hook.names, got, right, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{name}: {name_of(one.dtype)} {list(one.shape)} in place of {name_of(other.dtype)} {list(other.shape)}"
        wrong = (bits(one) != bits(other)).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            return f"{name}{list(at)}: {_shown(one[at])} in place of {_shown(other[at])}; {len(wrong)} of {one.numel()} elements"
    return "nothing differs"


def _shown(value: Tensor) -> str:
    if not value.is_floating_point():
        return str(int(value))
    digits = 2 * value.element_size()
    return f"{float(value)!r} (0x{int(bits(value.reshape(1))) % 16**digits:0{digits}x})"

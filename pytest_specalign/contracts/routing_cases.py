"""What `RoutingContract` calls the hooks with: random routes, and routes planted so that one wrong rounding or order shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import torch
from hypothesis import strategies as st
from torch import Tensor

from specalign.routing.layout import ReceiveLayout

WIDTHS: Final = (1, 2, 3, 17, 64, 130)
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Planted:
    """One token whose sum tells a known fault from the rule; every column holds the same value.

    Attributes:
        ids: the expert of each slot, -1: none. They decide in which order the expert-major rows stand.
        values: of each slot's row, in units of `eps` and 1: (whole, times eps).
        weights: of each slot, in the same units.
    """

    ids: tuple[int, ...]
    values: tuple[tuple[float, float], ...]
    weights: tuple[tuple[float, float], ...]


PLANTED: Final = {
    # 1 + 205 * w - 1: an FMA keeps the 2^-54 that lifts the sum over the tie, so 2^-23 is left; a rounded product leaves 0, a
    # float64 sum 2^-24.
    "fma": Planted((0, 1, 2), ((1, 0), (205, 0), (-1, 0)), ((1, 0), (5237765 * 2.0**-54, 0), (1, 0))),
    # 2^25 + 1 - 2^25 is 0 in slot order; by expert-major row the 1 comes last and stays.
    "order": Planted((0, 2, 1), ((1, 0), (1, 0), (-1, 0)), ((2.0**25, 0), (1, 0), (2.0**25, 0))),
    # 1 + eps/2 + eps/2: each half is lost if the sum is rounded to the dtype after it, and kept if only the end is.
    "halves": Planted((0, 1, 2), ((1, 0), (0, 0.5), (0, 0.5)), ((1, 0), (1, 0), (1, 0))),
    # (1 + eps)^2 - (1 + 2 eps) = eps^2: a row that is weighted and rounded first leaves 0.
    "weight first": Planted((0, 1), ((1, 1), (-1, -2)), ((1, 1), (1, 0))),
    # A sum that begins with +0 makes +0 of -0.
    "minus zero": Planted((0, -1), ((-0.0, -0.0), (0, 0)), ((1, 0), (0, 0))),
    # The product rounds to -0; an empty slot leaves it, and adding +0 would not.
    "underflow": Planted((0, -1), ((-(2.0**-24), 0), (0, 0)), ((2.0**-126, 0), (0, 0))),
}


@dataclasses.dataclass(frozen=True, slots=True)
class RouteCase:
    """Sizes and a seed; the tensors follow from them.

    Attributes:
        tokens, slots, experts, width: T, k, E and H.
        alignment: of the layout.
        planted: a name of `PLANTED`; then T is 1 and the sizes are its own.
        damage: "duplicate" or "range": a position that a checking kernel refuses.
    """

    dtype: torch.dtype = torch.float32
    tokens: int = 1
    slots: int = 3
    experts: int = 3
    width: int = 1
    seed: int = 0
    alignment: int = 1
    planted: str = ""
    damage: str = ""

    def format(self) -> str:
        sizes = f"T={self.tokens} k={self.slots} E={self.experts} H={self.width} {name_of(self.dtype)}"
        more = [f"alignment {self.alignment}" * (self.alignment > 1), f"seed {self.seed}" * (not self.planted)]
        planted = f"planted: {self.planted}" * bool(self.planted)
        return ", ".join(part for part in (sizes, *more, planted, self.damage) if part)

    def inputs(self) -> Inputs:
        """The tensors, on the CPU."""
        if self.planted:
            return _planted_inputs(self, PLANTED[self.planted])
        return _damaged(_random_inputs(self), self.damage)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What the hooks get, T tokens with k slots.

    Attributes:
        case: whose tensors these are.
        token_rows: `[T, H]`: rows to scatter, and the gradient that a gather's backward gets.
        expert_rows: `[N, H]`: rows to gather, and the gradient that a scatter's backward gets. Padding rows hold NaN: no sum may
            read them.
        ids: int64 `[T, k]`.
        positions, weights, padding_rows, m_indices: those of the `ReceiveLayout` of the ids.
        scores: fp32 `[T, E]`, many of them equal, zeros of both signs.
    """

    case: RouteCase
    token_rows: Tensor
    expert_rows: Tensor
    ids: Tensor
    positions: Tensor
    weights: Tensor
    padding_rows: Tensor
    m_indices: Tensor
    scores: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.expert_rows)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _random_inputs(case: RouteCase) -> Inputs:
    made = torch.Generator().manual_seed(case.seed)
    shape = (case.tokens, case.slots)
    ids = torch.randint(-1, case.experts, shape, generator=made)
    weights = torch.rand(shape, generator=made)
    layout = layout_of(case, ids, weights)
    scores = torch.randint(-2, 3, (case.tokens, case.experts), generator=made) / 2
    scores = scores.copysign(torch.where(scores == 0, torch.randn(scores.shape, generator=made), scores))
    rows = [_spread((number, case.width), made).to(case.dtype) for number in (case.tokens, layout.num_rows)]
    return _assembled(case, layout, rows[0], rows[1], scores)


def _spread(shape: tuple[int, int], made: torch.Generator) -> Tensor:
    """Values of many magnitudes, so that sums depend on their order."""
    scale = torch.randint(-6, 7, shape, generator=made).float().exp2()
    return torch.randn(shape, generator=made) * scale


def _planted_inputs(case: RouteCase, planted: Planted) -> Inputs:
    eps = torch.finfo(case.dtype).eps
    values, weights = (torch.tensor([[a + b * eps for a, b in side]]) for side in (planted.values, planted.weights))
    layout = layout_of(case, torch.tensor([planted.ids]), weights)
    experts = torch.zeros(layout.num_rows, case.width, dtype=case.dtype)
    taken = layout.positions >= 0
    experts[layout.positions[taken]] = values[taken][:, None].to(case.dtype).expand(-1, case.width)
    tokens = torch.ones(1, case.width, dtype=case.dtype)
    return _assembled(case, layout, tokens, experts, torch.zeros(1, case.experts))


def layout_of(case: RouteCase, ids: Tensor, weights: Tensor) -> ReceiveLayout:
    return ReceiveLayout(ids, weights, num_experts=case.experts, alignment=128 if case.alignment == 128 else 1)


def _assembled(case: RouteCase, layout: ReceiveLayout, tokens: Tensor, experts: Tensor, scores: Tensor) -> Inputs:
    experts[layout.padding_rows] = torch.nan
    return Inputs(
        case, tokens, experts, layout.ids, layout.positions, layout.weights, layout.padding_rows, layout.m_indices.long(), scores
    )


def _damaged(inputs: Inputs, damage: str) -> Inputs:
    """The last route goes where the first one does, or past the last row."""
    if not damage:
        return inputs
    positions, routes = inputs.positions.clone(), (inputs.positions >= 0).nonzero()
    last = tuple(routes[-1].tolist())
    positions[last] = positions[tuple(routes[0].tolist())] if damage == "duplicate" else inputs.num_rows
    return dataclasses.replace(inputs, positions=positions)


def planted_case(name: str, dtype: torch.dtype, width: int = 5) -> RouteCase:
    return RouteCase(dtype, 1, len(PLANTED[name].ids), 3, width, planted=name)


def planted(cls: Any) -> Sequence[RouteCase]:
    """Every planted case, in every dtype of the class."""
    return [planted_case(name, dtype) for name in PLANTED for dtype in cls.dtypes]


def edges(cls: Any) -> Sequence[RouteCase]:
    """Nothing at all in one way or another, more than one round of the tree, padding."""
    dtype = cls.dtypes[0]
    sizes = [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 3, 0), (3, 2, 2, 1030)]
    return [*(RouteCase(dtype, *size) for size in sizes), RouteCase(dtype, 3, 2, 2, 17, alignment=128)]


def probes(cls: Any) -> Sequence[RouteCase]:
    """What tells known faults apart, and always runs."""
    several = [RouteCase(dtype, 4, 4, 3, 17, seed) for dtype in cls.dtypes for seed in (1, 2)]
    return [*planted(cls), *several, *edges(cls)]


def padded(cls: Any) -> st.SearchStrategy[RouteCase]:
    return cases(cls).map(lambda case: dataclasses.replace(case, alignment=128, width=min(case.width, 17)))


def cases(cls: Any) -> st.SearchStrategy[RouteCase]:
    """Any routes; examples shrink towards one token, slot, expert and column."""
    return st.builds(
        RouteCase,
        dtype=st.sampled_from(list(cls.dtypes)),
        tokens=st.integers(1, 6),
        slots=st.integers(1, 4),
        experts=st.integers(1, 5),
        width=st.sampled_from(WIDTHS),
        seed=st.integers(0, 2**32 - 1),
        alignment=st.sampled_from([1, 1, 1, 128]),
    )


def damaged(damage: str) -> Any:
    """Cases with at least two routes, the last of which is wrong."""

    def strategy(cls: Any) -> st.SearchStrategy[RouteCase]:
        several = cases(cls).map(lambda case: dataclasses.replace(case, tokens=case.tokens + 1, slots=case.slots + 1))
        routed = several.filter(lambda case: int((case.inputs().positions >= 0).sum()) > 1)
        return routed.map(lambda case: dataclasses.replace(case, damage=damage))

    return strategy

"""The rows of the before/after table: a head as it should be, and each silent fault that fits it.

A variant changes what the head is fed or how it reads that, never its trained weights. Which faults fit depends on the head: one
without a norm before `fc` cannot lose it. The last two are controls: a head that learnt nothing, and no head at all.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn

from specalign.acceptance.table import DEAD, NONE, RIGHT
from specalign.draft import Eagle3Head, FcInput, RMSNorm
from specalign.layer_ids import POST_NORM, State, format_states


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One row of the table.

    Attributes:
        name: of the row.
        states: what the head is fed.
        head: how it reads that; None for no drafting.
        fault: whether it should be told apart from "right"; not so for the controls.
    """

    name: str
    states: tuple[State, ...]
    head: Eagle3Head | None
    fault: bool = True


def variants_of(head: Eagle3Head, states: Sequence[State], num_layers: int) -> tuple[Variant, ...]:
    """All rows for a head that takes these states: "right" first, then its faults, then the controls."""
    right = tuple(states)
    found = [Variant(RIGHT, right, head, fault=False)]
    fed = {name: change(right, num_layers) for name, change in _STATE_FAULTS.items()}
    found += [Variant(name, made, head) for name, made in fed.items() if made != right]
    found += [Variant(name, right, made) for name, change in _HEAD_FAULTS.items() if (made := change(head)) is not None]
    found += [Variant(DEAD, right, random_head(head), fault=False), Variant(NONE, right, None, fault=False)]
    return tuple(found)


def _shifted(by: int) -> Callable[[tuple[State, ...], int], tuple[State, ...]]:
    """Every boundary moved by so much; those that would leave 0..n stay (an engine would stop there)."""

    def change(states: tuple[State, ...], n: int) -> tuple[State, ...]:
        return tuple(s if s is POST_NORM or not 0 <= s + by <= n else s + by for s in states)

    return change


def _replaced(
    wanted: Callable[[int], State], by: Callable[[int], State]
) -> Callable[[tuple[State, ...], int], tuple[State, ...]]:
    def change(states: tuple[State, ...], n: int) -> tuple[State, ...]:
        return tuple(by(n) if s == wanted(n) else s for s in states)

    return change


_STATE_FAULTS: Final[dict[str, Callable[[tuple[State, ...], int], tuple[State, ...]]]] = {
    "ids +1": _shifted(1),
    "ids -1": _shifted(-1),
    "boundary n replaced by n-1": _replaced(lambda n: n, lambda n: n - 1),
    "POST_NORM in place of boundary n": _replaced(lambda n: n, lambda n: POST_NORM),
    "boundary n in place of POST_NORM": _replaced(lambda n: POST_NORM, lambda n: n),
    "order reversed": lambda states, n: states[::-1],
}


def with_fc_input(head: Eagle3Head, made: nn.Module) -> Eagle3Head:
    """The head with another way from the states to its hidden state; everything else is shared."""
    changed = copy.copy(head)
    changed._modules = {**head._modules, "fc_input": made}
    return changed


def _without_norms(head: Eagle3Head) -> Eagle3Head | None:
    fc_input = head.fc_input
    if fc_input.input_norm is None and fc_input.fc_norm is None:
        return None
    return with_fc_input(head, _Reading(fc_input, lambda joined: joined))


def _by_chunk(head: Eagle3Head) -> Eagle3Head | None:
    """The norm over the whole concatenation, taken for each chunk by itself with its part of the weight."""
    norm, chunks = head.fc_input.input_norm, head.fc_input.chunks
    if norm is None or chunks == 1:
        return None

    def read(joined: torch.Tensor) -> torch.Tensor:
        parts = zip(joined.chunk(chunks, dim=-1), norm.weight.chunk(chunks), strict=True)
        return torch.cat([_rms(part, weight, norm.eps) for part, weight in parts], dim=-1)

    return with_fc_input(head, _Reading(head.fc_input, read))


def _as_whole(head: Eagle3Head) -> Eagle3Head | None:
    """The norms of the chunks, taken as one over the whole concatenation."""
    norms = head.fc_input.fc_norm
    if norms is None or head.fc_input.chunks == 1:
        return None
    members = [norm for norm in norms if isinstance(norm, RMSNorm)]
    weight, eps = torch.cat([norm.weight for norm in members]), members[0].eps
    return with_fc_input(head, _Reading(head.fc_input, lambda joined: _rms(joined, weight, eps)))


def _without_d2t(head: Eagle3Head) -> Eagle3Head | None:
    if head.vocab.targets is None:
        return None
    changed = copy.copy(head)
    changed.vocab = dataclasses.replace(head.vocab, targets=None)
    return changed


_HEAD_FAULTS: Final[dict[str, Callable[[Eagle3Head], Eagle3Head | None]]] = {
    "norm before fc ignored": _without_norms,
    "norm by chunk, not over the whole": _by_chunk,
    "norm over the whole, not by chunk": _as_whole,
    "d2t ignored": _without_d2t,
}


class _Reading(nn.Module):
    """`FcInput` with other norms."""

    def __init__(self, like: FcInput, norms: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.like, self.norms = like, norms

    def forward(self, states: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """As `FcInput.forward`."""
        joined = states if isinstance(states, torch.Tensor) else torch.cat(list(states), dim=-1)
        normed = self.norms(joined)
        made: torch.Tensor = normed if self.like.fc is None else self.like.fc(normed)
        return made


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    norm = RMSNorm(len(weight), eps=eps, device=weight.device, dtype=weight.dtype)
    norm.weight = nn.Parameter(weight.detach(), requires_grad=False)
    made: torch.Tensor = norm(x)
    return made


def random_head(head: Eagle3Head, seed: int = 0) -> Eagle3Head:
    """The dead control: the same head with random weights in place of what was trained; embedding and lm_head are kept."""
    kept = {"embed_tokens.weight", "lm_head.weight"}
    shared = {id(parameter): parameter for name, parameter in head.named_parameters() if name in kept}
    made = copy.deepcopy(head, dict(shared))  # they are large, and nobody writes to them
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name not in kept and parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return made


def described(variant: Variant) -> str:
    """What the row feeds the head."""
    return "nothing" if variant.head is None else format_states(variant.states)

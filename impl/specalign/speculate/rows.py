"""Chains of drafts from every row of a text at once.

Row t holds token x[t+1] and the target's state of position t, and begins a chain: its step 0 proposes x[t+2], its step j takes
the token proposed before and what was recycled, at position t + j. A real loop has one chain at a time; its cache then holds the
rows 0..t with the target's states, and the chain's own steps. So a step of row t sees the keys of step 0 at rows 0..t, and of its
own steps 1..j. That makes all chains of a text one batched pass a step: this is the training-time test of EAGLE3 (arXiv
2503.01840, section 3.2; SpecForge `llama3_eagle.py`), and with a chain's own tokens the replay of a greedy run.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from specalign.draft.eagle3 import DraftStep, Eagle3Head
from specalign.draft.errors import DraftError
from specalign.draft.layers import Attention, Eagle3Layer, visible


@dataclasses.dataclass(slots=True)
class _Memory:
    """Keys and values of one layer, [batch, heads, T, head_dim], of each step so far."""

    keys: list[torch.Tensor] = dataclasses.field(default_factory=list)
    values: list[torch.Tensor] = dataclasses.field(default_factory=list)


def draft_rows(
    head: Eagle3Head,
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    steps: int,
    *,
    first: int = 0,
    teacher: bool = False,
    choose: Callable[[DraftStep], torch.Tensor] | None = None,
) -> Iterator[DraftStep]:
    """Every step of every row's chain; step j is given before step j + 1 is computed.

    Args:
        head: the draft head.
        tokens: x[1..T], target tokens, int [batch, T]: row t holds x[t+1].
        hidden: of `Eagle3Head.combine_states`, [batch, T, hidden_size]: row t that of position t.
        steps: drafts of a chain, at least 1.
        first: the row whose chain is the first one wanted, 0..T-1; rows before it are only seen.
        teacher: each step takes the text's own token, x[t+1+j], in place of the most likely draft. The last j rows of step j,
            whose tokens lie beyond the text, then mean nothing.
        choose: says which target tokens, int [batch, T - first], follow a step, after it was given; for whoever has the logits
            already. By default the most likely drafts.

    Yields:
        `DraftStep` with `normed` and `recycled` [batch, T - first, hidden_size] for each step.

    Raises:
        DraftError: shapes that do not fit.
    """
    wanted = (*tokens.shape, head.config.hidden_size)
    if tokens.dim() != 2 or hidden.shape != wanted or steps < 1 or not 0 <= first < tokens.shape[1]:
        raise DraftError(
            f"tokens {list(tokens.shape)} and hidden {list(hidden.shape)} for {steps} steps from row {first}: give [batch, T],"
            f" [batch, T, {head.config.hidden_size}], at least 1 step and a row of 0..T-1"
        )
    places = torch.arange(tokens.shape[1], device=tokens.device)
    rows, text = places, tokens  # the rows of this step
    memories = [_Memory() for _ in head.layers]
    for step in itertools.count():
        turn = head.rotary(rows + step, hidden.dtype)
        embeds = head.embed_tokens(tokens)
        for index, layer in enumerate(head.layers):
            if not isinstance(layer, Eagle3Layer):
                raise DraftError(f"layer {index} is a {type(layer).__name__}, not an Eagle3Layer")
            seen = visible(rows + step, places, head.config.window(index)) & visible(rows, places, None)
            hidden = _layer(layer, embeds, hidden, turn, seen, memories[index])
        if step == 0:
            rows, hidden = rows[first:], hidden[:, first:]
        normed = head.norm(hidden)
        made = DraftStep(normed, normed if head.config.norm_output else hidden)
        yield made
        if step + 1 == steps:
            return
        hidden = made.recycled
        if teacher:
            text = text.roll(-1, dims=1)
            tokens = text[:, first:]
        else:
            tokens = most_likely(head, made.normed) if choose is None else choose(made)


def most_likely(head: Eagle3Head, normed: torch.Tensor) -> torch.Tensor:
    """The target token that a head finds most likely, int64 [...], out of `DraftStep.normed` [..., hidden_size]."""
    return head.vocab.to_target(head.logits(normed).argmax(-1))


def _layer(
    layer: Eagle3Layer,
    embeds: torch.Tensor,
    hidden: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    seen: torch.Tensor,
    memory: _Memory,
) -> torch.Tensor:
    taken, residual = layer.inputs(embeds, hidden)
    return layer.after_attention(residual, _attend(layer.self_attn, taken, turn, seen, memory, layer.window))


def _attend(
    attention: Attention,
    x: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    seen: torch.Tensor,
    memory: _Memory,
    window: int | None,
) -> torch.Tensor:
    """One step of all chains: the keys of step 0 as the mask `seen` [1, T, T] says, and each row's own keys of later steps."""
    query, keys, values = attention.project(x, turn)
    memory.keys.append(attention.for_queries(keys))
    memory.values.append(attention.for_queries(values))
    if len(memory.keys) == 1:
        mixed = functional.scaled_dot_product_attention(query, memory.keys[0], memory.values[0], attn_mask=seen)
        return attention.output(mixed)
    scale = attention.head_dim**-0.5
    past = (query @ memory.keys[0].transpose(-2, -1) * scale).masked_fill(~seen, float("-inf"))
    # Of a sliding window, the newest steps; the step itself is always one of them.
    first = 1 if window is None else max(1, len(memory.keys) - window)
    own = [(query * key).sum(-1, keepdim=True) * scale for key in memory.keys[first:]]
    weights = torch.cat((past, *own), dim=-1).softmax(dim=-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
    length = past.shape[-1]
    mixed = weights[..., :length] @ memory.values[0]
    for place, value in enumerate(memory.values[first:], start=length):
        mixed = mixed + weights[..., place : place + 1] * value
    return attention.output(mixed)

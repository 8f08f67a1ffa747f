"""The Llama EAGLE3 draft head (arXiv 2503.01840), with 1..k layers.

A head takes a token and the state of the token before it, and proposes the token after. Row t of a pass holds token x[t+1],
the hidden state of position t and a position; only differences of positions matter, so engines number rows from 0 or 1.

    hidden = head.combine_states(states)                    # the target's states at the draft's ids → H
    step = head(tokens, hidden, positions, cache)           # one pass
    draft = head.vocab.to_target(head.logits(step.normed).argmax(-1))
    step = head(draft, step.recycled, positions + 1, cache) # the next draft step takes what was recycled
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from specalign.draft.cache import KVCache
from specalign.draft.config import Eagle3Config
from specalign.draft.errors import DraftError
from specalign.draft.layers import Eagle3Layer, visible
from specalign.draft.norms import FcInput, RMSNorm
from specalign.draft.rope import Rotary
from specalign.draft.vocab import DraftVocab, make_vocab


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DraftStep:
    """What one pass gives, each [..., T, hidden_size] in the head's dtype.

    Attributes:
        normed: after the final norm; logits come from it, whatever `norm_output` says.
        recycled: what the next draft step takes as its hidden state: the residual sum before the final norm, or `normed` with
            `norm_output` (SGLang `llama_eagle3.py:273-275`, vLLM; SpecForge's trainer uses the flag for something else).
    """

    normed: torch.Tensor
    recycled: torch.Tensor


class Eagle3Head(nn.Module):
    """A Llama EAGLE3 head.

    Attributes:
        config: what it was built from.
        vocab: its draft vocabulary.
        fc_input: states → hidden.
        embed_tokens: over the target vocabulary.
        layers: 1..k layers.
        norm: the final norm.
        lm_head: over the draft vocabulary; None where embed_tokens serves (`tie_word_embeddings`).
    """

    def __init__(
        self,
        config: Eagle3Config,
        vocab: DraftVocab | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A head with random weights; `specalign.draft.weights` fills it from a checkpoint.

        Raises:
            DraftError: a small draft vocabulary and no `vocab`, or one of other sizes.
        """
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config = config
        self.vocab = _checked(config, vocab)
        self.fc_input = FcInput(config, device=device, dtype=dtype)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, **factory)
        self.layers = nn.ModuleList(Eagle3Layer(config, i, **factory) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, **factory)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab, bias=False, **factory)
        self.rotary = Rotary(config.rope, config.head_dim)

    def combine_states(self, states: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """The hidden state [..., T, hidden_size] out of the target's states; see `FcInput.forward`."""
        hidden: torch.Tensor = self.fc_input(states)
        return hidden

    def forward(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache | None = None,
        *,
        seen: torch.Tensor | None = None,
    ) -> DraftStep:
        """One pass over T new tokens.

        Args:
            tokens: target tokens, int [..., T]; T = 0 gives empty results and leaves the cache alone.
            hidden: [..., T, hidden_size], from `combine_states` or `DraftStep.recycled`; never concatenated states.
            positions: int [..., T], or [T] for all rows of the batch alike; ascending strictly, also after the cached ones.
            cache: what was seen before; the new tokens are added to it. None for a pass that remembers nothing.
            seen: bool [..., T, S], which cached and new tokens each new one sees, for trees and ragged batches: positions need
                not ascend then. A sliding window narrows it further. By default every token at its own or an earlier position.

        Raises:
            DraftError: shapes that do not fit, or positions that do not ascend. The cache is then as it was.
        """
        positions = self._check(tokens, hidden, positions)
        if tokens.numel() == 0:
            return DraftStep(hidden, hidden)
        cache = KVCache() if cache is None else cache
        every = _with_past(cache, positions, ascending=seen is None)
        if seen is not None and seen.shape != (*positions.shape, every.shape[-1]):
            raise DraftError(
                f"seen is {list(seen.shape)}; {list(tokens.shape)} tokens and {len(cache)} cached need"
                f" {[*positions.shape, every.shape[-1]]}"
            )
        turn = self.rotary(positions, hidden.dtype)
        embeds, kept = self.embed_tokens(tokens), []
        for index, layer in enumerate(self.layers):
            mask = visible(positions, every, self.config.window(index))
            if seen is not None:
                mask = mask & seen.unsqueeze(-3)
            hidden, kv = layer(embeds, hidden, turn, mask, cache.layer(index))
            kept.append(kv)
        cache.commit(every, kept)
        normed = self.norm(hidden)
        return DraftStep(normed, normed if self.config.norm_output else hidden)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits [..., draft vocabulary] out of `DraftStep.normed`; `vocab.scatter` spreads them over target tokens."""
        return functional.linear(normed, self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight)

    def _check(self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        wanted = (*tokens.shape, self.config.hidden_size)
        if tokens.dim() == 0 or tuple(hidden.shape) != wanted:
            raise DraftError(
                f"tokens {list(tokens.shape)} need a hidden state of shape {list(wanted)}, not {list(hidden.shape)}; states of"
                " the target go through combine_states first, whatever their width"
            )
        if positions.shape not in (tokens.shape, tokens.shape[-1:]) or positions.is_floating_point():
            raise DraftError(
                f"positions {positions.dtype} {list(positions.shape)} for tokens {list(tokens.shape)}; give int positions of the"
                f" same shape, or {list(tokens.shape[-1:])}"
            )
        return positions.expand(tokens.shape)


def _checked(config: Eagle3Config, vocab: DraftVocab | None) -> DraftVocab:
    if vocab is None:
        return make_vocab(size=config.draft_vocab, target_size=config.vocab_size)
    if (vocab.size, vocab.target_size) != (config.draft_vocab, config.vocab_size):
        raise DraftError(
            f"a vocabulary of {vocab.size} of {vocab.target_size} tokens for a head with {config.draft_vocab} of"
            f" {config.vocab_size}; make it with the sizes of the config"
        )
    return vocab


def _with_past(cache: KVCache, positions: torch.Tensor, *, ascending: bool) -> torch.Tensor:
    """Positions of cached and new tokens, [..., S], `ascending` strictly unless a mask says who sees whom."""
    past = cache.positions
    if past is not None and past.shape[:-1] != positions.shape[:-1]:
        raise DraftError(f"the cache holds a batch of {list(past.shape[:-1])}, these tokens are {list(positions.shape[:-1])}")
    every = positions if past is None else torch.cat((past, positions), dim=-1)
    if not ascending:
        return every
    if bool((every.diff(dim=-1) <= 0).any()) or bool((every[..., :1] < 0).any()):
        raise DraftError(
            f"positions must be >= 0 and ascend strictly: the new ones are {positions.flatten()[:8].tolist()}, the cache ends at"
            f" {None if past is None else past[..., -1].flatten()[:8].tolist()}; crop the cache to the tokens that were accepted"
        )
    return every

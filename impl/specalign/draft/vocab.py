"""The draft vocabulary: which target token each draft token is.

`d2t` holds offsets: target token = draft token + d2t[draft token] (EAGLE `cnets.py`, SGLang `llama_eagle3.py`, vLLM,
speculators). `t2d`, where a file has it, marks the target tokens that are in the draft vocabulary.
"""

from __future__ import annotations

import dataclasses

import torch

from specalign.draft.errors import DraftError
from specalign.layer_ids.d2t import holds_token_ids


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DraftVocab:
    """Draft tokens 0..size-1 and the target tokens that they are.

    Attributes:
        size: rows of the head's lm_head.
        target_size: size of the target vocabulary.
        targets: int64 [size] on the CPU, the target token of each draft token; None when they are the same.
    """

    size: int
    target_size: int
    targets: torch.Tensor | None = None

    def to_target(self, tokens: torch.Tensor) -> torch.Tensor:
        """Draft tokens, int of any shape, as target tokens."""
        return tokens if self.targets is None else self.targets.to(tokens.device)[tokens]

    def scatter(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., size] over draft tokens as logits [..., target_size] over target tokens, -inf where there is no draft
        token (vLLM `Eagle3LlamaForCausalLM.compute_logits`)."""
        if self.targets is None:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.target_size), float("-inf"))
        wide[..., self.targets.to(logits.device)] = logits
        return wide


def make_vocab(
    *,
    size: int,
    target_size: int,
    d2t: torch.Tensor | None = None,
    t2d: torch.Tensor | None = None,
    model_size: int | None = None,
) -> DraftVocab:
    """The draft vocabulary of a head, with d2t checked against both vocabularies.

    Args:
        size: rows of the head's lm_head (`draft_vocab_size`).
        target_size: the head's `vocab_size`.
        d2t: offsets, int [size]; needed when size < target_size.
        t2d: bool (or 0/1 int) [target_size]; checked against d2t.
        model_size: size of the vocabulary of the target that will verify, if it is at hand: no draft token may lie beyond it.

    Raises:
        DraftError: d2t missing, of another length or no table of integers; a target token outside the vocabulary or named
            twice; a table that holds token ids (or arange) in place of offsets; offsets in a head with the full vocabulary,
            which engines ignore; a t2d that disagrees.
    """
    if not 1 <= size <= target_size:
        raise DraftError(
            f"a draft vocabulary of {size} tokens for a target vocabulary of {target_size}; it must be 1..{target_size}"
        )
    if d2t is None and size < target_size:
        raise DraftError(
            f"the head has {size} of {target_size} tokens and no d2t, so which ones is unknown; export the checkpoint with d2t"
            " (offsets: target token = draft token + d2t[draft token])"
        )
    targets = None if d2t is None else _targets(d2t.detach().to("cpu"), size, target_size)
    tokens = torch.arange(size, device="cpu") if targets is None else targets
    _check_model(tokens, model_size)
    if t2d is not None:
        _check_t2d(t2d.detach().to("cpu"), tokens, target_size)
    return DraftVocab(size, target_size, None if size == target_size else targets)


def _targets(d2t: torch.Tensor, size: int, target_size: int) -> torch.Tensor:
    if d2t.is_floating_point() or d2t.is_complex() or d2t.dtype == torch.bool:
        raise DraftError(f"d2t is {d2t.dtype}, no table of integers; store it as int64")
    if tuple(d2t.shape) != (size,):
        raise DraftError(f"d2t has shape {list(d2t.shape)}, the draft vocabulary has {size} tokens; it must be [{size}]")
    offsets = d2t.to(torch.int64)
    if size == target_size and bool(offsets.any()):
        raise DraftError(
            f"d2t moves {int(offsets.count_nonzero())} of {size} tokens in a head with the full vocabulary, where engines"
            " ignore it; state the draft_vocab_size, or remove d2t"
        )
    targets = offsets + torch.arange(size, device="cpu")
    outside = (targets < 0) | (targets >= target_size)
    if holds_token_ids(offsets.tolist(), target_size):
        raise DraftError(
            f"d2t holds target tokens or arange, not offsets: it ascends from {int(offsets[0])} to {int(offsets[-1])}, and as"
            f" offsets the last draft token would be {int(targets[-1])} of {target_size}; store d2t - arange({size})"
        )
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise DraftError(
            f"d2t points outside the vocabulary in {int(outside.sum())} places, first d2t[{first}]: {first} +"
            f" {int(offsets[first])} = {int(targets[first])} of {target_size}; check that the head belongs to this target and"
            " that d2t holds offsets"
        )
    named = len(set(targets.tolist()))
    if named != size:
        raise DraftError(f"d2t maps {size} draft tokens to {named} target tokens; each may be named once")
    return targets


def _check_model(tokens: torch.Tensor, model_size: int | None) -> None:
    if model_size is not None and int(tokens.max()) >= model_size:
        raise DraftError(
            f"draft tokens reach target token {int(tokens.max())}, and the target at hand has {model_size}; check that this is"
            " the target which the head was trained on"
        )


def _check_t2d(t2d: torch.Tensor, tokens: torch.Tensor, target_size: int) -> None:
    if tuple(t2d.shape) != (target_size,) or t2d.is_floating_point():
        raise DraftError(f"t2d is {t2d.dtype} {list(t2d.shape)}, it must be bool [{target_size}], one mark for each target token")
    if t2d.dtype != torch.bool and bool(((t2d != 0) & (t2d != 1)).any()):
        raise DraftError("t2d holds numbers other than 0 and 1; it must mark the target tokens that are draft tokens")
    kept = torch.zeros(target_size, dtype=torch.bool, device="cpu")
    kept[tokens] = True
    wrong = (kept != t2d.to(torch.bool)).nonzero()
    if wrong.numel():
        raise DraftError(
            f"t2d and d2t disagree about {wrong.numel()} of {target_size} target tokens, first token {int(wrong[0])}; export the"
            " checkpoint again, with both from one run"
        )
